"""As much of PyTorch as the programs of the group ``agent`` use, on the stand-in CUDA runtime: it
proves the harness where there is no GPU. Its caching allocator has one segment for each tensor."""

import time

from . import cuda
from .allocator import CUDACachingAllocator

__version__ = "stand-in"
uint8 = "uint8"


class Tensor:
    def __init__(self, size):
        self._block = CUDACachingAllocator.malloc(cuda.current_device(), size)

    def __del__(self):
        if hasattr(self, "_block"):
            CUDACachingAllocator.free(self._block)


def empty(size, *, dtype, device):
    assert (dtype, device) == ("uint8", "cuda")
    if not cuda.is_initialized():
        cuda.init()
        time.sleep(1)  # a real one makes its context now; on a busy machine it takes as long
    return Tensor(size)
