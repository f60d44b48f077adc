"""The stand-ins keep the rules of contexts, devices and of memory of other owners."""

import ctypes as c
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

from fakes_cuda import (
    CONTEXT_IS_DESTROYED,
    INVALID_CONTEXT,
    INVALID_DEVICE,
    INVALID_VALUE,
    MIB,
    NO_DEVICE,
    NOT_INITIALIZED,
    Cuda,
    IpcHandle,
    Prop,
    cuda_process,
)


@cuda_process()
def test_a_primary_context_ends_with_its_last_release(cuda: Cuda) -> None:
    context = cuda.start()
    assert cuda.new("cuDevicePrimaryCtxRetain", 0) == context
    cuda.new("cuMemAlloc_v2", MIB)
    assert cuda.cuDevicePrimaryCtxRelease_v2(0) == 0
    assert cuda.live("device") == MIB
    assert cuda.cuDevicePrimaryCtxRelease_v2(0) == 0
    assert cuda.live("device") == 0
    assert cuda.cuDevicePrimaryCtxRelease_v2(0) == INVALID_CONTEXT
    assert cuda.cuMemAlloc_v2(c.byref(c.c_uint64()), MIB) == CONTEXT_IS_DESTROYED


@cuda_process()
def test_what_was_allocated_under_a_context_ends_with_it(cuda: Cuda) -> None:
    cuda.start()
    kept = cuda.new("cuMemAlloc_v2", MIB)
    own = cuda.new("cuCtxCreate_v2", 0, 0)
    cuda.new("cuMemAlloc_v2", 2 * MIB)
    cuda.new("cuMemHostAlloc", 4 * MIB, 0)
    assert (cuda.live("device"), cuda.live("pinned_host")) == (3 * MIB, 4 * MIB)
    assert cuda.cuCtxDestroy_v2(own) == 0
    assert (cuda.live("device"), cuda.live("pinned_host")) == (MIB, 0)
    assert cuda.cuCtxDestroy_v2(own) == CONTEXT_IS_DESTROYED
    assert cuda.cuMemFree_v2(kept) == 0


@cuda_process(GPUMEMPROF_FAKE_DEVICES="2", GPUMEMPROF_FAKE_CONTEXT_BYTES=str(MIB))
def test_memory_is_of_the_device_whose_context_is_current(cuda: Cuda) -> None:
    first = cuda.start(0)
    second = cuda.new("cuDevicePrimaryCtxRetain", 1)
    cuda.new("cuMemAlloc_v2", MIB)
    assert cuda.cuCtxPushCurrent_v2(second) == 0
    cuda.new("cuMemAlloc_v2", 2 * MIB)
    assert cuda.new("cuCtxPopCurrent_v2") == second
    assert cuda.new("cuCtxGetCurrent") == first
    cuda.new("cuMemAlloc_v2", 4 * MIB)
    assert [cuda.live("device", 0), cuda.live("device", 1)] == [5 * MIB, 2 * MIB]
    assert cuda.truth()["process_gpu"]["live_bytes"] == 7 * MIB
    assert [one["context_bytes"] for one in cuda.truth()["devices"]] == [MIB, MIB]


@cuda_process(GPUMEMPROF_FAKE_DEVICES="2")
def test_a_change_of_device_shows_as_the_driver_s_current_context(cuda: Cuda) -> None:
    assert cuda.cudaSetDevice(1) == 0
    cuda.new("cudaMalloc", MIB)
    assert cuda.live("device", 1) == MIB
    assert cuda.cudaSetDevice(2) == INVALID_DEVICE
    assert cuda.calls("cuCtxSetCurrent")["entered"] == 1
    on_other_thread: list[int] = []

    def allocate() -> None:  # a new thread begins on device 0
        on_other_thread.append(cuda.new("cudaMalloc", 2 * MIB))

    thread = threading.Thread(target=allocate)
    thread.start()
    thread.join()
    assert cuda.live("device", 0) == 2 * MIB
    assert cuda.calls("cuDevicePrimaryCtxRetain")["entered"] == 2


@cuda_process(GPUMEMPROF_FAKE_RETAIN_LATE="1")
def test_a_context_can_be_current_before_it_is_retained(cuda: Cuda) -> None:
    cuda.new("cudaMalloc", MIB)
    assert cuda.calls("cuDevicePrimaryCtxRetain") == {"entered": 1, "outermost": 0, "failed": 0}
    assert cuda.live("device") == MIB


@cuda_process()
def test_device_reset_ends_all_and_calls_no_exported_driver_call(cuda: Cuda) -> None:
    address = cuda.new("cudaMalloc", MIB)
    assert cuda.cudaDeviceReset() == 0
    assert cuda.live("device") == 0
    assert cuda.calls("cuDevicePrimaryCtxReset_v2")["entered"] == 0
    assert cuda.cudaFree(address) == INVALID_VALUE
    cuda.new("cudaMalloc", 2 * MIB)
    assert cuda.live("device") == 2 * MIB
    assert cuda.calls("cuDevicePrimaryCtxRetain")["entered"] == 2


@cuda_process()
def test_stream_ordered_memory_and_physical_memory_outlive_a_reset(cuda: Cuda) -> None:
    pooled = cuda.new("cudaMallocAsync", MIB, None)
    cuda.new("cudaMalloc", 2 * MIB)
    prop = Prop(type=1, location_type=1, location_id=0)
    handle = cuda.new("cuMemCreate", 4 * MIB, c.byref(prop), 0)
    assert cuda.cudaDeviceReset() == 0
    assert cuda.live("device") == 5 * MIB
    assert cuda.cudaFreeAsync(pooled, None) == 0
    assert cuda.cuMemRelease(handle) == 0
    assert cuda.live("device") == 0


@cuda_process(GPUMEMPROF_FAKE_DEVICES="3", CUDA_VISIBLE_DEVICES="2,0")
def test_visible_devices_are_numbered_as_listed(cuda: Cuda) -> None:
    assert cuda.new("cudaGetDeviceCount") == 2
    uuids = [(c.c_ubyte * 16)() for _ in range(2)]
    for ordinal, uuid in enumerate(uuids):
        assert cuda.cuDeviceGetUuid_v2(uuid, ordinal) == 0
    assert [uuid[15] for uuid in uuids] == [2, 0]


@cuda_process(GPUMEMPROF_FAKE_DEVICES="0")
def test_without_a_device_every_call_says_so(cuda: Cuda) -> None:
    assert cuda.cuInit(0) == NO_DEVICE
    assert cuda.cudaMalloc(c.byref(c.c_void_p()), MIB) == NO_DEVICE


@cuda_process()
def test_cuda_does_not_survive_fork(cuda: Cuda) -> None:
    cuda.new("cudaMalloc", MIB)
    child = os.fork()
    if child == 0:
        os._exit(cuda.cudaMalloc(c.byref(c.c_void_p()), MIB))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == NOT_INITIALIZED
    assert cuda.cudaMalloc(c.byref(c.c_void_p()), MIB) == 0


OPEN_TWICE = """
import json, sys
from fakes_cuda import Cuda, IpcHandle
import ctypes as c
cuda = Cuda(); cuda.start()
handle = IpcHandle.from_buffer_copy(bytes.fromhex(sys.argv[1]))
first = cuda.new("cudaIpcOpenMemHandle", handle, 1)
second = cuda.new("cudaIpcOpenMemHandle", handle, 1)
opened = cuda.truth()["imports"]
free = cuda.cudaFree(first)
closed = [cuda.cudaIpcCloseMemHandle(first) for _ in range(3)]
print(json.dumps([first == second, opened, free, closed, cuda.live("device")]))
"""


@cuda_process()
def test_memory_opened_by_ipc_is_a_reference(cuda: Cuda) -> None:
    address = cuda.new("cudaMalloc", MIB)
    handle = IpcHandle()
    assert cuda.cudaIpcGetMemHandle(c.byref(handle), address) == 0
    assert cuda.cudaIpcOpenMemHandle(c.byref(c.c_void_p()), handle, 1) == INVALID_CONTEXT
    here = str(Path(__file__).parent)
    other = subprocess.run(
        [sys.executable, "-c", OPEN_TWICE, bytes(handle).hex()],
        env={**os.environ, "PYTHONPATH": here},
        stdout=subprocess.PIPE,
        check=True,
    )
    assert json.loads(other.stdout) == [True, 1, INVALID_VALUE, [0, 0, INVALID_VALUE], 0]
    assert cuda.live("device") == MIB


class ExternalBuffer(c.Structure):
    _fields_ = (
        ("offset", c.c_uint64),
        ("size", c.c_uint64),
        ("flags", c.c_uint),
        ("reserved", c.c_uint * 16),
    )


@cuda_process()
def test_a_buffer_of_external_memory_is_freed_and_never_accounted(cuda: Cuda) -> None:
    cuda.start()
    wanted = (c.c_uint64 * 13)(1, os.open("/dev/null", os.O_RDONLY), 0, 4 * MIB)
    memory = cuda.new("cudaImportExternalMemory", wanted)
    buffer = ExternalBuffer(offset=MIB, size=2 * MIB)
    address = cuda.new("cudaExternalMemoryGetMappedBuffer", memory, c.byref(buffer))
    assert cuda.truth()["imports"] == 1
    assert cuda.live("device") == 0
    assert cuda.cudaFree(address) == 0
    assert cuda.cudaDestroyExternalMemory(memory) == 0
    assert cuda.truth()["imports"] == 0
