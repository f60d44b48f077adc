"""Names of code made at run time, from ``/tmp/perf-PID.map``.

JIT compilers that were told to (``perf`` conventions: Linux, tools/perf/Documentation,
jit-interface) append a line "START SIZE name" for each function, numbers in hexadecimal. A later
line replaces an earlier one for the same code.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterable
from pathlib import Path

from gpumemprof.errors import GpumemprofError
from gpumemprof.process.mapped_file import PROC, open_in_root

MAX_BYTES = 64 << 20
MAX_LINES = 1_000_000
MAX_MATCHES = 1_000_000
"""Pairs of line and address: lines of a hostile map may all cover the same addresses."""
MAX_NAME = 512
_MAX_DIGITS = 18
_STEP = 1 << 20


class PerfMap:
    """The perf map of one process, opened while the process lives and read later."""

    def __init__(self, fd: int | None) -> None:
        """Takes over ``fd``; None: there is no map."""
        self._fd = fd

    @classmethod
    def of_process(cls, pid: int, proc: Path = PROC, *, allow_fuse: bool = True) -> PerfMap:
        """The map a process writes, looked for under its own pid as it sees it and in its root.

        Only a file of the process's own user counts: ``/tmp`` is everyone's. No map is no error.
        """
        try:
            inner_pid, user = _inner_pid_and_user(pid, proc)
            path = f"/tmp/perf-{inner_pid}.map"  # noqa: S108
            fd = open_in_root(pid, path, proc=proc, allow_fuse=allow_fuse)
        except (GpumemprofError, OSError, ValueError):
            return cls(None)
        if os.fstat(fd).st_uid != user:
            os.close(fd)
            return cls(None)
        return cls(fd)

    @property
    def present(self) -> bool:
        """Whether there is a map."""
        return self._fd is not None

    def names(self, addresses: Iterable[int]) -> dict[int, str]:
        """The names of those addresses that the map covers, as it is now."""
        found: dict[int, str] = {}
        if self._fd is None:
            return found
        wanted = sorted(set(addresses))
        rest = b""
        lines_left, matches_left = MAX_LINES, MAX_MATCHES
        for offset in range(0, MAX_BYTES, _STEP):
            try:
                data = os.pread(self._fd, _STEP, offset)
            except OSError:
                break
            lines = (rest + data).split(b"\n")
            rest = lines.pop()[:MAX_NAME]
            for line in lines[:lines_left]:
                matches_left -= _match(line, wanted, found)
                if matches_left <= 0:
                    return found
            lines_left -= len(lines)
            if len(data) < _STEP or lines_left <= 0:
                break
        return found

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __del__(self) -> None:
        self.close()


def _match(line: bytes, wanted: list[int], found: dict[int, str]) -> int:
    """Note the addresses a line covers; returns how many."""
    fields = line.split(None, 2)
    if len(fields) != 3 or len(fields[0]) > _MAX_DIGITS or len(fields[1]) > _MAX_DIGITS:
        return 0
    try:
        start, size = int(fields[0], 16), int(fields[1], 16)
    except ValueError:
        return 0
    first = bisect.bisect_left(wanted, start)
    last = bisect.bisect_left(wanted, start + size, first)
    if first < last:
        name = fields[2][:MAX_NAME].decode("utf-8", "replace").rstrip()
        found.update(dict.fromkeys(wanted[first:last], name))
    return last - first


def _inner_pid_and_user(pid: int, proc: Path) -> tuple[int, int]:
    """(pid in the process's own pid namespace, effective user id)."""
    inner, user = pid, -1
    for line in (proc / str(pid) / "status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "NSpid":
            inner = int(value.split()[-1])
        elif name == "Uid":
            user = int(value.split()[1])
    return inner, user
