"""Boots a kernel under qemu, without hardware help, and collects what it tells."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.kernels.archive import NotAtHand

QEMU = "qemu-system-x86_64"
MEMORY_MIB = 2048
PROCESSORS = 2
LIMIT_SECONDS = 900.0


def require() -> None:
    """Raises NotAtHand where there is no qemu."""
    if not shutil.which(QEMU):
        raise NotAtHand(f"{QEMU} is not installed (Debian: qemu-system-x86)")


def boot(kernel: Path, initrd: Path, directory: Path, *settings: str) -> list[dict[str, Any]]:
    """Runs a machine until it switches itself off; the objects that it told, in order.

    ``directory`` keeps its console and its results. The last object's step is "end" unless
    something went wrong; then it is "crashed" and holds the end of the console.
    """
    require()
    directory.mkdir(parents=True, exist_ok=True)
    console, told = directory / "console.log", directory / "results.jsonl"
    for file in (console, told):
        file.unlink(missing_ok=True)
    began = time.monotonic()
    try:
        done = subprocess.run(
            [QEMU, "-accel", "tcg,thread=multi", "-m", str(MEMORY_MIB), "-smp", str(PROCESSORS),
             "-cpu", "max", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
             "-kernel", kernel, "-initrd", initrd,
             "-append", "console=ttyS0 rdinit=/init panic=-1 quiet " + " ".join(settings),
             "-serial", f"file:{console}", "-serial", f"file:{told}"],
            capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        problem = done.stderr.strip()
    except subprocess.TimeoutExpired:
        problem = f"still running after {LIMIT_SECONDS:.0f} s"
    results = _read(told)
    if not results or results[-1]["step"] != "end":
        text = console.read_text(errors="replace") if console.exists() else ""
        results.append({"step": "crashed", "problem": problem, "console": text[-3000:]})
    results.append({"step": "took", "seconds": round(time.monotonic() - began, 1)})
    return results


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    found = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            break  # cut off
    return found
