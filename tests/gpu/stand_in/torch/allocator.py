"""Segments of the stand-in runtime, kept when they are free, and PyTorch's figures of them."""

import ctypes
from collections import Counter, defaultdict
from typing import ClassVar

runtime = ctypes.CDLL("libcudart.so.12")
runtime.cudaMalloc.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t]
runtime.cudaFree.argtypes = [ctypes.c_void_p]

OUT_OF_MEMORY = 2
SEGMENT = 2 << 20


class OutOfMemoryError(RuntimeError):
    pass


class Figures(Counter):
    """Of one device, by PyTorch's names."""

    def add(self, size):
        self["num_device_alloc" if size > 0 else "num_device_free"] += 1
        self["reserved_bytes.all.current"] += size
        self["reserved_bytes.all.peak"] = max(
            self["reserved_bytes.all.peak"], self["reserved_bytes.all.current"]
        )


class CUDACachingAllocator:
    """A block is (device, address, size)."""

    cached: ClassVar = defaultdict(list)
    """(device, size) -> addresses."""
    figures: ClassVar = defaultdict(Figures)

    @classmethod
    def malloc(cls, device, asked):
        size = -(-asked // SEGMENT) * SEGMENT
        if cls.cached[device, size]:
            return device, cls.cached[device, size].pop(), size
        address = cls.segment(size)
        if address is None:
            cls.empty_cache()
            address = cls.segment(size)
        if address is None:
            raise OutOfMemoryError(f"CUDA out of memory. Tried to allocate {asked} bytes.")
        cls.figures[device].add(size)
        return device, address, size

    @classmethod
    def segment(cls, size):
        address = ctypes.c_void_p()
        error = runtime.cudaMalloc(ctypes.byref(address), size)
        if error not in (0, OUT_OF_MEMORY):
            raise RuntimeError(f"cudaMalloc: error {error}")
        return None if error else address.value

    @classmethod
    def free(cls, block):
        device, address, size = block
        cls.cached[device, size].append(address)

    @classmethod
    def empty_cache(cls):
        for (device, size), addresses in cls.cached.items():
            while addresses:
                runtime.cudaFree(addresses.pop())
                cls.figures[device].add(-size)
