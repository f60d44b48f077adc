"""What recording costs while nothing is allocated, and how much memory it holds."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from gpumemprof.recorder import Recorder, RecorderOptions
from tests.bench import load

SECONDS = 10
PROCESSES = 8
_IDLE = "import ctypes, time; ctypes.CDLL('libcudart.so.12').cudaFree(None); time.sleep(600)"


def _memory(field: str) -> int:
    """KiB of a field of our own /proc/self/status."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0])


def report() -> Iterator[str]:
    """Lines of the table."""
    with Recorder(RecorderOptions(library_path=str(load.FAKES))) as recorder:
        running = [subprocess.Popen([sys.executable, "-c", _IDLE]) for _ in range(PROCESSES)]
        try:
            for process in running:
                recorder.add(process.pid)
            end = time.monotonic() + 2
            while time.monotonic() < end:
                recorder.step()
            cpu = time.process_time()
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                recorder.step()
            share = (time.process_time() - cpu) / SECONDS
        finally:
            for process in running:
                process.kill()
                process.wait()
    yield "| what | figure |"
    yield "|---|---|"
    yield f"| processor, {PROCESSES} idle processes | {share:.2%} of a core |"
    yield f"| resident memory | {_memory('VmRSS') >> 10} MiB |"
    yield f"| of it anonymous | {_memory('RssAnon') >> 10} MiB |"
