"""The one table of hooked calls of libcuda and libcudart; adding a call is adding a row.

A row says what the call does to memory and where in its arguments size, pointer, pitch and device
stand. The same row is handed to the generic BPF program as the attach cookie (bpf/events.h).
Argument positions count from 1, as in the C prototypes. Sources: the CUDA driver API and runtime
API headers' prototypes; symbol variants as exported by libcuda.so.1 (driver 580) and libcudart
12.9 and 13.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, replace


class Library(enum.Enum):
    """Which library exports the call."""

    DRIVER = "libcuda"
    RUNTIME = "libcudart"
    LOADER = "ld"
    """The dynamic linker (glibc) or the C library that contains it (musl)."""


class Mode(enum.IntEnum):
    """How the BPF program treats the call; ``enum call_mode`` of bpf/events.h."""

    ALLOC = 1
    FREE = 2
    RETURN = 3
    RETURN_OUTER = 4
    CONTEXT_SET = 5
    CONTEXT_PUSH = 6
    CONTEXT_POP = 7
    CONTEXT_CREATE = 8
    NOTICE = 9
    DISCOVER = 10
    CONTEXT_DESTROY = 11


class Action(enum.Enum):
    """What the call means to the ledger."""

    ALLOCATE = "allocate"
    FREE = "free"
    VMM_CREATE = "vmm create"
    VMM_RETAIN = "vmm retain"
    VMM_MAP = "vmm map"
    VMM_UNMAP = "vmm unmap"
    VMM_RELEASE = "vmm release"
    IMPORT = "import"
    MEMORY_INFO = "memory info"
    CONTEXT_CREATE = "context create"
    CONTEXT_DESTROY = "context destroy"
    CONTEXT_CURRENT = "context current"
    """Handled in the kernel: it only changes the thread's current context."""
    PRIMARY_RETAIN = "primary context retain"
    PRIMARY_RELEASE = "primary context release"
    PRIMARY_RESET = "primary context reset"
    DEVICE_RESET = "device reset"
    DRIVER_INIT = "driver init"
    LIBRARY_LOADED = "library loaded"


class Memory(enum.Enum):
    """Which kind of memory a call handles, and so whose numbers its pointers are."""

    DEVICE = "device"
    MANAGED = "managed"
    ARRAY = "array"
    HOST = "pinned_host"
    HANDLE = "handle"
    """Handle of physical memory (VMM)."""


class Size(enum.Enum):
    """How the size that was obtained follows from a call's arguments and results."""

    NONE = "none"
    ARGUMENT = "argument"
    """The argument ``size_arg``."""
    PITCH = "pitch"
    """The pitch written by the call times the height, argument ``size_arg``."""
    PITCHED_POINTER = "pitched pointer"
    """cudaPitchedPtr written by the call; the cudaExtent is passed in memory."""
    ARRAY_DESCRIPTOR = "array descriptor"
    """CUDA_ARRAY_DESCRIPTOR read at entry."""
    ARRAY_DESCRIPTOR_V1 = "array descriptor, first interface"
    ARRAY3D_DESCRIPTOR = "3D array descriptor"
    ARRAY3D_DESCRIPTOR_V1 = "3D array descriptor, first interface"
    CHANNELS = "channels"
    """cudaChannelFormatDesc read at entry; width and height are ``size_arg`` and the next."""
    CHANNELS_EXTENT = "channels and extent"
    """cudaChannelFormatDesc read at entry; the cudaExtent is passed in memory."""


class Pointer(enum.Enum):
    """Where the pointer or handle stands."""

    NONE = "none"
    OUT = "out"
    """Written by the call through its first out parameter."""
    ARGUMENT = "argument"
    """The argument ``pointer_arg``."""


@dataclass(frozen=True, slots=True)
class Call:
    """One row. ``out1_bytes`` is what is read through ``out1_arg`` at return."""

    name: str
    library: Library
    action: Action
    mode: Mode
    memory: Memory = Memory.DEVICE
    size: Size = Size.NONE
    size_arg: int = 0
    levels_arg: int = 0
    """Number of mipmap levels, 0 if the call has none."""
    flags_arg: int = 0
    """Flags of an array, 0 if they stand in its descriptor or do not matter."""
    pointer: Pointer = Pointer.NONE
    pointer_arg: int = 0
    pooled: bool = False
    """Memory of a pool, in stream order: it belongs to the device, and outlives its context
    (asked of an H200: a reset left it held, and its free then succeeded)."""
    device_arg: int = 0
    in_arg: int = 0
    in_bytes: int = 0
    out1_arg: int = 0
    out1_bytes: int = 8
    out2_arg: int = 0
    out2_bytes: int = 8
    narrow: bool = False
    """Sizes and device pointers are 32 bits wide, as in the driver's first interface (names
    without _v2): the upper half of a register is then noise."""

    def cookie(self, row: int, file: int) -> int:
        """The attach cookie of this call as row ``row`` of the table, in probed file ``file``."""
        fields = (
            (row, 10),
            (file, 16),
            (self.mode, 4),
            (self.in_arg, 3),
            (self.in_bytes // 4, 5),
            (self.out1_arg, 3),
            (self.out1_bytes // 4 if self.out1_arg else 0, 4),
            (self.out2_arg, 3),
            (self.out2_bytes // 4 if self.out2_arg else 0, 2),
        )
        cookie = shift = 0
        for value, bits in fields:
            if not 0 <= value < 1 << bits:
                raise ValueError(f"{self.name}: {value} does not fit {bits} bits of the cookie")
            cookie |= value << shift
            shift += bits
        return cookie

    @property
    def needs_return(self) -> bool:
        """Whether a return probe is needed (else an entry probe is enough)."""
        return self.mode not in (
            Mode.CONTEXT_SET,
            Mode.CONTEXT_PUSH,
            Mode.CONTEXT_POP,
            Mode.NOTICE,
            Mode.DISCOVER,
        )


_ALLOC = Call("", Library.DRIVER, Action.ALLOCATE, Mode.ALLOC, pointer=Pointer.OUT, out1_arg=1)
_LINEAR = replace(_ALLOC, size=Size.ARGUMENT, size_arg=2)
_POOLED = replace(_LINEAR, pooled=True)
_MANAGED = replace(_LINEAR, memory=Memory.MANAGED)
_PINNED = replace(_LINEAR, memory=Memory.HOST)
_REGISTER = replace(_PINNED, pointer=Pointer.ARGUMENT, pointer_arg=1, out1_arg=0)
_PITCH = replace(_ALLOC, size=Size.PITCH, size_arg=4, out2_arg=2)
_ARRAY = replace(_ALLOC, memory=Memory.ARRAY, in_arg=2)
_FREE = Call("", Library.DRIVER, Action.FREE, Mode.FREE, pointer=Pointer.ARGUMENT, pointer_arg=1)
_FREE_HOST = replace(_FREE, memory=Memory.HOST)
_FREE_ARRAY = replace(_FREE, memory=Memory.ARRAY)
_IMPORT = Call(
    "", Library.DRIVER, Action.IMPORT, Mode.RETURN_OUTER, pointer=Pointer.OUT, out1_arg=1
)
_HANDLE = replace(_IMPORT, memory=Memory.HANDLE)
_INFO = Call("", Library.DRIVER, Action.MEMORY_INFO, Mode.RETURN_OUTER, out1_arg=1, out2_arg=2)
_CONTEXT = Call("", Library.DRIVER, Action.CONTEXT_CREATE, Mode.CONTEXT_CREATE, out1_arg=1)
_DESTROY = Call(
    "", Library.DRIVER, Action.CONTEXT_DESTROY, Mode.CONTEXT_DESTROY,
    pointer=Pointer.ARGUMENT, pointer_arg=1,
)  # fmt: skip
_CURRENT = Call("", Library.DRIVER, Action.CONTEXT_CURRENT, Mode.CONTEXT_SET)
_PRIMARY = Call("", Library.DRIVER, Action.PRIMARY_RELEASE, Mode.RETURN, device_arg=1)
_RESET = Call("", Library.RUNTIME, Action.DEVICE_RESET, Mode.RETURN)


def _rows(library: Library, template: Call, *names: str) -> Iterator[Call]:
    for name in names:
        yield replace(template, name=name, library=library)


def _driver() -> Iterator[Call]:
    def rows(template: Call, *names: str) -> Iterator[Call]:
        return _rows(Library.DRIVER, template, *names)

    yield from rows(Call("", Library.DRIVER, Action.DRIVER_INIT, Mode.DISCOVER), "cuInit")
    yield from rows(_LINEAR, "cuMemAlloc_v2")
    yield from rows(
        _POOLED,
        "cuMemAllocAsync",
        "cuMemAllocAsync_ptsz",
        "cuMemAllocFromPoolAsync",
        "cuMemAllocFromPoolAsync_ptsz",
    )
    yield from rows(replace(_LINEAR, narrow=True, out1_bytes=4), "cuMemAlloc")
    yield from rows(_MANAGED, "cuMemAllocManaged")
    yield from rows(_PITCH, "cuMemAllocPitch_v2")
    narrow_pitch = replace(_PITCH, narrow=True, out1_bytes=4, out2_bytes=4)
    yield from rows(narrow_pitch, "cuMemAllocPitch")
    yield from rows(_PINNED, "cuMemAllocHost_v2", "cuMemHostAlloc")
    yield from rows(replace(_PINNED, narrow=True), "cuMemAllocHost")
    yield from rows(_REGISTER, "cuMemHostRegister_v2", "cuMemHostRegister")
    yield from rows(replace(_ARRAY, size=Size.ARRAY_DESCRIPTOR, in_bytes=24), "cuArrayCreate_v2")
    yield from rows(replace(_ARRAY, size=Size.ARRAY_DESCRIPTOR_V1, in_bytes=16), "cuArrayCreate")
    array3d = replace(_ARRAY, size=Size.ARRAY3D_DESCRIPTOR, in_bytes=36)
    yield from rows(array3d, "cuArray3DCreate_v2")
    yield from rows(replace(array3d, levels_arg=3), "cuMipmappedArrayCreate")
    yield from rows(
        replace(_ARRAY, size=Size.ARRAY3D_DESCRIPTOR_V1, in_bytes=24), "cuArray3DCreate"
    )
    yield from rows(_FREE, "cuMemFree_v2", "cuMemFreeAsync", "cuMemFreeAsync_ptsz")
    yield from rows(replace(_FREE, narrow=True), "cuMemFree")
    yield from rows(_FREE, "cuIpcCloseMemHandle")
    yield from rows(_FREE_HOST, "cuMemFreeHost", "cuMemHostUnregister")
    yield from rows(_FREE_ARRAY, "cuArrayDestroy", "cuMipmappedArrayDestroy")

    # Virtual memory management: physical memory, its references and its mappings.
    create = replace(_ALLOC, action=Action.VMM_CREATE, size=Size.ARGUMENT, size_arg=2)
    yield from rows(replace(create, in_arg=3, in_bytes=16), "cuMemCreate")
    retain = replace(_HANDLE, action=Action.VMM_RETAIN, pointer_arg=2)
    yield from rows(retain, "cuMemRetainAllocationHandle")
    vmm_map = Call("", Library.DRIVER, Action.VMM_MAP, Mode.RETURN_OUTER, memory=Memory.HANDLE)
    yield from rows(vmm_map, "cuMemMap")
    yield from rows(replace(_FREE, action=Action.VMM_UNMAP), "cuMemUnmap")
    release = replace(_FREE, action=Action.VMM_RELEASE, memory=Memory.HANDLE)
    yield from rows(release, "cuMemRelease")

    # References to memory of another owner, and multicast objects: never counted.
    yield from rows(_HANDLE, "cuMemImportFromShareableHandle", "cuMulticastCreate")
    yield from rows(_IMPORT, "cuIpcOpenMemHandle_v2", "cuIpcOpenMemHandle")
    yield from rows(_IMPORT, "cuMemPoolImportPointer", "cuExternalMemoryGetMappedBuffer")
    yield from rows(
        replace(_IMPORT, memory=Memory.ARRAY), "cuExternalMemoryGetMappedMipmappedArray"
    )

    yield from rows(_INFO, "cuMemGetInfo_v2")
    yield from rows(replace(_INFO, narrow=True, out1_bytes=4, out2_bytes=4), "cuMemGetInfo")
    yield from rows(replace(_CONTEXT, device_arg=3), "cuCtxCreate_v2", "cuCtxCreate")
    yield from rows(replace(_CONTEXT, device_arg=4), "cuCtxCreate_v4")
    yield from rows(replace(_CONTEXT, device_arg=5), "cuCtxCreate_v3")
    yield from rows(_DESTROY, "cuCtxDestroy_v2", "cuCtxDestroy")
    yield from rows(_CURRENT, "cuCtxSetCurrent")
    yield from rows(
        replace(_CURRENT, mode=Mode.CONTEXT_PUSH), "cuCtxPushCurrent_v2", "cuCtxPushCurrent"
    )
    yield from rows(
        replace(_CURRENT, mode=Mode.CONTEXT_POP), "cuCtxPopCurrent_v2", "cuCtxPopCurrent"
    )
    primary_retain = replace(_PRIMARY, action=Action.PRIMARY_RETAIN, device_arg=2, out1_arg=1)
    yield from rows(primary_retain, "cuDevicePrimaryCtxRetain")
    yield from rows(_PRIMARY, "cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxRelease")
    primary_reset = replace(_PRIMARY, action=Action.PRIMARY_RESET)
    yield from rows(primary_reset, "cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxReset")


def _runtime() -> Iterator[Call]:
    def rows(template: Call, *names: str) -> Iterator[Call]:
        return _rows(Library.RUNTIME, template, *names)

    yield from rows(_LINEAR, "cudaMalloc")
    yield from rows(_POOLED, "cudaMallocAsync", "cudaMallocAsync_ptsz")
    yield from rows(_POOLED, "cudaMallocFromPoolAsync", "cudaMallocFromPoolAsync_ptsz")
    yield from rows(_MANAGED, "cudaMallocManaged")
    yield from rows(_PITCH, "cudaMallocPitch")
    yield from rows(replace(_ALLOC, size=Size.PITCHED_POINTER, out1_bytes=32), "cudaMalloc3D")
    channels = replace(_ARRAY, size=Size.CHANNELS, size_arg=3, in_bytes=20)
    yield from rows(channels, "cudaMallocArray")
    extent = replace(channels, size=Size.CHANNELS_EXTENT, size_arg=0)
    yield from rows(extent, "cudaMalloc3DArray")
    yield from rows(replace(extent, levels_arg=3, flags_arg=4), "cudaMallocMipmappedArray")
    yield from rows(_PINNED, "cudaMallocHost", "cudaHostAlloc")
    yield from rows(_REGISTER, "cudaHostRegister")
    yield from rows(
        _FREE, "cudaFree", "cudaFreeAsync", "cudaFreeAsync_ptsz", "cudaIpcCloseMemHandle"
    )
    yield from rows(_FREE_HOST, "cudaFreeHost", "cudaHostUnregister")
    yield from rows(_FREE_ARRAY, "cudaFreeArray", "cudaFreeMipmappedArray")
    yield from rows(_IMPORT, "cudaIpcOpenMemHandle", "cudaMemPoolImportPointer")
    yield from rows(_IMPORT, "cudaExternalMemoryGetMappedBuffer")
    yield from rows(
        replace(_IMPORT, memory=Memory.ARRAY), "cudaExternalMemoryGetMappedMipmappedArray"
    )
    yield from rows(_INFO, "cudaMemGetInfo")
    yield from rows(_RESET, "cudaDeviceReset", "cudaThreadExit")


def _loader() -> Iterator[Call]:
    notice = Call("", Library.LOADER, Action.LIBRARY_LOADED, Mode.NOTICE)
    yield from _rows(Library.LOADER, notice, "_dl_debug_state")


CALLS: tuple[Call, ...] = (*_driver(), *_runtime(), *_loader())
"""The table; a call's row number is its place here."""

ROWS: dict[str, int] = {call.name: row for row, call in enumerate(CALLS)}


def calls_of(library: Library) -> dict[str, int]:
    """Symbol name → row, of the calls that ``library`` exports."""
    return {call.name: row for row, call in enumerate(CALLS) if call.library is library}
