"""What tells one process from another, over time."""

from __future__ import annotations

from typing import NamedTuple


class ProcessId(NamedTuple):
    """One program run by one process: pids are reused, and exec replaces a program.

    ``start_ns``: start time in nanoseconds since boot (``task_struct.start_boottime`` of the
    thread group leader; ``/proc/PID/stat`` field 22 shows it in clock ticks).
    ``image``: how many times the process had called exec since it was first seen.
    """

    pid: int
    start_ns: int
    image: int = 0
