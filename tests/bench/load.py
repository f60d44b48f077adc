"""Runs the load driver and reads what it measured."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

FAKES = Path(__file__).parents[2] / "build" / "fakes"
PROGRAM_CPU = max(os.sched_getaffinity(0))
"""The program is pinned here, the recorder elsewhere where there are more processors."""


def start(*arguments: str) -> subprocess.Popen[str]:
    """Start the driver program on the stand-in libraries."""
    return subprocess.Popen(
        [str(FAKES / "driver_loop"), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "LD_LIBRARY_PATH": str(FAKES)},
    )


def result(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What it printed: ``ns_per_pair`` (min, median), ``failed``, ``pairs`` and more."""
    assert process.stdout is not None
    line = process.stdout.readline()
    process.stdout.close()
    if process.wait() != 0:
        raise RuntimeError(f"driver_loop failed with {process.returncode}")
    found: dict[str, Any] = json.loads(line)
    return found
