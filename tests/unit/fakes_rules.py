"""What CUDA answers to right and wrong calls: the same questions to the genuine libraries and to
the stand-ins. Prints JSON, case by case; tests/fakes/genuine/rules.json is what an H200 answered.

    python3 tests/unit/fakes_rules.py libcudart.so.13
"""

from __future__ import annotations

import ctypes as c
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from fakes_cuda import MIB, Array3D, Cuda, IpcHandle, Prop

SEGMENT = 20 * MIB
CASES: dict[str, Callable[[Cuda], Any]] = {}


def case(question: Callable[[Cuda], Any]) -> Callable[[Cuda], Any]:
    CASES[question.__name__] = question
    return question


def out() -> Any:
    return c.byref(c.c_uint64())


def prop(handle_types: int = 0) -> Any:
    return c.byref(Prop(type=1, handle_types=handle_types, location_type=1, location_id=0))


def array(channels: int = 4, flags: int = 0) -> Any:
    return c.byref(Array3D(width=64, height=32, format=0x20, channels=channels, flags=flags))


def written(cuda: Cuda, call: str, *arguments: Any) -> list[int]:
    """The error, and what stands where the result is written (7: nothing was)."""
    result = c.c_uint64(7)
    return [getattr(cuda, call)(c.byref(result), *arguments), result.value]


@case
def before_init(cuda: Cuda) -> Any:
    return [
        cuda.cuMemAlloc_v2(out(), MIB),
        cuda.cuDeviceGetCount(out()),
        cuda.cuMemCreate(out(), 2 * MIB, prop(), 0),
    ]


@case
def without_context(cuda: Cuda) -> Any:
    cuda.cuInit(0)
    handle = cuda.new("cuMemCreate", 2 * MIB, prop(), 0)
    return {
        "alloc": cuda.cuMemAlloc_v2(out(), MIB),
        "free 0": cuda.cuMemFree_v2(0),
        "free unknown": cuda.cuMemFree_v2(1 << 40),
        "reserve": cuda.cuMemAddressReserve(out(), 2 * MIB, 0, 0, 0),
        "release": cuda.cuMemRelease(handle),
        "host alloc": cuda.cuMemHostAlloc(out(), MIB, 0),
        "host free 0": cuda.cuMemFreeHost(None),
        "async": cuda.cuMemAllocAsync(out(), MIB, None),
        "get device": cuda.cuCtxGetDevice(out()),
        "info": cuda.cuMemGetInfo_v2(out(), out()),
        "set current 0": cuda.cuCtxSetCurrent(None),
        "pop": cuda.cuCtxPopCurrent_v2(out()),
        "release primary": cuda.cuDevicePrimaryCtxRelease_v2(0),
    }


@case
def frees(cuda: Cuda) -> Any:
    device, host = cuda.new("cudaMalloc", MIB), cuda.new("cudaMallocHost", MIB)
    return [
        cuda.cudaFree(device + 512),
        cuda.cudaFreeHost(device),
        cuda.cudaFree(host),
        cuda.cudaFree(device),
        cuda.cudaFree(device),
        cuda.cudaFree(None),
        cuda.cudaFreeHost(None),
        cuda.cuMemFreeHost(None),
        cuda.cuMemFreeHost(host),
        cuda.cuMemFreeHost(host),
        cuda.cudaFreeArray(None),
        cuda.cudaFreeMipmappedArray(None),
        cuda.cudaHostUnregister(None),
        cuda.cudaFreeAsync(None, None),
    ]


@case
def nothing_asked_for(cuda: Cuda) -> Any:
    return [
        written(cuda, "cudaMalloc", 0),
        written(cuda, "cudaMallocHost", 0),
        written(cuda, "cudaMallocManaged", 0, 1),
        written(cuda, "cudaMallocAsync", 0, None),
        written(cuda, "cudaMallocPitch", out(), 0, 5),
        written(cuda, "cuMemAlloc_v2", 0),
        written(cuda, "cuMemHostAlloc", 0, 0),
        written(cuda, "cuMemAllocManaged", 0, 1),
        written(cuda, "cuMemAllocAsync", 0, None),
        cuda.cudaMalloc(None, 5),
    ]


@case
def too_much(cuda: Cuda) -> Any:
    errors = [cuda.cudaMalloc(out(), size) for size in (1 << 45, 1 << 62, (1 << 64) - 1)]
    errors += [cuda.cudaGetLastError(), cuda.cudaGetLastError()]
    errors.append(cuda.cudaMallocAsync(out(), 1 << 45, None))
    return [*errors, cuda.cuMemCreate(out(), 1 << 45, prop(), 0)]


@case
def freed_addresses_come_again(cuda: Cuda) -> Any:
    first, second = (cuda.new("cudaMalloc", 4 * MIB) for _ in range(2))
    cuda.cudaFree(second)
    cuda.cudaFree(first)
    return [cuda.new("cudaMalloc", 4 * MIB) == first, cuda.new("cudaMalloc", 4 * MIB) == second]


@case
def pitch(cuda: Cuda) -> Any:
    wide = c.c_size_t()
    cuda.new("cudaMallocPitch", c.byref(wide), 1000, 10)
    by_driver = c.c_size_t()
    cuda.new("cuMemAllocPitch_v2", c.byref(by_driver), 1000, 10, 16)
    wrong = cuda.cuMemAllocPitch_v2(out(), c.byref(by_driver), 1000, 10, 3)
    return [wide.value, by_driver.value, wrong]


@case
def registered_host_memory(cuda: Cuda) -> Any:
    cuda.new("cudaMalloc", 1)
    buffer = c.create_string_buffer(MIB)
    address = c.addressof(buffer)
    return [
        cuda.cudaHostRegister(address, MIB, 0),
        cuda.cudaHostRegister(address, MIB, 0),
        cuda.cudaFreeHost(address),
        cuda.cudaHostUnregister(address + 8),
        cuda.cudaHostUnregister(address),
        cuda.cudaHostUnregister(address),
    ]


@case
def mapping(cuda: Cuda) -> Any:
    cuda.start()
    handle = cuda.new("cuMemCreate", SEGMENT, prop(), 0)
    at = cuda.new("cuMemAddressReserve", 4 * SEGMENT, 0, 0, 0)
    answers = {
        "granularity": cuda.new("cuMemGetAllocationGranularity", prop(), 0),
        "wrong size": cuda.cuMemCreate(out(), MIB, prop(), 0),
        "map": cuda.cuMemMap(at, SEGMENT, 0, handle, 0),
        "map elsewhere too": cuda.cuMemMap(at + SEGMENT, SEGMENT, 0, handle, 0),
        "map over": cuda.cuMemMap(at, SEGMENT, 0, handle, 0),
        "map beyond": cuda.cuMemMap(at + 4 * SEGMENT, SEGMENT, 0, handle, 0),
        "map a part": cuda.cuMemMap(at + 2 * SEGMENT, 2 * MIB, 0, handle, 0),
        "map at offset": cuda.cuMemMap(at + 3 * SEGMENT, 2 * MIB, 2 * MIB, handle, 0),
        "retain gives the handle": cuda.new("cuMemRetainAllocationHandle", at + MIB) == handle,
        "retain unmapped": cuda.cuMemRetainAllocationHandle(out(), at + 3 * SEGMENT),
        "unmap cuts": cuda.cuMemUnmap(at, SEGMENT + 2 * MIB),
        "unmap part": cuda.cuMemUnmap(at, 2 * MIB),
        "free addresses mapped": cuda.cuMemAddressFree(at, 4 * SEGMENT),
        "unmap both and a hole": cuda.cuMemUnmap(at, 3 * SEGMENT),
        "unmap nothing": cuda.cuMemUnmap(at, SEGMENT),
        "release": cuda.cuMemRelease(handle),
        "release retained": cuda.cuMemRelease(handle),
        "release again": cuda.cuMemRelease(handle),
        "free part of addresses": cuda.cuMemAddressFree(at, SEGMENT),
        "free addresses": cuda.cuMemAddressFree(at, 4 * SEGMENT),
        "free addresses again": cuda.cuMemAddressFree(at, 4 * SEGMENT),
        "unmap unreserved": cuda.cuMemUnmap(at, SEGMENT),
    }
    return answers


def available(cuda: Cuda) -> int:
    avail, total = c.c_uint64(), c.c_uint64()
    assert cuda.cuMemGetInfo_v2(c.byref(avail), c.byref(total)) == 0
    return avail.value


@case
def free_memory_follows_physical_memory(cuda: Cuda) -> Any:
    cuda.start()
    at = cuda.new("cuMemAddressReserve", 64 * MIB, 0, 0, 0)
    start, deltas = available(cuda), []

    def note() -> None:
        deltas.append((start - available(cuda)) // MIB)

    note()
    handle = cuda.new("cuMemCreate", 64 * MIB, prop(), 0)
    note()
    cuda.cuMemMap(at, 64 * MIB, 0, handle, 0)
    cuda.cuMemRelease(handle)
    note()
    cuda.cuMemUnmap(at, 64 * MIB)
    note()
    address = cuda.new("cuMemAlloc_v2", 64 * MIB)
    note()
    cuda.cuMemFree_v2(address)
    note()
    return deltas


@case
def shareable_handles(cuda: Cuda) -> Any:
    cuda.start()
    handle = cuda.new("cuMemCreate", 2 * MIB, prop(handle_types=1), 0)
    fd = cuda.new("cuMemExportToShareableHandle", handle, 1, 0) & 0xFFFFFFFF
    imported = cuda.new("cuMemImportFromShareableHandle", fd, 1)
    return [
        imported == handle,
        cuda.cuMemRelease(handle),
        cuda.cuMemRelease(imported),
        cuda.cuMemRelease(imported),
    ]


@case
def arrays(cuda: Cuda) -> Any:
    cuda.start()
    mipmap = cuda.new("cuMipmappedArrayCreate", array(), 3)
    level = cuda.new("cuMipmappedArrayGetLevel", mipmap, 1)
    same = cuda.new("cuMipmappedArrayGetLevel", mipmap, 1) == level
    flat = cuda.new("cuArray3DCreate_v2", array())
    return {
        "one level is one handle": same,
        "no such level": cuda.cuMipmappedArrayGetLevel(out(), mipmap, 3),
        "three channels": cuda.cuArray3DCreate_v2(out(), array(channels=3)),
        "destroy": cuda.cuArrayDestroy(flat),
        "destroy mipmap": cuda.cuMipmappedArrayDestroy(mipmap),
    }


@case
def destroy_a_level(cuda: Cuda) -> Any:
    cuda.start()
    mipmap = cuda.new("cuMipmappedArrayCreate", array(), 3)
    level = cuda.new("cuMipmappedArrayGetLevel", mipmap, 1)
    return [cuda.cuArrayDestroy(level), cuda.cuMipmappedArrayDestroy(mipmap)]


@case
def destroy_an_array_twice(cuda: Cuda) -> Any:
    cuda.start()
    flat = cuda.new("cuArray3DCreate_v2", array())
    return [cuda.cuArrayDestroy(flat), cuda.cuArrayDestroy(flat)]


@case
def pools(cuda: Cuda) -> Any:
    plain = cuda.new("cudaMalloc", MIB)
    first, second = (cuda.new("cudaMallocAsync", MIB, None) for _ in range(2))
    return [
        cuda.cudaFreeAsync(plain, None),
        cuda.cudaFree(first),
        cuda.cudaFreeAsync(second, None),
        cuda.cudaFreeAsync(second, None),
        cuda.cudaMemPoolDestroy(cuda.new("cudaDeviceGetDefaultMemPool", 0)),
    ]


@case
def contexts(cuda: Cuda) -> Any:
    primary = cuda.start()
    own = cuda.new("cuCtxCreate_v2", 0, 0)
    address = cuda.new("cuMemAlloc_v2", MIB)
    host = cuda.new("cuMemHostAlloc", MIB, 0)
    answers = {"destroy": cuda.cuCtxDestroy_v2(own)}
    answers["the one before is current"] = cuda.new("cuCtxGetCurrent") == primary
    return {
        **answers,
        "free what ended": cuda.cuMemFree_v2(address),
        "free host that ended": cuda.cuMemFreeHost(host),
        "destroy primary": cuda.cuCtxDestroy_v2(primary),
        "release": cuda.cuDevicePrimaryCtxRelease_v2(0),
        "alloc": cuda.cuMemAlloc_v2(out(), MIB),
        "free 0": cuda.cuMemFree_v2(0),
        "release again": cuda.cuDevicePrimaryCtxRelease_v2(0),
        "set ended primary current": cuda.cuCtxSetCurrent(primary),
        "same handle again": cuda.new("cuDevicePrimaryCtxRetain", 0) == primary,
    }


@case
def destroy_a_context_twice(cuda: Cuda) -> Any:
    cuda.start()
    own = cuda.new("cuCtxCreate_v2", 0, 0)
    return [cuda.cuCtxDestroy_v2(own), cuda.cuCtxDestroy_v2(own)]


@case
def reset(cuda: Cuda) -> Any:
    address, host = cuda.new("cudaMalloc", MIB), cuda.new("cudaMallocHost", MIB)
    pooled, managed = cuda.new("cudaMallocAsync", MIB, None), cuda.new("cudaMallocManaged", MIB, 1)
    handle, before = cuda.new("cuMemCreate", 2 * MIB, prop(), 0), cuda.new("cuCtxGetCurrent")
    return {
        "reset": cuda.cudaDeviceReset(),
        "free": cuda.cudaFree(address),
        "free host": cuda.cudaFreeHost(host),
        "free async": cuda.cudaFreeAsync(pooled, None),
        "free managed": cuda.cudaFree(managed),
        "release": cuda.cuMemRelease(handle),
        "same context again": cuda.new("cuCtxGetCurrent") == before,
        "no such device": cuda.cudaSetDevice(64),
    }


def quarters(cuda: Cuda, start: int) -> int:
    """Memory taken since ``start`` in quarters of a GiB (a context may take a little)."""
    return round((start - available(cuda)) / (256 * MIB))


@case
def pooled_memory_after_a_reset(cuda: Cuda) -> Any:
    cuda.cudaFree(None)
    start = available(cuda)
    pooled = cuda.new("cudaMallocAsync", 1024 * MIB, None)
    taken = [quarters(cuda, start)]
    cuda.cudaDeviceReset()
    cuda.cudaFree(None)
    taken.append(quarters(cuda, start))
    error = cuda.cudaFreeAsync(pooled, None)
    cuda.cudaDeviceSynchronize()
    return [*taken, error, quarters(cuda, start)]


@case
def pooled_memory_after_its_context(cuda: Cuda) -> Any:
    cuda.start()
    start = available(cuda)
    own = cuda.new("cuCtxCreate_v2", 0, 0)
    pooled = cuda.new("cuMemAllocAsync", 1024 * MIB, None)
    cuda.cuCtxSynchronize()
    cuda.cuCtxDestroy_v2(own)
    taken = quarters(cuda, start)
    error = cuda.cuMemFreeAsync(pooled, None)
    cuda.cuCtxSynchronize()
    return [taken, error, quarters(cuda, start)]


@case
def plain_memory_after_its_context(cuda: Cuda) -> Any:
    cuda.start()
    start = available(cuda)
    own = cuda.new("cuCtxCreate_v2", 0, 0)
    cuda.new("cuMemAlloc_v2", 1024 * MIB)
    taken = [quarters(cuda, start) >= 4]
    cuda.cuCtxDestroy_v2(own)
    return [*taken, quarters(cuda, start)]


@case
def reset_by_the_driver(cuda: Cuda) -> Any:
    cuda.start()
    cuda.new("cuDevicePrimaryCtxRetain", 0)
    address = cuda.new("cuMemAlloc_v2", MIB)
    return {
        "reset": cuda.cuDevicePrimaryCtxReset_v2(0),
        "free": cuda.cuMemFree_v2(address),
        "alloc": cuda.cuMemAlloc_v2(out(), MIB),
        "release": cuda.cuDevicePrimaryCtxRelease_v2(0),
        "release 2": cuda.cuDevicePrimaryCtxRelease_v2(0),
        "release 3": cuda.cuDevicePrimaryCtxRelease_v2(0),
    }


@case
def free_on_a_thread_without_context(cuda: Cuda) -> Any:
    cuda.start()
    address, host = cuda.new("cuMemAlloc_v2", MIB), cuda.new("cuMemHostAlloc", MIB, 0)
    answers: list[int] = []

    def other() -> None:
        answers.append(cuda.cuMemFree_v2(address))
        answers.append(cuda.cuMemFreeHost(host))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    return answers


@case
def ipc_in_the_same_process(cuda: Cuda) -> Any:
    address, handle = cuda.new("cudaMalloc", MIB), IpcHandle()
    return [
        cuda.cudaIpcGetMemHandle(c.byref(handle), address),
        cuda.cudaIpcGetMemHandle(c.byref(handle), address + 512),
        cuda.cudaIpcOpenMemHandle(out(), handle, 1),
        cuda.cudaIpcCloseMemHandle(address),
    ]


@case
def first_interface(cuda: Cuda) -> Any:
    cuda.start()
    return [
        *written(cuda, "cuMemAlloc", MIB),
        cuda.cuMemFree(4096),
        cuda.cuMemGetInfo(out(), out()),
    ]


@case
def first_interface_in_its_own_context(cuda: Cuda) -> Any:
    cuda.cuInit(0)
    error, address = cuda.cuCtxCreate(out(), 0, 0), c.c_uint32()
    return [
        error,
        cuda.cuMemAlloc(c.byref(address), MIB),
        address.value != 0,
        cuda.cuMemFree(address),
        cuda.cuMemGetInfo(out(), out()),
    ]


@case
def fork_after_init(cuda: Cuda) -> Any:
    cuda.new("cudaMalloc", MIB)
    child = os.fork()
    if child == 0:
        os._exit(cuda.cudaMalloc(out(), MIB))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@case
def look_up(cuda: Cuda) -> Any:
    def ask(name: str, version: int, flags: int = 0) -> list[Any]:
        address, status = c.c_uint64(), c.c_int(-1)
        where = (c.byref(address), c.c_int(version), flags, c.byref(status))
        error = cuda.cuGetProcAddress_v2(name.encode(), *where)
        variants = [
            name + suffix
            for suffix in ("", "_v2", "_v3", "_v4", "_ptsz")
            if hasattr(cuda.driver, name + suffix)
            and c.cast(getattr(cuda.driver, name + suffix), c.c_void_p).value == address.value
        ]
        return [error, status.value, variants]

    missing, status = c.c_uint64(), c.c_int(-1)
    by_runtime = cuda.cudaGetDriverEntryPointByVersion(
        b"cuNoSuchCall", c.byref(missing), c.c_int(12000), 0, c.byref(status)
    )
    return [
        ask("cuMemAlloc", 12000),
        ask("cuMemAlloc", 3000),
        ask("cuMemAllocAsync", 12000, 2),
        ask("cuMemAllocAsync", 11000),
        ask("cuNoSuchCall", 12000),
        ask("cuCtxCreate", 12000),
        ask("cuCtxCreate", 13000),
        ask("cuMemHostRegister", 12000),
        ask("cuIpcOpenMemHandle", 12000),
        [by_runtime, status.value],
    ]


def answers(runtime: str) -> dict[str, Any]:
    """Each case in a process of its own."""
    told = {}
    for name in CASES:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", __file__, runtime, name],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        told[name] = json.loads(done.stdout) if done.returncode == 0 else f"exit {done.returncode}"
    return told


if __name__ == "__main__":
    if len(sys.argv) > 2:
        print(json.dumps(CASES[sys.argv[2]](Cuda(sys.argv[1]))))
    else:
        lines = [f" {json.dumps(k)}: {json.dumps(v)}" for k, v in answers(sys.argv[1]).items()]
        print("{\n" + ",\n".join(lines) + "\n}")
