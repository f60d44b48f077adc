"""The stand-in CUDA libraries keep the genuine ones' rules: device, managed, host, array, pool."""

import ctypes as c
import threading

from fakes_cuda import (
    GIB,
    INVALID_VALUE,
    MIB,
    NOT_INITIALIZED,
    OUT_OF_MEMORY,
    Array3D,
    Cuda,
    cuda_process,
)


@cuda_process()
def test_what_is_allocated_is_live_until_it_is_freed(cuda: Cuda) -> None:
    weights = cuda.new("cudaMalloc", 3 * MIB)
    scratch = cuda.new("cudaMalloc", 100)
    assert cuda.live("device") == 3 * MIB + 100
    assert cuda.cudaFree(weights) == 0
    assert cuda.live("device") == 100
    assert cuda.cudaFree(scratch) == 0
    gpu = cuda.truth()["devices"][0]["gpu"]
    assert gpu == {
        "live_bytes": 0,
        "live_count": 0,
        "total_bytes": 3 * MIB + 100,
        "total_count": 2,
        "peak_bytes": 3 * MIB + 100,
    }


@cuda_process()
def test_the_runtime_carries_out_each_call_by_its_driver_call(cuda: Cuda) -> None:
    address = cuda.new("cudaMalloc", MIB)
    cuda.cudaFree(address)
    host = cuda.new("cudaMallocHost", MIB)
    cuda.cudaFreeHost(host)
    for name in ("cuMemAlloc_v2", "cuMemFree_v2", "cuMemHostAlloc", "cuMemFreeHost", "cuInit"):
        assert cuda.calls(name) == {"entered": 1, "outermost": 0, "failed": 0}, name
    for name in ("cudaMalloc", "cudaFree", "cudaMallocHost", "cudaFreeHost"):
        assert cuda.calls(name) == {"entered": 1, "outermost": 1, "failed": 0}, name
    assert cuda.calls("cuDevicePrimaryCtxRetain")["entered"] == 1
    assert cuda.calls("cuCtxSetCurrent")["entered"] == 1


@cuda_process(GPUMEMPROF_FAKE_DEVICE_BYTES=str(GIB))
def test_no_device_gives_more_than_it_has(cuda: Cuda) -> None:
    half = cuda.new("cudaMalloc", GIB // 2)
    assert cuda.cudaMalloc(c.byref(c.c_void_p()), GIB // 2 + 1) == OUT_OF_MEMORY
    cuda.new("cudaMalloc", GIB // 2)
    assert cuda.cudaMalloc(c.byref(c.c_void_p()), 1) == OUT_OF_MEMORY
    assert cuda.cudaGetLastError() == OUT_OF_MEMORY
    assert cuda.cudaGetLastError() == 0
    cuda.cudaFree(half)
    avail, total = c.c_size_t(), c.c_size_t()
    assert cuda.cudaMemGetInfo(c.byref(avail), c.byref(total)) == 0
    assert (avail.value, total.value) == (GIB // 2, GIB)
    assert cuda.calls("cudaMalloc") == {"entered": 4, "outermost": 4, "failed": 2}


@cuda_process()
def test_absurd_sizes_are_out_of_memory(cuda: Cuda) -> None:
    for size in (1 << 45, 1 << 62, (1 << 64) - 1):
        assert cuda.cudaMalloc(c.byref(c.c_void_p()), size) == OUT_OF_MEMORY
    assert cuda.live("device") == 0


@cuda_process()
def test_wrong_frees_are_errors_and_free_null_is_nothing(cuda: Cuda) -> None:
    address = cuda.new("cudaMalloc", MIB)
    assert cuda.cudaFree(address + 512) == INVALID_VALUE
    assert cuda.cudaFreeHost(address) == INVALID_VALUE
    assert cuda.cudaFree(address) == 0
    assert cuda.cudaFree(address) == INVALID_VALUE
    assert cuda.cudaFree(None) == 0
    assert cuda.cudaFreeHost(None) == 0
    assert cuda.live("device") == 0


@cuda_process()
def test_size_zero_is_null_for_the_runtime_and_an_error_for_the_driver(cuda: Cuda) -> None:
    assert cuda.new("cudaMalloc", 0) == 0
    assert cuda.cuMemAlloc_v2(c.byref(c.c_uint64()), 0) == INVALID_VALUE
    assert cuda.cudaMalloc(None, MIB) == INVALID_VALUE


@cuda_process()
def test_a_freed_address_is_given_out_again_at_once(cuda: Cuda) -> None:
    first, second = cuda.new("cudaMalloc", MIB), cuda.new("cudaMalloc", MIB)
    cuda.cudaFree(second)
    cuda.cudaFree(first)
    assert [cuda.new("cudaMalloc", MIB), cuda.new("cudaMalloc", MIB)] == [first, second]


@cuda_process()
def test_rows_of_pitched_memory_are_padded_to_512_bytes(cuda: Cuda) -> None:
    pitch = c.c_size_t()
    address = cuda.new("cudaMallocPitch", c.byref(pitch), 1000, 10)
    assert pitch.value == 1024
    assert cuda.live("device") == 10240
    assert cuda.calls("cuMemAllocPitch_v2")["entered"] == 1
    cuda.cudaFree(address)


@cuda_process()
def test_each_kind_of_memory_is_accounted_apart(cuda: Cuda) -> None:
    managed = cuda.new("cudaMallocManaged", 2 * MIB, 1)
    pinned = cuda.new("cudaHostAlloc", 3 * MIB, 0)
    c.memset(managed, 1, 2 * MIB)  # both can be touched by the host
    c.memset(pinned, 1, 3 * MIB)
    buffer = c.create_string_buffer(MIB)
    assert cuda.cudaHostRegister(c.addressof(buffer), MIB, 0) == 0
    assert cuda.live("managed") == 2 * MIB
    assert cuda.live("pinned_host") == 4 * MIB
    assert cuda.live("gpu") == 2 * MIB
    assert cuda.cudaFree(pinned) == INVALID_VALUE
    assert cuda.cudaHostUnregister(c.addressof(buffer)) == 0
    assert cuda.cudaFreeHost(pinned) == 0
    assert cuda.cudaFree(managed) == 0
    assert cuda.live("pinned_host") == cuda.live("gpu") == 0


@cuda_process()
def test_arrays_are_as_large_as_their_descriptor_says(cuda: Cuda) -> None:
    cuda.start()
    floats = Array3D(width=64, height=32, depth=0, format=0x20, channels=4)
    array = cuda.new("cuArray3DCreate_v2", c.byref(floats))
    assert cuda.live("array") == 64 * 32 * 16
    mipmap = cuda.new("cuMipmappedArrayCreate", c.byref(floats), 3)
    assert cuda.live("array") == 16 * (64 * 32 + 64 * 32 + 32 * 16 + 16 * 8)
    level = cuda.new("cuMipmappedArrayGetLevel", mipmap, 1)
    with_level = cuda.live("array")
    assert cuda.cuArrayDestroy(level) == 0
    assert cuda.live("array") == with_level
    assert cuda.cuMipmappedArrayDestroy(mipmap) == 0
    assert cuda.live("array") == 64 * 32 * 16
    assert cuda.cuArrayDestroy(array) == 0
    assert cuda.live("array") == 0


@cuda_process()
def test_stream_ordered_memory_comes_from_pools(cuda: Cuda) -> None:
    address = cuda.new("cudaMallocAsync", MIB, None)
    other = cuda.new("cudaMallocAsync_ptsz", MIB, None)
    pool = cuda.new("cudaDeviceGetDefaultMemPool", 0)
    used = c.c_uint64()
    assert cuda.cudaMemPoolGetAttribute(pool, 7, c.byref(used)) == 0
    assert used.value == cuda.live("device") == 2 * MIB
    assert cuda.cudaFreeAsync(address, None) == 0
    assert cuda.cudaFree(other) == 0
    assert cuda.live("device") == 0
    assert cuda.calls("cuMemAllocAsync")["entered"] == 1
    assert cuda.calls("cuMemAllocAsync_ptsz")["entered"] == 1


@cuda_process()
def test_the_first_interface_has_32_bit_addresses(cuda: Cuda) -> None:
    cuda.cuInit(0)
    cuda.new("cuCtxCreate", 0, 0)
    address = cuda.new("cuMemAlloc", MIB)
    assert 0 < address < 1 << 32
    assert cuda.live("device") == MIB
    assert cuda.cuMemFree(address) == 0


@cuda_process()
def test_threads_do_not_disturb_each_other(cuda: Cuda) -> None:
    cuda.new("cudaMalloc", 1)  # initialised before the threads start

    def churn() -> None:
        for number in range(2000):
            address = cuda.new("cudaMalloc", 1000 + number)
            assert cuda.cudaFree(address) == 0

    threads = [threading.Thread(target=churn) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cuda.calls("cudaFree") == {"entered": 8000, "outermost": 8000, "failed": 0}
    assert cuda.live("device") == 1


@cuda_process()
def test_nothing_works_before_initialisation(cuda: Cuda) -> None:
    assert cuda.cuMemAlloc_v2(c.byref(c.c_uint64()), MIB) == NOT_INITIALIZED
    assert cuda.cuDeviceGetCount(c.byref(c.c_int())) == NOT_INITIALIZED
