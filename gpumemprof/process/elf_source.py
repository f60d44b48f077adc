"""Where the bytes of an ELF file come from, read in place and bounded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Protocol

from gpumemprof.errors import RemoteDataError

MAX_READ = 64 << 20
"""Largest single read, bytes."""


class Source(Protocol):
    """Random access to bytes that someone else chose."""

    size: int

    def read(self, offset: int, size: int) -> bytes:
        """Exactly ``size`` bytes from ``offset``; RemoteDataError when they are not there."""

    def close(self) -> None:
        """Give back what is held; later reads raise RemoteDataError."""


class FileSource:
    """An open file, read with ``pread``.

    Not mapped: the profiled side may truncate its file, and a mapped page that is gone kills the
    reader (SIGBUS); and pages touched through a mapping would count as memory of ours.
    """

    def __init__(self, fd: int) -> None:
        """Takes over ``fd``."""
        self._fd = fd
        self.size = os.fstat(fd).st_size

    @property
    def fd(self) -> int:
        """The descriptor, -1 once closed."""
        return self._fd

    def read(self, offset: int, size: int) -> bytes:
        """Exactly ``size`` bytes from ``offset``."""
        if size < 0 or size > MAX_READ or offset < 0 or offset + size > self.size:
            raise RemoteDataError(f"{size} bytes at {offset:#x} are outside the file")
        if self._fd < 0:
            raise RemoteDataError("the file is closed")
        try:
            data = os.pread(self._fd, size, offset)
        except OSError as error:
            raise RemoteDataError(f"the file cannot be read: {error.strerror}") from error
        while len(data) < size:  # a network file system may answer in pieces
            try:
                more = os.pread(self._fd, size - len(data), offset + len(data))
            except OSError as error:
                raise RemoteDataError(f"the file cannot be read: {error.strerror}") from error
            if not more:
                raise RemoteDataError("the file was truncated")
            data += more
        return data

    def close(self) -> None:
        """Close the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()


class BytesSource:
    """Bytes in memory: the vDSO, a decompressed ``.gnu_debugdata``."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read(self, offset: int, size: int) -> bytes:
        """Exactly ``size`` bytes from ``offset``."""
        if size < 0 or offset < 0 or offset + size > self.size:
            raise RemoteDataError(f"{size} bytes at {offset:#x} are outside the file")
        return self._data[offset : offset + size]

    def close(self) -> None:
        """Let the bytes go."""
        self._data, self.size = b"", 0


def chunks(source: Source, offset: int, size: int, step: int) -> Iterator[bytes]:
    """``size`` bytes from ``offset`` in pieces of ``step`` bytes, the last one shorter."""
    for start in range(0, size, step):
        yield source.read(offset + start, min(step, size - start))


def c_string(source: Source, offset: int, limit: int) -> bytes:
    """The NUL-terminated bytes at ``offset``; RemoteDataError when longer than ``limit``."""
    step = 128
    data = b""
    while len(data) <= limit:
        piece = source.read(offset + len(data), min(step, source.size - offset - len(data)))
        if not piece:
            break
        end = piece.find(b"\0")
        if end >= 0:
            data += piece[:end]
            if len(data) > limit:
                break
            return data
        data += piece
        step = min(step * 4, limit + 1)
    raise RemoteDataError(f"a string at {offset:#x} does not end within {limit} bytes")
