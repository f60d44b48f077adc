"""What the ledger is told. Pure values, in the order the kernel saw them.

Addresses, handles and contexts are the driver's numbers of the process that used them; sizes
are bytes; times are nanoseconds of CLOCK_MONOTONIC; ``stack`` is an opaque identity (equal
stacks of one process have equal ids); ``device`` is the CUDA ordinal as the process sees it,
``UNKNOWN_DEVICE`` where nothing told.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

from gpumemprof.process.identity import ProcessId

UNKNOWN_DEVICE = -1


class MemoryKind(enum.Enum):
    """Kinds of memory. Pinned host memory is never added to GPU memory."""

    DEVICE = "device"
    MANAGED = "managed"
    ARRAY = "array"
    PINNED_HOST = "pinned_host"

    # Members are singletons; Enum's own hash is Python code that hashes the name, on every event.
    __hash__ = object.__hash__

    @property
    def on_gpu(self) -> bool:
        """Whether the kind is counted as GPU memory."""
        return self is not MemoryKind.PINNED_HOST


class AddressSpace(enum.Enum):
    """Numbers of one space never name an object of another: an array can equal an address."""

    DEVICE = "device"
    """Device and managed pointers, and what async and pool calls return."""
    HOST = "host"
    """Pinned or registered host pointers."""
    ARRAY = "array"
    """CUDA array and mipmapped-array handles."""


@dataclass(frozen=True, slots=True)
class Allocated:
    """A call obtained ``size`` bytes at ``address``."""

    process: ProcessId
    time_ns: int
    call: str
    kind: MemoryKind
    space: AddressSpace
    device: int
    context: int
    address: int
    size: int
    stack: int


@dataclass(frozen=True, slots=True)
class FreeEntered:
    """A free was entered: the entry leaves the ledger now, since another thread may get the same
    address before the free returns. ``address`` 0 is nothing."""

    process: ProcessId
    thread: int
    time_ns: int
    call: str
    space: AddressSpace
    address: int


@dataclass(frozen=True, slots=True)
class FreeFailed:
    """The free that ``thread`` entered last failed with CUDA error ``error``: what it took out
    comes back."""

    process: ProcessId
    thread: int
    time_ns: int
    call: str
    error: int


@dataclass(frozen=True, slots=True)
class AllocationFailed:
    """A call failed with CUDA error ``error`` (2: out of memory). Nothing is counted."""

    process: ProcessId
    time_ns: int
    call: str
    kind: MemoryKind
    device: int
    requested: int
    error: int
    stack: int


@dataclass(frozen=True, slots=True)
class PhysicalCreated:
    """cuMemCreate: ``size`` bytes of physical memory behind ``handle``. They live until the handle
    is released as often as it was obtained and every mapping of it is unmapped."""

    process: ProcessId
    time_ns: int
    call: str
    kind: MemoryKind
    device: int
    handle: int
    size: int
    stack: int


@dataclass(frozen=True, slots=True)
class HandleRetained:
    """cuMemRetainAllocationHandle gave one more reference to ``handle``, for what is mapped at
    ``address``."""

    process: ProcessId
    time_ns: int
    handle: int
    address: int


@dataclass(frozen=True, slots=True)
class Mapped:
    """cuMemMap: ``handle`` is mapped at [address, address + size)."""

    process: ProcessId
    time_ns: int
    handle: int
    address: int
    size: int


@dataclass(frozen=True, slots=True)
class UnmapEntered:
    """cuMemUnmap of [address, address + size) was entered; it may cover several mappings."""

    process: ProcessId
    thread: int
    time_ns: int
    call: str
    address: int
    size: int


@dataclass(frozen=True, slots=True)
class ReleaseEntered:
    """cuMemRelease of one reference to ``handle`` was entered."""

    process: ProcessId
    thread: int
    time_ns: int
    call: str
    handle: int


@dataclass(frozen=True, slots=True)
class Imported:
    """Memory of another owner became visible (IPC, shareable handle, external memory): a reference,
    never counted; its later free, unmap or release is expected and not unknown.

    ``space`` None: ``number`` is a VMM handle."""

    process: ProcessId
    time_ns: int
    call: str
    space: AddressSpace | None
    number: int


@dataclass(frozen=True, slots=True)
class ContextEnded:
    """A context was destroyed or reset with success: what was allocated under it ended with it.
    VMM memory belongs to no context and stays."""

    process: ProcessId
    time_ns: int
    call: str
    context: int


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    """Exit, exec or loss of the process: everything it held ended. ``reason`` is for the report."""

    process: ProcessId
    time_ns: int
    reason: str


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """The program asked the driver for free and total memory of ``device`` and was told this."""

    process: ProcessId
    time_ns: int
    device: int
    free: int
    total: int


LedgerEvent: TypeAlias = (
    Allocated
    | FreeEntered
    | FreeFailed
    | AllocationFailed
    | PhysicalCreated
    | HandleRetained
    | Mapped
    | UnmapEntered
    | ReleaseEntered
    | Imported
    | ContextEnded
    | ProcessEnded
    | MemoryInfo
)
