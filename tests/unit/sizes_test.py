"""How many bytes each kind of call obtained, by the prototypes and structures of the CUDA headers.

Expected bytes are worked out by hand from what the program asked for.
"""

from __future__ import annotations

import struct

import pytest
from hooked_calls import EVERYTHING, NOISE, OUT, READ_IN, READ_OUT1, READ_OUT2, READ_STACK, returned

from gpumemprof.probe.calls import CALLS
from gpumemprof.probe.events import CallEvent
from gpumemprof.probe.sizes import size_of

INT8, INT32, HALF, FLOAT = 0x01, 0x03, 0x10, 0x20
LAYERED, CUBEMAP = 0x01, 0x04
OUT_OF_MEMORY = 2


def size(event: CallEvent) -> int | None:
    return size_of(CALLS[event.call], event)


def array(width: int, height: int, form: int, channels: int) -> bytes:
    """CUDA_ARRAY_DESCRIPTOR."""
    return struct.pack("<QQII", width, height, form, channels)


def array_v1(width: int, height: int, form: int, channels: int) -> bytes:
    """CUDA_ARRAY_DESCRIPTOR_v1."""
    return struct.pack("<IIII", width, height, form, channels)


def array3d(width: int, height: int, depth: int, form: int, channels: int, flags: int = 0) -> bytes:
    """CUDA_ARRAY3D_DESCRIPTOR."""
    return struct.pack("<QQQIII", width, height, depth, form, channels, flags)


def array3d_v1(width: int, height: int, depth: int, form: int, channels: int) -> bytes:
    """CUDA_ARRAY3D_DESCRIPTOR_v1."""
    return struct.pack("<IIIIII", width, height, depth, form, channels, 0)


def channels(*bits: int) -> bytes:
    """cudaChannelFormatDesc."""
    return struct.pack("<4iI", *bits, *(0,) * (4 - len(bits)), 0)


LINEAR = [
    ("cudaMalloc", (OUT, 4096), 4096),
    ("cudaMallocAsync", (OUT, 4096, 0), 4096),
    ("cudaMallocFromPoolAsync", (OUT, 4096, 0, 0), 4096),
    ("cudaMallocManaged", (OUT, 1 << 33, 1), 1 << 33),
    ("cudaMallocHost", (OUT, 4096), 4096),
    ("cudaHostAlloc", (OUT, 4096, 1), 4096),
    ("cudaHostRegister", (0x7F0000000000, 4096, 0), 4096),
    ("cuMemAlloc_v2", (OUT, 1 << 33), 1 << 33),
    ("cuMemAllocAsync", (OUT, 4096, 0), 4096),
    ("cuMemAllocManaged", (OUT, 4096, 1), 4096),
    ("cuMemHostAlloc", (OUT, 4096, 0), 4096),
    ("cuMemHostRegister_v2", (0x7F0000000000, 4096, 0), 4096),
    ("cuMemCreate", (OUT, 20 << 20, OUT, 0), 20 << 20),
]


@pytest.mark.parametrize(("name", "args", "expected"), LINEAR)
def test_linear_memory_is_the_size_argument(
    name: str, args: tuple[int, ...], expected: int
) -> None:
    assert size(returned(name, *args)) == expected
    assert size(returned(name, *args, error=OUT_OF_MEMORY)) == expected


@pytest.mark.parametrize("name", ["cuMemAlloc", "cuMemAllocHost"])
def test_sizes_of_the_first_interface_are_32_bits_wide(name: str) -> None:
    assert size(returned(name, OUT, NOISE | 4096)) == 4096


@pytest.mark.parametrize("name", ["cudaMallocPitch", "cuMemAllocPitch_v2"])
def test_pitched_memory_is_the_pitch_that_the_driver_chose_times_the_height(name: str) -> None:
    assert size(returned(name, OUT, OUT, 1000, 50, out=[0xA000], out2=1024)) == 1024 * 50


def test_pitched_memory_of_the_first_interface_is_32_bits_wide() -> None:
    call = returned("cuMemAllocPitch", OUT, OUT, NOISE | 1000, NOISE | 50, 4, out2=1024)
    assert size(call) == 1024 * 50
    failed = returned("cuMemAllocPitch", OUT, OUT, NOISE | 1000, NOISE | 50, 4, error=2)
    assert size(failed) == 1000 * 50


def test_a_failed_pitched_call_asked_for_width_times_height() -> None:
    assert size(returned("cudaMallocPitch", OUT, OUT, 1000, 50, error=OUT_OF_MEMORY)) == 50_000


def test_a_pitch_that_could_not_be_read_is_not_guessed() -> None:
    unread = EVERYTHING & ~READ_OUT2
    assert size(returned("cudaMallocPitch", OUT, OUT, 1000, 50, readable=unread)) is None


def test_3d_memory_is_pitch_times_height_times_depth_of_the_extent_in_memory() -> None:
    pointer = [0xA000, 1024, 1000, 50]  # cudaPitchedPtr: ptr, pitch, xsize, ysize
    assert size(returned("cudaMalloc3D", OUT, out=pointer, in_memory=[1000, 50, 3])) == 153_600
    failed = returned("cudaMalloc3D", OUT, in_memory=[1000, 50, 3], error=OUT_OF_MEMORY)
    assert size(failed) == 150_000


ARRAYS = [
    ("cuArrayCreate_v2", array(100, 50, FLOAT, 4), 100 * 50 * 4 * 4),
    ("cuArrayCreate_v2", array(100, 0, HALF, 2), 100 * 2 * 2),
    ("cuArrayCreate_v2", array(0, 0, HALF, 2), 0),
    ("cuArrayCreate", array_v1(100, 50, INT32, 1), 100 * 50 * 4),
    ("cuArray3DCreate_v2", array3d(100, 50, 10, INT8, 1), 100 * 50 * 10),
    ("cuArray3DCreate_v2", array3d(100, 0, 10, INT8, 1, LAYERED), 100 * 10),
    ("cuArray3DCreate", array3d_v1(100, 50, 10, HALF, 2), 100 * 50 * 10 * 4),
    ("cuArray3DCreate_v2", array3d(100, 50, 1, 0xB0, 3), 100 * 50 * 3),  # NV12: unknown, 1 byte
]


@pytest.mark.parametrize(("name", "descriptor", "expected"), ARRAYS)
def test_arrays_of_the_driver_are_cells_times_format_times_channels(
    name: str, descriptor: bytes, expected: int
) -> None:
    assert size(returned(name, OUT, OUT, read=descriptor)) == expected
    assert size(returned(name, OUT, OUT, read=descriptor, error=OUT_OF_MEMORY)) == expected


MIPMAPS = [
    # 8×4 + 4×2 + 2×1 + 1×1; more levels than there can be are the last one
    (array3d(8, 4, 0, FLOAT, 1), 1, 32 * 4),
    (array3d(8, 4, 0, FLOAT, 1), 3, (32 + 8 + 2) * 4),
    (array3d(8, 4, 0, FLOAT, 1), 4, (32 + 8 + 2 + 1) * 4),
    (array3d(8, 4, 0, FLOAT, 1), 1000, (32 + 8 + 2 + 1) * 4),
    # a volume halves in depth as well, 4×4×4 + 2×2×2
    (array3d(4, 4, 4, INT8, 1), 2, 64 + 8),
    # layers and faces do not: each level has all of them
    (array3d(4, 4, 6, INT8, 1, LAYERED), 2, (16 + 4) * 6),
    (array3d(4, 4, 6, INT8, 1, CUBEMAP), 3, (16 + 4 + 1) * 6),
    (array3d(4, 4, 64, INT8, 1, LAYERED), 32, (16 + 4 + 1) * 64),
]


@pytest.mark.parametrize(("descriptor", "levels", "expected"), MIPMAPS)
def test_mipmapped_arrays_of_the_driver_are_all_their_levels(
    descriptor: bytes, levels: int, expected: int
) -> None:
    call = returned("cuMipmappedArrayCreate", OUT, OUT, NOISE | levels, read=descriptor)
    assert size(call) == expected


def test_arrays_of_the_runtime_are_cells_times_the_bits_of_their_channels() -> None:
    rgba = channels(8, 8, 8, 8)
    assert size(returned("cudaMallocArray", OUT, OUT, 100, 50, 0, read=rgba)) == 100 * 50 * 4
    assert size(returned("cudaMallocArray", OUT, OUT, 100, 0, 0, read=channels(32))) == 400


def test_3d_arrays_of_the_runtime_take_their_extent_in_memory() -> None:
    call = returned("cudaMalloc3DArray", OUT, OUT, 0, read=channels(32), in_memory=[100, 50, 10])
    assert size(call) == 100 * 50 * 10 * 4


@pytest.mark.parametrize(("flags", "expected"), [(0, 64 + 8), (LAYERED, (16 + 4) * 4)])
def test_mipmapped_arrays_of_the_runtime_are_all_their_levels(flags: int, expected: int) -> None:
    # cudaMallocMipmappedArray(array, channels, extent, levels, flags): the extent is in memory
    call = returned(
        "cudaMallocMipmappedArray", OUT, OUT, NOISE | 2, NOISE | flags,
        read=channels(8), in_memory=[4, 4, 4],
    )  # fmt: skip
    assert size(call) == expected


UNREADABLE = [
    ("cuArrayCreate_v2", READ_IN),
    ("cuMipmappedArrayCreate", READ_IN),
    ("cudaMallocArray", READ_IN),
    ("cudaMalloc3DArray", READ_IN),
    ("cudaMalloc3DArray", READ_STACK),
    ("cudaMalloc3D", READ_STACK),
    ("cudaMalloc3D", READ_OUT1),
]


@pytest.mark.parametrize(("name", "missing"), UNREADABLE)
def test_what_could_not_be_read_has_no_size(name: str, missing: int) -> None:
    call = returned(
        name, OUT, OUT, 8, 8, read=channels(8), in_memory=[8, 8, 8], readable=EVERYTHING & ~missing
    )
    assert size(call) is None


def test_damaged_channel_bits_are_never_negative() -> None:
    assert size(returned("cudaMallocArray", OUT, OUT, 10, 10, read=channels(-8, 16))) == 200


def test_calls_that_obtain_nothing_have_no_size() -> None:
    assert size(returned("cuMemGetInfo_v2", OUT, OUT)) == 0
