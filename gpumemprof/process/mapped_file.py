"""Open files of another process safely, and read its memory.

The process chooses every path it shows: nothing here follows a path out of the process's own root,
opens anything but a regular file, or takes a file for another one.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from pathlib import Path

from gpumemprof.errors import ProcessGone, RemoteDataError
from gpumemprof.process.file_key import BTRFS_MAGIC, OVERLAYFS_MAGIC, filesystem_type
from gpumemprof.process.libc import last_error, libc
from gpumemprof.process.maps import Mapping
from gpumemprof.process.mounts import filesystem_name, inspect, is_fuse

PROC = Path("/proc")
MAX_MEMORY_READ = 1 << 20
_SYS_OPENAT2 = 437  # the same number on every architecture
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_IN_ROOT = 0x10


def open_mapped(pid: int, mapping: Mapping, *, proc: Path = PROC, allow_fuse: bool = True) -> int:
    """A read-only descriptor of the very file that stands behind ``mapping``; the caller closes it.

    First through ``/proc/PID/map_files``, which leads to the mapped inode even when it was deleted
    or replaced (needs CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN), else through the path inside the
    process's root, checked to be that inode still.

    ``allow_fuse``: whether to open files on FUSE. A FUSE server can delay a read for ever, so an
    agent that serves several tenants refuses; a user looking at own processes does not.

    Raises RemoteDataError when the file is gone, replaced or not a regular file, ProcessGone when
    the process is.
    """
    if not mapping.file_backed:
        raise RemoteDataError("no file stands behind this memory")
    try:
        link = proc / str(pid) / "map_files" / f"{mapping.start:x}-{mapping.end:x}"
        handle = os.open(link, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return _open_mapped_by_path(pid, mapping, proc, allow_fuse)
    if allow_fuse:
        return _reopen_regular(handle, mapping.path)
    try:
        _refuse_fuse(handle, pid, mapping.path, proc)
    except _UnknownMountError:
        # Before Linux 6.8 this leads below overlayfs, to a mount that nobody has.
        os.close(handle)
        return _open_mapped_by_path(pid, mapping, proc, allow_fuse)
    except BaseException:
        os.close(handle)
        raise
    return _reopen_regular(handle, mapping.path)


def _open_mapped_by_path(pid: int, mapping: Mapping, proc: Path, allow_fuse: bool) -> int:
    if mapping.deleted or not mapping.path.startswith("/"):
        raise RemoteDataError(f"{mapping.path} was deleted or replaced since it was mapped")
    try:
        fd = open_in_root(pid, mapping.path, proc=proc, allow_fuse=allow_fuse)
    except ProcessGone:
        # It ended, but most processes see the files that we see; whether this is the one that
        # was mapped is checked below either way.
        fd = open_in_root(os.getpid(), mapping.path, proc=proc, allow_fuse=allow_fuse)
    status = os.fstat(fd)
    # On overlayfs and btrfs st_dev is a number of the mount or subvolume, not the device that
    # maps shows; the inode number is the same in both.
    same_device = status.st_dev == mapping.device or filesystem_type(fd) in (
        OVERLAYFS_MAGIC,
        BTRFS_MAGIC,
    )
    if status.st_ino != mapping.inode or not same_device:
        os.close(fd)
        raise RemoteDataError(f"{mapping.path} is no longer the file that is mapped")
    return fd


def open_in_root(pid: int, path: str, *, proc: Path = PROC, allow_fuse: bool = True) -> int:
    """A read-only descriptor of the regular file that ``path`` names for the process.

    Symbolic links are resolved inside the process's root (``openat2`` with RESOLVE_IN_ROOT); on
    kernels without that call (before 5.6) a path through a link is refused. Raises ProcessGone,
    and RemoteDataError when there is no such regular file.
    """
    return _reopen_regular(_handle_in_root(pid, path, proc, allow_fuse), path)


def open_directory_in_root(
    pid: int, path: str, *, proc: Path = PROC, allow_fuse: bool = True
) -> int:
    """An O_PATH descriptor of a directory as the process names it: to look into, not to list.
    Raises as ``open_in_root`` does."""
    handle = _handle_in_root(pid, path, proc, allow_fuse)
    if not stat.S_ISDIR(inspect(handle).mode):
        os.close(handle)
        raise RemoteDataError(f"{path} is no directory")
    return handle


def _handle_in_root(pid: int, path: str, proc: Path, allow_fuse: bool) -> int:
    """An O_PATH descriptor of whatever ``path`` names for the process."""
    if "\0" in path:
        raise RemoteDataError("a path holds a NUL byte")
    try:
        root = os.open(proc / str(pid) / "root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise ProcessGone(f"process {pid} ended") from None
    except OSError as error:
        raise RemoteDataError(
            f"the root of process {pid} cannot be opened: {error.strerror}"
        ) from error
    try:
        handle = _open_beneath(root, path)
    except OSError as error:
        raise RemoteDataError(f"{path} cannot be opened: {error.strerror}") from error
    finally:
        os.close(root)
    if not allow_fuse:
        try:
            _refuse_fuse(handle, pid, path, proc)
        except BaseException:
            os.close(handle)
            raise
    return handle


def _open_beneath(root: int, path: str) -> int:
    """An O_PATH descriptor of ``path`` as it looks with ``root`` as root directory."""
    how = (ctypes.c_uint64 * 3)(
        os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS
    )
    fd = libc().syscall(
        ctypes.c_long(_SYS_OPENAT2),
        ctypes.c_int(root),
        ctypes.c_char_p(os.fsencode(path)),
        ctypes.byref(how),
        ctypes.c_size_t(ctypes.sizeof(how)),
    )
    if fd >= 0:
        return int(fd)
    error = last_error()
    # EPERM: the system call filters of older container runtimes know no openat2.
    if error.errno in (errno.ENOSYS, errno.EPERM):
        return _open_without_links(root, path)
    raise error


def _open_without_links(root: int, path: str) -> int:
    """``_open_beneath`` one component at a time; a symbolic link or ``..`` is refused."""
    directory = os.dup(root)
    try:
        names = [name for name in path.split("/") if name not in ("", ".")]
        for position, name in enumerate(names):
            flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
            if name == "..":
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            if position < len(names) - 1:
                flags |= os.O_DIRECTORY
            inner = os.open(name, flags, dir_fd=directory)
            os.close(directory)
            directory = inner
        if stat.S_ISLNK(os.fstat(directory).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        return os.dup(directory)
    finally:
        os.close(directory)


class _UnknownMountError(RemoteDataError):
    """The process does not have mounted what the file is on."""


def _refuse_fuse(handle: int, pid: int, path: str, proc: Path) -> None:
    """Raises RemoteDataError if a file is on FUSE or may be; asks nothing of its file system."""
    try:
        file = inspect(handle)
    except OSError as error:
        raise RemoteDataError(f"{path} cannot be looked at: {error.strerror}") from error
    name = filesystem_name(pid, file, proc)
    if name is not None and is_fuse(name):
        raise RemoteDataError(f"{path} is on a FUSE file system, which is not trusted")
    # Only what is on a device of its own is surely none.
    if name is None and os.major(file.device) == 0:
        raise _UnknownMountError(f"{path} is on a file system that cannot be told")


def _reopen_regular(handle: int, path: str) -> int:
    """Open for reading what an O_PATH descriptor holds, once it is known to be a regular file:
    opening a device can have effects and opening a pipe can block. Closes ``handle``."""
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise RemoteDataError(f"{path} is not a regular file")
        return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise RemoteDataError(f"{path} cannot be opened: {error.strerror}") from error
    finally:
        os.close(handle)


def read_memory(pid: int, address: int, size: int, *, proc: Path = PROC) -> bytes:
    """``size`` bytes of the process's memory (at most MAX_MEMORY_READ).

    Raises ProcessGone, and RemoteDataError when not all of it can be read.
    """
    if not 0 <= size <= MAX_MEMORY_READ or not 0 <= address < 1 << 63:
        raise RemoteDataError(f"{size} bytes at {address:#x} are not read from a process")
    try:
        fd = os.open(proc / str(pid) / "mem", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessGone(f"process {pid} ended") from None
    except OSError as error:
        raise RemoteDataError(
            f"memory of process {pid} cannot be read: {error.strerror}"
        ) from error
    try:
        data = os.pread(fd, size, address)
    except OSError as error:
        raise RemoteDataError(
            f"memory of process {pid} at {address:#x} cannot be read: {error.strerror}"
        ) from error
    finally:
        os.close(fd)
    if len(data) != size:
        raise RemoteDataError(f"memory of process {pid} at {address:#x} ends early")
    return data
