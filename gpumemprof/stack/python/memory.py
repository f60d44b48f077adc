"""Reading another process's memory, page faults and vanished processes included."""

from __future__ import annotations

import contextlib
import os
import struct
from typing import Protocol

from gpumemprof.errors import ProcessGone, RemoteDataError

MAX_READ = 8 << 20
"""No structure read here is larger, bytes."""
_MAX_ADDRESS = 1 << 47  # user space, x86-64


class Memory(Protocol):
    """Bytes by address. Whatever is read is another program's: never trust it."""

    def read_some(self, address: int, size: int) -> bytes:
        """Up to ``size`` bytes; fewer where the memory ends, none if it is not mapped."""
        ...


def read_exactly(memory: Memory, address: int, size: int) -> bytes:
    """``size`` bytes at ``address``; RemoteDataError if they are not all there."""
    if not 0 <= size <= MAX_READ or not 0 < address <= _MAX_ADDRESS - size:
        raise RemoteDataError(f"not an address of a process: {address:#x}, {size} bytes")
    data = memory.read_some(address, size)
    if len(data) != size:
        raise RemoteDataError(f"memory at {address:#x} cannot be read")
    return data


def read_u64(memory: Memory, address: int) -> int:
    """The pointer-sized number at ``address``; RemoteDataError if it is not there."""
    (value,) = struct.unpack("<Q", read_exactly(memory, address, 8))
    return int(value)


class ProcessMemory:
    """``/proc/PID/mem``, opened once.

    The file stands for the address space it was opened on, not for the pid: after exec or exit
    it reads nothing, so data of another program can never be taken for this one's.
    """

    __slots__ = ("_fd",)

    def __init__(self, pid: int) -> None:
        """Raises ProcessGone, or RemoteDataError without the right to trace the process."""
        try:
            self._fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, ProcessLookupError):
            raise ProcessGone(f"process {pid} ended") from None
        except OSError as error:
            raise RemoteDataError(f"memory of process {pid}: {error.strerror}") from error

    def read_some(self, address: int, size: int) -> bytes:
        """Up to ``size`` bytes; fewer where the memory ends, none if it is not mapped."""
        if not 0 < address < _MAX_ADDRESS or not 0 < size <= MAX_READ:
            return b""
        try:
            return os.pread(self._fd, size, address)
        except OSError:
            return b""

    def close(self) -> None:
        """Let go of the address space."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> ProcessMemory:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


class CopiedMemory:
    """The memory of a forked child, and of its parent where the child's cannot be read: children
    that end at once are gone before they can be looked at. Code objects that the child made
    itself are told from the parent's by their fingerprints."""

    def __init__(self, child: int, parent: int) -> None:
        """Of pids; a process that is gone already is left out."""
        self._memories: list[ProcessMemory] = []
        for pid in (child, parent):
            with contextlib.suppress(ProcessGone, RemoteDataError):
                self._memories.append(ProcessMemory(pid))

    def read_some(self, address: int, size: int) -> bytes:
        """As ``Memory.read_some``, from the first that has it."""
        for memory in self._memories:
            data = memory.read_some(address, size)
            if data:
                return data
        return b""

    def close(self) -> None:
        """Let go of both."""
        for memory in self._memories:
            memory.close()
        self._memories.clear()
