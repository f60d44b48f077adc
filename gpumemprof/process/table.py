"""The processes that are recorded: who they are, when they ran another program, when they ended."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpumemprof.errors import ProcessGone
from gpumemprof.process import procfs
from gpumemprof.process.identity import ProcessId, whole_ticks
from gpumemprof.process.pace import Pace

MAX_ENDED = 4096
"""Ended processes that are remembered for the report; older ones are forgotten and counted."""


@dataclass(slots=True)
class Process:
    """One program run by one process. ``started`` and ``ended``: wall clock, ns since the epoch."""

    id: ProcessId
    comm: str
    command: str
    started: int
    ended: int | None = None
    end_reason: str = ""
    parent: ProcessId | None = None
    """The recorded process that it is known to be a child of."""
    recorded: bool = True
    """Whether its calls are recorded; one that is not stays known, to be switched on again."""
    recorded_since: int = 0
    """CLOCK_MONOTONIC ns: what it did before is none of its recording's."""
    size: int = 0
    """Address space in pages when its mappings were last looked at."""
    mappings_changed: bool = True
    """A library may have been mapped since."""
    linker_tells: bool = False
    """Its dynamic linker is probed, and tells when it loads a library."""
    looked_at: float = 0.0
    """Monotonic seconds of the last look at its size."""
    pace: Pace = field(default_factory=Pace)
    """Of looks at its mappings while its linker tells of new libraries: imports load many."""


class ProcessTable:
    """Running and ended processes by identity; told by the kernel's events, or by pidfds."""

    def __init__(self) -> None:
        self._running: dict[int, Process] = {}
        self._ended: dict[ProcessId, Process] = {}
        self._pidfds: dict[int, int] = {}
        self._pid_of: dict[int, int] = {}
        self._unwatched: set[int] = set()
        """Running processes that have no pidfd."""
        self._poll = select.poll()
        self.forgotten = 0
        """Ended processes dropped beyond ``MAX_ENDED``."""

    @property
    def running(self) -> list[Process]:
        """Processes that have not ended."""
        return list(self._running.values())

    @property
    def all(self) -> Iterator[Process]:
        """Ended ones first."""
        yield from self._ended.values()
        yield from self._running.values()

    def get(self, pid: int, start_ns: int) -> Process | None:
        """The running process ``pid`` if it started at ``start_ns``."""
        process = self._running.get(pid)
        if process is not None and process.id.start_ns == whole_ticks(start_ns):
            return process
        return None

    def by_id(self, identity: ProcessId) -> Process | None:
        """Running or ended."""
        process = self._running.get(identity.pid)
        if process is not None and process.id == identity:
            return process
        return self._ended.get(identity)

    def stale(self, pid: int, start_ns: int) -> Process | None:
        """The process that had ``pid`` before the one that started at ``start_ns``, if its end was
        not told: it has ended, since the pid was given again."""
        process = self._running.get(pid)
        if process is not None and process.id.start_ns != whole_ticks(start_ns):
            return process
        return None

    def add(self, pid: int, start_ns: int | None = None, comm: str = "") -> Process:
        """Begin to follow a process; one that is followed already is returned as it is.

        ``start_ns`` from a kernel event makes it known even if it has ended since; without it
        the process must exist: raises ProcessGone.
        """
        try:
            stat = procfs.read_stat(pid)
            if start_ns is not None and stat.start_ns != whole_ticks(start_ns):
                raise ProcessGone(f"process {pid} ended and its pid was reused")
        except ProcessGone:
            if start_ns is None:
                raise
            process = Process(ProcessId(pid, whole_ticks(start_ns)), comm, "", time.time_ns())
            self._running[pid] = process
            self._unwatched.add(pid)
            return process
        known = self.get(pid, stat.start_ns)
        if known is not None:
            return known
        process = Process(
            ProcessId(pid, stat.start_ns),
            stat.comm,
            procfs.read_command(pid),
            _wall_clock(stat.start_ns),
        )
        self._running[pid] = process
        self._watch(pid, stat.start_ns)
        return process

    def executed(self, process: Process, comm: str) -> Process:
        """The process called exec: it ends, and the same process with a new program begins."""
        self.end(process, "exec")
        pid, start_ns, image = process.id
        replaced = Process(
            ProcessId(pid, start_ns, image + 1),
            comm,
            procfs.read_command(pid),
            time.time_ns(),
            recorded=process.recorded,
            recorded_since=process.recorded_since,
        )
        self._running[pid] = replaced
        return replaced

    def end(self, process: Process, reason: str) -> None:
        """The process ended; it stays known for the report."""
        if process.ended is not None:
            return
        process.ended, process.end_reason = time.time_ns(), reason
        if self._running.get(process.id.pid) is process:
            del self._running[process.id.pid]
        self._ended[process.id] = process
        if len(self._ended) > MAX_ENDED:
            self._ended.pop(next(iter(self._ended)))
            self.forgotten += 1
        if reason != "exec":
            self._unwatch(process.id.pid)

    def forget(self, identity: ProcessId) -> None:
        """Drop a process that has ended."""
        self._ended.pop(identity, None)

    def gone(self) -> list[Process]:
        """Processes that have ended, whether or not the kernel's events told it."""
        found = []
        for fd, _ in self._poll.poll(0):
            process = self._running.get(self._pid_of.get(fd, -1))
            if process is not None:
                found.append(process)
        found += [
            self._running[pid]
            for pid in self._unwatched
            if not procfs.runs(pid, self._running[pid].id.start_ns)
        ]
        return found

    def _watch(self, pid: int, start_ns: int) -> None:
        try:
            fd = os.pidfd_open(pid)
        except OSError:  # descriptors are exhausted, or it ended just now
            self._unwatched.add(pid)
            return
        if not procfs.runs(pid, start_ns):  # the descriptor may be of the next one with this pid
            os.close(fd)
            self._unwatched.add(pid)
            return
        self._pidfds[pid], self._pid_of[fd] = fd, pid
        self._poll.register(fd, select.POLLIN)

    def _unwatch(self, pid: int) -> None:
        self._unwatched.discard(pid)
        fd = self._pidfds.pop(pid, None)
        if fd is not None:
            self._poll.unregister(fd)
            del self._pid_of[fd]
            os.close(fd)

    def close(self) -> None:
        """Close the pidfds."""
        for pid in list(self._pidfds):
            self._unwatch(pid)


def _wall_clock(start_ns: int) -> int:
    return time.time_ns() - (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - start_ns)
