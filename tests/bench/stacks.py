"""What a stack costs user space: new, seen before, and until it has names.

A Python program allocates at the end of 30 Python calls and then waits; its captured stacks are
handled again and again here. Symbols of files as large as libtorch_cpu.so are in `symbols`.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from gpumemprof.probe.events import StackEvent
from gpumemprof.process import maps
from gpumemprof.recorder import Recorder, RecorderOptions
from gpumemprof.stack.resolver import StackResolver
from tests.bench import load

PROGRAM = """
import ctypes, time
runtime = ctypes.CDLL("libcudart.so.12")
def allocate(size):
    runtime.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(size))
def deep(n, size):
    deep(n - 1, size) if n else allocate(size)
for size in range(1, 101):
    deep(30, size)
time.sleep(600)
"""
REPEATS = 20


def _captured(recorder: Recorder, process: subprocess.Popen[bytes]) -> list[StackEvent]:
    found: list[StackEvent] = []
    intern = recorder.stacks.intern

    def keep(event: StackEvent, *rest: object) -> int:
        found.append(event)
        return intern(event, *rest)  # type: ignore[arg-type]

    recorder.stacks.intern = keep  # type: ignore[method-assign]
    recorder.add(process.pid)
    deadline = time.monotonic() + 30
    while len(found) < 100 and time.monotonic() < deadline:
        recorder.step()
    return found


def _micro(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e6


def report() -> Iterator[str]:
    """Lines of the table."""
    with Recorder(RecorderOptions(library_path=str(load.FAKES))) as recorder:
        process = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep(1)\n{PROGRAM}"])
        try:
            events = _captured(recorder, process)
            identity = recorder.processes.running[0].id
            resolver = StackResolver()
            mapped = maps.read(process.pid)
            resolver.see(identity, mapped)
            resolver.find_interpreter(identity, mapped)
            first = _micro(lambda: resolver.intern(events[0], identity))
            number = resolver.intern(events[0], identity)
            names = _micro(lambda: resolver.resolve(number))
            warm = [
                _micro(lambda event=event: resolver.intern(event, identity))  # type: ignore[misc]
                for _ in range(REPEATS)
                for event in events
            ]
            frames = len(resolver.resolve(number))
            resolver.close()
        finally:
            process.kill()
            process.wait()
    yield "| what | figure |"
    yield "|---|---|"
    yield f"| frames merged, bytes of native stack | {frames}, {len(events[0].window)} |"
    yield f"| the first stack of a process | {first / 1000:.1f} ms |"
    yield f"| its names | {names / 1000:.1f} ms |"
    yield f"| a stack seen before, median | {statistics.median(warm):.1f} µs |"
    yield f"| the same, 99 of 100 below | {sorted(warm)[len(warm) * 99 // 100]:.1f} µs |"
