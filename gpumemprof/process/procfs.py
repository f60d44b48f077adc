"""What /proc says of a process, as values; every read is bounded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpumemprof.errors import ProcessGone, RemoteDataError
from gpumemprof.process.identity import NS_PER_TICK

PROC = Path("/proc")
_MAX_COMMAND = 4096
_PF_EXITING = 4
"""Of the flags in ``/proc/PID/stat`` (include/linux/sched.h)."""


@dataclass(frozen=True, slots=True)
class Stat:
    """Of ``/proc/PID/stat``: ``start_ns`` is in ns since boot, in whole clock ticks."""

    comm: str
    state: str
    parent: int
    start_ns: int
    exiting: bool = False
    """It has begun to end: its control groups may be the root's already."""


def parse_stat(text: str) -> Stat:
    """Parse ``/proc/PID/stat``. The name may hold spaces and parentheses: it ends at the last one.

    >>> parse_stat("7 (a) b) S 1 7 7 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0").comm
    'a) b'
    """
    start, end = text.index("("), text.rindex(")")
    fields = text[end + 2 :].split()
    return Stat(
        comm=text[start + 1 : end],
        state=fields[0],
        parent=int(fields[1]),
        start_ns=int(fields[19]) * NS_PER_TICK,
        exiting=fields[0] in {"Z", "X"} or bool(int(fields[6]) & _PF_EXITING),
    )


def read_stat(pid: int, proc: Path = PROC) -> Stat:
    """Raises ProcessGone when there is no such process."""
    try:
        return parse_stat((proc / str(pid) / "stat").read_text(errors="replace"))
    except (OSError, ValueError, IndexError):
        raise ProcessGone(f"there is no process {pid}") from None


def runs(pid: int, start_ns: int, proc: Path = PROC) -> bool:
    """Whether ``pid`` is still the process that started at ``start_ns`` and has not ended."""
    try:
        stat = read_stat(pid, proc)
    except ProcessGone:
        return False
    return stat.start_ns == start_ns and stat.state not in {"Z", "X"}


def read_command(pid: int, proc: Path = PROC) -> str:
    """The command line, arguments separated by spaces, cut at 4096 bytes; "" if it has none."""
    try:
        with (proc / str(pid) / "cmdline").open("rb") as file:
            data = file.read(_MAX_COMMAND)
    except OSError:
        return ""
    return data.rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")


def read_whole(pid: int, name: str, limit: int, proc: Path = PROC) -> bytes:
    """A file of a process in ``/proc``, of at most ``limit`` bytes (whole MiB). Raises ProcessGone
    when there is no such process, RemoteDataError when the file cannot be read or is larger."""
    path = proc / str(pid) / name
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessGone(f"process {pid} ended") from None
    except OSError as error:
        raise RemoteDataError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > limit:
        raise RemoteDataError(f"{path} is larger than {limit >> 20} MiB")
    return data


def thread_group(pid: int, proc: Path = PROC) -> int:
    """The process that thread ``pid`` belongs to; itself if it is one. Raises ProcessGone."""
    try:
        with (proc / str(pid) / "status").open("rb") as file:
            for line in file:
                if line.startswith(b"Tgid:"):
                    return int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    raise ProcessGone(f"there is no process {pid}")


def virtual_size(pid: int, proc: Path = PROC) -> int:
    """Size of the address space in pages: it changes whenever a library is mapped. 0 if gone."""
    try:
        return int((proc / str(pid) / "statm").read_text().split(maxsplit=1)[0])
    except (OSError, ValueError, IndexError):
        return 0


def pids(proc: Path = PROC) -> Iterator[int]:
    """All processes that can be seen now."""
    for name in os.listdir(proc):  # noqa: PTH208 - thousands of entries, no Path for each
        if name.isdigit():
            yield int(name)


def descendants(root: int, proc: Path = PROC) -> list[int]:
    """Children of a process, and theirs, as far as they can be seen."""
    children: dict[int, list[int]] = {}
    for pid in pids(proc):
        try:
            children.setdefault(read_stat(pid, proc).parent, []).append(pid)
        except ProcessGone:
            continue
    found, queue = [], [root]
    while queue:
        # Popped: pids that were reused while this was read could form a circle.
        for child in children.pop(queue.pop(), ()):
            found.append(child)
            queue.append(child)
    return found


def in_initial_pid_namespace(proc: Path = PROC) -> bool:
    """Whether this process's pids are the kernel's own: the probes tell those."""
    initial = 0xEFFFFFFC  # PROC_PID_INIT_INO
    try:
        return str(initial) in str((proc / "self/ns/pid").readlink())
    except OSError:
        return False
