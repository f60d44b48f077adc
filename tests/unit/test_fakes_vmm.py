"""The stand-in driver keeps the rules of virtual memory management."""

import ctypes as c
import os

from fakes_cuda import INVALID_VALUE, MIB, OUT_OF_MEMORY, Cuda, Prop, cuda_process

PINNED, ON_DEVICE, POSIX_FD = 1, 1, 1
SEGMENT = 20 * MIB


def create(cuda: Cuda, size: int = SEGMENT, device: int = 0) -> int:
    prop = Prop(type=PINNED, location_type=ON_DEVICE, location_id=device)
    return cuda.new("cuMemCreate", size, c.byref(prop), 0)


def reserve(cuda: Cuda, size: int) -> int:
    return cuda.new("cuMemAddressReserve", size, 0, 0, 0)


@cuda_process()
def test_reserving_addresses_takes_no_memory(cuda: Cuda) -> None:
    cuda.start()
    address = reserve(cuda, 168 << 30)
    assert address % (2 * MIB) == 0
    assert cuda.live("device") == 0
    assert cuda.cuMemAddressFree(address, 2 * MIB) == INVALID_VALUE
    assert cuda.cuMemAddressFree(address, 168 << 30) == 0
    assert cuda.cuMemAddressFree(address, 168 << 30) == INVALID_VALUE


@cuda_process()
def test_physical_memory_lives_until_released_and_unmapped(cuda: Cuda) -> None:
    cuda.start()
    handle = create(cuda)
    assert cuda.live("device") == SEGMENT
    address = reserve(cuda, 10 * SEGMENT)
    assert cuda.cuMemMap(address, SEGMENT, 0, handle, 0) == 0
    assert cuda.cuMemMap(address + SEGMENT, SEGMENT, 0, handle, 0) == 0
    assert cuda.cuMemRelease(handle) == 0
    assert cuda.live("device") == SEGMENT
    assert cuda.cuMemUnmap(address, SEGMENT) == 0
    assert cuda.live("device") == SEGMENT
    assert cuda.cuMemUnmap(address + SEGMENT, SEGMENT) == 0
    assert cuda.live("device") == 0


@cuda_process()
def test_unmapping_without_release_frees_nothing(cuda: Cuda) -> None:
    cuda.start()
    handle, address = create(cuda), reserve(cuda, SEGMENT)
    cuda.cuMemMap(address, SEGMENT, 0, handle, 0)
    assert cuda.cuMemUnmap(address, SEGMENT) == 0
    assert cuda.live("device") == SEGMENT
    assert cuda.cuMemRelease(handle) == 0
    assert cuda.live("device") == 0
    assert cuda.cuMemRelease(handle) == INVALID_VALUE


@cuda_process()
def test_one_unmap_may_cover_several_mappings_but_cut_none(cuda: Cuda) -> None:
    cuda.start()
    address = reserve(cuda, 3 * SEGMENT)
    for number in range(3):
        handle = create(cuda)
        assert cuda.cuMemMap(address + number * SEGMENT, SEGMENT, 0, handle, 0) == 0
        assert cuda.cuMemRelease(handle) == 0
    assert cuda.cuMemUnmap(address, SEGMENT + 2 * MIB) == INVALID_VALUE
    assert cuda.cuMemAddressFree(address, 3 * SEGMENT) == INVALID_VALUE
    assert cuda.cuMemUnmap(address, 3 * SEGMENT) == 0
    assert cuda.live("device") == 0
    assert cuda.cuMemAddressFree(address, 3 * SEGMENT) == 0


@cuda_process()
def test_a_retained_handle_keeps_the_memory(cuda: Cuda) -> None:
    cuda.start()
    handle, address = create(cuda), reserve(cuda, SEGMENT)
    cuda.cuMemMap(address, SEGMENT, 0, handle, 0)
    assert cuda.new("cuMemRetainAllocationHandle", address + MIB) == handle
    assert cuda.cuMemRelease(handle) == 0
    assert cuda.cuMemUnmap(address, SEGMENT) == 0
    assert cuda.live("device") == SEGMENT
    assert cuda.cuMemRelease(handle) == 0
    assert cuda.live("device") == 0


@cuda_process(GPUMEMPROF_FAKE_DEVICE_BYTES=str(64 * MIB))
def test_sizes_are_multiples_of_the_granularity_and_have_a_limit(cuda: Cuda) -> None:
    cuda.start()
    prop = Prop(type=PINNED, location_type=ON_DEVICE, location_id=0)
    assert cuda.new("cuMemGetAllocationGranularity", c.byref(prop), 0) == 2 * MIB
    out = c.c_uint64()
    assert cuda.cuMemCreate(c.byref(out), MIB, c.byref(prop), 0) == INVALID_VALUE
    assert cuda.cuMemCreate(c.byref(out), 66 * MIB, c.byref(prop), 0) == OUT_OF_MEMORY
    address = reserve(cuda, 4 * MIB)
    handle = create(cuda, 2 * MIB)
    assert cuda.cuMemMap(address + MIB, 2 * MIB, 0, handle, 0) == 0
    assert cuda.cuMemMap(address + 2 * MIB, 2 * MIB, 0, handle, 0) == INVALID_VALUE
    assert cuda.cuMemMap(address + 4 * MIB, 2 * MIB, 0, handle, 0) == INVALID_VALUE


@cuda_process()
def test_an_imported_handle_is_a_reference_to_the_same_memory(cuda: Cuda) -> None:
    cuda.start()
    handle = create(cuda)
    shared = cuda.new("cuMemExportToShareableHandle", handle, POSIX_FD, 0)
    imported = cuda.new("cuMemImportFromShareableHandle", shared, POSIX_FD)
    os.close(shared)
    assert imported != handle
    assert cuda.live("device") == SEGMENT
    assert cuda.truth()["imports"] == 1
    assert cuda.cuMemRelease(handle) == 0
    assert cuda.live("device") == SEGMENT
    assert cuda.cuMemRelease(imported) == 0
    assert cuda.live("device") == 0
    assert cuda.truth()["imports"] == 0
