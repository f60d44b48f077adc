"""Profiles in files."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tempfile
from pathlib import Path

from gpumemprof.errors import UsageError
from gpumemprof.profile import pprof
from gpumemprof.profile.model import Profile
from gpumemprof.profile.text import printable

MAX_FILE = pprof.MAX_UNPACKED
"""Bytes of a file that is read."""


def load(path: str | Path) -> Profile:
    """The profile in a pprof file; ``-`` is standard input.

    Raises UsageError with one sentence that names the file: it is not there, is no regular file
    or pipe, is no profile of ours, or is damaged."""
    name = "standard input" if str(path) == "-" else printable(str(path))
    try:
        data = _read(path)
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror or error}") from error
    try:
        if len(data) > MAX_FILE:
            raise UsageError(f"the file has more than {MAX_FILE:,} bytes, the limit")
        return pprof.decode(data)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from error


def _read(path: str | Path) -> bytes:
    """At most one byte more than the limit, so that the caller can tell."""
    if str(path) == "-":
        return sys.stdin.buffer.read(MAX_FILE + 1)
    with Path(path).open("rb") as file:
        if stat.S_ISCHR(os.fstat(file.fileno()).st_mode):
            raise OSError("it is a device")
        return file.read(MAX_FILE + 1)


def write_text(path: str | Path, text: str) -> None:
    """Write ``text`` to a file, whole or not at all: a reader never sees half of it.

    Raises UsageError if it cannot be written."""
    write_bytes(path, text.encode())


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write ``data`` to a file, whole or not at all; ``-`` is standard output.

    What is no regular file (a pipe, /dev/stdout) is written to as it is, and so is what a link
    leads to, as far as the kernel follows links for us. Raises UsageError if it cannot be
    written."""
    if str(path) == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    path = Path(path)
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            path.write_bytes(data)
            return
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                os.fchmod(file.fileno(), _mode(path))
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UsageError(
            f"{printable(str(path))} cannot be written: {error.strerror or error}"
        ) from error


def _mode(path: Path) -> int:
    """The mode that a file has, or that a new one gets."""
    with contextlib.suppress(OSError):
        return stat.S_IMODE(path.stat().st_mode)
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask


def write_somewhere(path: Path, data: bytes) -> Path:
    """Write ``data`` to ``path``, or to a new file in the temporary directory where that fails:
    what took long to record is not lost to a full disk. Returns where it is.

    Raises UsageError if neither can be written."""
    try:
        write_bytes(path, data)
    except UsageError as error:
        try:
            descriptor, name = tempfile.mkstemp(prefix="gpumemprof-", suffix=f"-{path.name[-100:]}")
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
        except OSError as second:
            raise UsageError(f"{error}, nor can a temporary file: {second}") from error
        return Path(name)
    return path
