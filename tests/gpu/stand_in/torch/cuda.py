"""``torch.cuda``."""

import contextlib
import ctypes

from .allocator import CUDACachingAllocator, OutOfMemoryError, runtime

__all__ = ["OutOfMemoryError"]

_state = {"initialized": False, "device": 0}


def is_initialized():
    return _state["initialized"]


def init():
    runtime.cudaFree(None)
    _state["initialized"] = True


def device_count():
    count = ctypes.c_int()
    runtime.cudaGetDeviceCount(ctypes.byref(count))
    return count.value


def current_device():
    return _state["device"]


@contextlib.contextmanager
def device(number):
    before = _state["device"]
    _set_device(number)
    yield
    _set_device(before)


def _set_device(number):
    if number != _state["device"]:
        runtime.cudaSetDevice(number)
        _state["device"] = number


def synchronize():
    runtime.cudaDeviceSynchronize()


def empty_cache():
    CUDACachingAllocator.empty_cache()


def memory_stats(number):
    return CUDACachingAllocator.figures[number]
