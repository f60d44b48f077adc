"""What tells one file from another, as a key for caches shared by processes."""

from __future__ import annotations

import ctypes
import hashlib
import os
from typing import NamedTuple

from gpumemprof.process.libc import last_error, libc

OVERLAYFS_MAGIC = 0x794C7630
BTRFS_MAGIC = 0x9123683E


class FileKey(NamedTuple):
    """Identity of a file's content, as far as the kernel vouches for it.

    A build id is not part of it: a hostile file can carry the build id of another tenant's library
    and would then give that tenant wrong names. ``ctime_ns`` is set by the kernel on every change
    of content or metadata and cannot be chosen. ``device`` is 0 on overlayfs: each overlay mount
    has a device number of its own, so one image layer used by two containers would be two files;
    there inode, size and both times are those of the layer's file. ``content`` is the digest of
    what has no inode (the vDSO), else empty.
    """

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    content: bytes = b""


def filesystem_type(fd: int) -> int:
    """The ``f_type`` of ``statfs(2)`` of the file system that holds ``fd``. Raises OSError."""
    # struct statfs is 120 bytes on 64-bit Linux and begins with f_type, a signed long.
    buffer = ctypes.create_string_buffer(256)
    if libc().fstatfs(fd, buffer) != 0:
        raise last_error()
    return int.from_bytes(buffer.raw[:8], "little") & 0xFFFFFFFF


def real_file_key(fd: int) -> FileKey:
    """The key of an open file; equal for two paths to one file. Raises OSError."""
    status = os.fstat(fd)
    on_overlay = filesystem_type(fd) == OVERLAYFS_MAGIC
    return FileKey(
        device=0 if on_overlay else status.st_dev,
        inode=status.st_ino,
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
    )


def content_key(data: bytes) -> FileKey:
    """The key of something that has no inode, by its bytes."""
    return FileKey(0, 0, len(data), 0, 0, hashlib.sha256(data).digest())
