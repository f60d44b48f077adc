"""What tells one process from another, over time."""

from __future__ import annotations

from typing import NamedTuple

NS_PER_TICK = 10_000_000
"""A clock tick of ``/proc/PID/stat`` (USER_HZ is 100 on every Linux port), in nanoseconds."""


class ProcessId(NamedTuple):
    """One program run by one process: pids are reused, and exec replaces a program.

    ``start_ns``: start time in nanoseconds since boot, in whole clock ticks, so that what the
    kernel tells (``task_struct.start_boottime``) equals what ``/proc/PID/stat`` shows.
    ``image``: how many times the process had called exec since it was first seen.
    """

    pid: int
    start_ns: int
    image: int = 0


def whole_ticks(start_ns: int) -> int:
    """A start time in nanoseconds, rounded down to whole clock ticks."""
    return start_ns - start_ns % NS_PER_TICK
