"""Which file system an open file is on, told without a question to the file system itself.

``fstat`` and ``fstatfs`` of a file on FUSE ask its server, which may never answer (seen: both wait
for ever, as does looking up a name). ``statx`` with AT_STATX_DONT_SYNC does not, and tells the
mount; ``/proc/PID/mountinfo`` tells what is mounted.
"""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from typing import NamedTuple

from gpumemprof.process import procfs
from gpumemprof.process.libc import last_error, libc

_AT_EMPTY_PATH, _AT_STATX_DONT_SYNC = 0x1000, 0x4000
_STATX_TYPE, _STATX_MODE, _STATX_INO, _STATX_MNT_ID = 0x1, 0x2, 0x100, 0x1000
_STATX_SIZE = 256
MAX_MOUNTINFO = 16 << 20


class OpenFile(NamedTuple):
    """``mode``: as ``st_mode``. ``mount``: the mount's id. ``device``: as ``os.makedev``.
    ``node``: of a device node, the device it stands for."""

    mode: int
    mount: int
    device: int
    node: int


def inspect(fd: int) -> OpenFile:
    """What the kernel itself knows of an open file (O_PATH is enough). Raises OSError."""
    buffer = ctypes.create_string_buffer(_STATX_SIZE)
    wanted = _STATX_TYPE | _STATX_MODE | _STATX_INO | _STATX_MNT_ID
    flags = _AT_EMPTY_PATH | _AT_STATX_DONT_SYNC
    if libc().statx(fd, b"", flags, wanted, buffer) != 0:
        raise last_error()
    # struct statx: stx_mode at 28, stx_rdev_* at 128, stx_dev_* at 136, stx_mnt_id at 144
    (mode,) = struct.unpack_from("<H", buffer, 28)
    *node, major, minor, mount = struct.unpack_from("<IIIIQ", buffer, 128)
    return OpenFile(mode, mount, os.makedev(major, minor), os.makedev(*node))


def filesystem_name(pid: int, file: OpenFile, proc: Path = procfs.PROC) -> str | None:
    """The type of file system, such as ``ext4`` or ``fuse.sshfs``, of a file that was reached
    through the root or a mapping of ``pid``; None if the process no longer has it mounted.

    Raises ProcessGone, and RemoteDataError when the mounts cannot be read.
    """
    data = procfs.read_whole(pid, "mountinfo", MAX_MOUNTINFO, proc)
    start = b"%d " % file.mount
    for line in data.split(b"\n"):
        if line.startswith(start):
            # ID PARENT MAJOR:MINOR ROOT PLACE OPTIONS FIELDS... - TYPE SOURCE OPTIONS; blanks in
            # paths are escaped
            _, separator, rest = line.partition(b" - ")
            return os.fsdecode(rest.split(b" ", 1)[0]) if separator else None
    return None


def is_fuse(name: str) -> bool:
    """Whether a file system of this type is a program's."""
    return name in ("fuse", "fuseblk") or name.startswith("fuse.")
