"""The address space of a process, from ``/proc/PID/maps``: which file stands behind an address."""

from __future__ import annotations

import bisect
import os
import re
from pathlib import Path
from typing import NamedTuple

from gpumemprof.errors import ProcessGone, RemoteDataError
from gpumemprof.process import procfs

MAX_MAPS_BYTES = 64 << 20
"""A process may have ``vm.max_map_count`` mappings (65,530 by default, raised by some databases);
a line is at most a path and 74 bytes."""
MAX_MAPPINGS = 300_000
MAX_CODE_MAPPINGS = 16_384
"""Executable mappings that are kept of one process; programs of this field have some hundred."""
_MAX_ADDRESS = 1 << 64
_CODE_LINE = re.compile(rb"^[0-9a-f]+-[0-9a-f]+ ..x. .*$", re.MULTILINE)
_DELETED = " (deleted)"


class Mapping(NamedTuple):
    """One line of ``/proc/PID/maps``.

    ``start``, ``end``: addresses of the process, ``end`` is not part of it. ``offset``: of
    ``start`` in the file, bytes. ``device``: as ``os.makedev``; with ``inode`` it names the file as
    the kernel sees it (on overlayfs and btrfs not the ``st_dev`` that ``stat`` tells).
    ``path``: as the process sees it, "" for anonymous memory, ``[vdso]`` and the like for the
    kernel's own. ``deleted``: the file was removed or replaced since;
    ``path`` may now name another file.
    """

    start: int
    end: int
    offset: int
    device: int
    inode: int
    path: str
    permissions: str
    deleted: bool

    @property
    def executable(self) -> bool:
        """Whether code in it can run."""
        return self.permissions[2] == "x"

    @property
    def file_backed(self) -> bool:
        """Whether a file stands behind it, named or not (memfd and deleted files included)."""
        return self.inode != 0


class Maps:
    """An immutable snapshot of mappings, sorted by address, none overlapping."""

    __slots__ = ("_starts", "mappings")

    def __init__(self, mappings: tuple[Mapping, ...]) -> None:
        self.mappings = mappings
        self._starts = [m.start for m in mappings]

    def find(self, address: int) -> Mapping | None:
        """The mapping that holds ``address``, or None."""
        index = bisect.bisect_right(self._starts, address) - 1
        if index >= 0:
            mapping = self.mappings[index]
            if address < mapping.end:
                return mapping
        return None

    def named(self, path: str) -> Mapping | None:
        """The first mapping with this path, such as ``[vdso]``."""
        return next((m for m in self.mappings if m.path == path), None)

    def executable(self) -> tuple[Mapping, ...]:
        """The mappings whose code can run."""
        return tuple(m for m in self.mappings if m.executable)

    def __len__(self) -> int:
        return len(self.mappings)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Maps) and self.mappings == other.mappings

    def __hash__(self) -> int:
        return hash(self.mappings)


def parse(text: str) -> Maps:
    """Mappings from the text of ``/proc/PID/maps``.

    Raises RemoteDataError on a line of another form. The kernel writes the file page by page
    while the process goes on mapping, so a mapping may come twice or overlap its neighbour: the
    one that came first stays.
    """
    mappings: list[Mapping] = []
    previous_end = 0
    for line in text.split("\n"):
        if not line:
            continue
        if len(mappings) >= MAX_MAPPINGS:
            raise RemoteDataError(f"more than {MAX_MAPPINGS} mappings")
        mapping = _parse_line(line)
        if mapping.start >= previous_end:
            mappings.append(mapping)
            previous_end = mapping.end
    return Maps(tuple(mappings))


def _parse_line(line: str) -> Mapping:
    fields = line.split(None, 5)
    try:
        start_text, end_text = fields[0].split("-")
        major, minor = fields[3].split(":")
        start, end = int(start_text, 16), int(end_text, 16)
        path = fields[5] if len(fields) == 6 else ""
        permissions = fields[1]
        mapping = Mapping(
            start=start,
            end=end,
            offset=int(fields[2], 16),
            device=os.makedev(int(major, 16), int(minor, 16)),
            inode=int(fields[4]),
            path=_unescaped(path.removesuffix(_DELETED)),
            permissions=permissions,
            deleted=path.endswith(_DELETED),
        )
    except (ValueError, IndexError, OverflowError):
        raise RemoteDataError(f"not a line of /proc/PID/maps: {line[:200]!r}") from None
    if not 0 <= start < end <= _MAX_ADDRESS or len(permissions) != 4 or mapping.offset < 0:
        raise RemoteDataError(f"not a line of /proc/PID/maps: {line[:200]!r}")
    return mapping


def _unescaped(path: str) -> str:
    """The kernel escapes only the newline (``\\012``); a backslash stands for itself."""
    return path.replace("\\012", "\n") if "\\" in path else path


def read(pid: int, proc: Path = Path("/proc")) -> Maps:
    """The mappings of a process now.

    Raises ProcessGone when the process ended (its maps are then empty or unreadable), and
    RemoteDataError beyond the limits above or when permission is missing.
    """
    return parse(os.fsdecode(_text(pid, proc)))


def read_code(pid: int, proc: Path = Path("/proc")) -> Maps:
    """The executable mappings of a process now, the first ``MAX_CODE_MAPPINGS`` of them: a tenth
    of all, and all that is asked of a process every time it may have loaded a library.

    Raises as ``read`` does.
    """
    lines = []
    for match in _CODE_LINE.finditer(_text(pid, proc)):
        lines.append(match[0])
        if len(lines) >= MAX_CODE_MAPPINGS:
            break
    return parse(os.fsdecode(b"\n".join(lines)))


def _text(pid: int, proc: Path) -> bytes:
    data = procfs.read_whole(pid, "maps", MAX_MAPS_BYTES, proc)
    if not data:
        raise ProcessGone(f"process {pid} has no memory any more")
    return data
