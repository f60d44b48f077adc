"""The CUDA runtime by ctypes, and the demo's own bookkeeping of what it got."""

from __future__ import annotations

import collections
import ctypes
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

CUDA_OUT_OF_MEMORY = 2


class CudaError(Exception):
    """A CUDA call failed with ``code``."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call} failed with CUDA error {code}")
        self.code = code


class Bookkeeping:
    """What the program itself knows it holds, by the function that asked for it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.live: dict[int, tuple[int, str, list[str]]] = {}
        self.bytes: collections.Counter[str] = collections.Counter()
        self.peak_gpu_bytes = 0
        self.allocations = self.frees = 0
        self.failures: list[dict[str, Any]] = []

    def allocated(self, address: int, size: int, place: str) -> None:
        """``size`` bytes were obtained at ``address`` on "device N" or "pinned_host"."""
        functions: list[str] = []
        frame: types.FrameType | None = sys._getframe(4)  # who called the CUDA function
        while frame is not None:
            functions.append(getattr(frame.f_code, "co_qualname", frame.f_code.co_name))
            frame = frame.f_back
        with self.lock:
            self.live[address] = (size, place, functions)
            self.bytes[place] += size
            self.allocations += 1
            self.peak_gpu_bytes = max(self.peak_gpu_bytes, self.gpu_bytes())

    def freed(self, address: int) -> None:
        """What was at ``address`` is gone."""
        with self.lock:
            size, place, _ = self.live.pop(address)
            self.bytes[place] -= size
            self.frees += 1

    def gpu_bytes(self) -> int:
        """Bytes held on all devices."""
        return sum(size for place, size in self.bytes.items() if place != "pinned_host")

    def summary(self) -> dict[str, Any]:
        """All of it, as JSON; ``functions``: GPU bytes held at or below each function."""
        functions: collections.Counter[str] = collections.Counter()
        for size, place, stack in self.live.values():
            if place != "pinned_host":
                functions.update(dict.fromkeys(stack, size))
        return {
            "gpu_bytes": self.gpu_bytes(),
            "peak_gpu_bytes": self.peak_gpu_bytes,
            "bytes": dict(self.bytes),
            "allocations": self.allocations,
            "frees": self.frees,
            "failures": self.failures,
            "functions": dict(functions.most_common()),
        }


def _values(*outs: Any) -> tuple[int, ...]:
    return tuple(int(out.value) for out in outs)


class Cuda:
    """The runtime's functions, called directly: no Python function stands between."""

    def __init__(self, library: str, books: Bookkeeping) -> None:
        self.books = books
        self.library = ctypes.CDLL(library)
        self.current = threading.local()
        pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        out = ctypes.POINTER(pointer)
        self.malloc: Callable[..., int] = self._function(
            "cudaMalloc", self._allocated, (2, out), (1, size)
        )
        self.malloc_host: Callable[..., int] = self._function(
            "cudaMallocHost", self._pinned, (2, out), (1, size)
        )
        self.free = self._function("cudaFree", self._freed, (1, pointer))
        self.free_host = self._function("cudaFreeHost", self._freed, (1, pointer))
        self.memcpy = self._function(
            "cudaMemcpy", None, (1, pointer), (1, pointer), (1, size), (1, number)
        )
        self.set_device = self._function("cudaSetDevice", self._device_set, (1, number))
        size_out = ctypes.POINTER(size)
        self.memory_info = self._function("cudaMemGetInfo", _values, (2, size_out), (2, size_out))
        self.synchronize = self._function("cudaDeviceSynchronize", None)

    def _function(
        self, name: str, then: Callable[..., Any] | None, *parameters: tuple[int, Any]
    ) -> Callable[..., Any]:
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, *(kind for _, kind in parameters))
        function = prototype((name, self.library), tuple((flag,) for flag, _ in parameters))

        def check(code: int, _function: Any, arguments: tuple[Any, ...]) -> Any:
            if code:
                if code == CUDA_OUT_OF_MEMORY:
                    failure = {"call": name, "error": code, "requested": arguments[1]}
                    books.failures.append(failure)
                raise CudaError(name, code)
            return then(*arguments) if then else code

        books = self.books
        function.errcheck = check  # type: ignore[assignment]
        return function

    def _allocated(self, out: ctypes.c_void_p, size: int) -> int:
        return self._note(out, size, f"device {getattr(self.current, 'device', 0)}")

    def _pinned(self, out: ctypes.c_void_p, size: int) -> int:
        return self._note(out, size, "pinned_host")

    def _note(self, out: ctypes.c_void_p, size: int, place: str) -> int:
        address = int(out.value or 0)
        self.books.allocated(address, size, place)
        return address

    def _freed(self, address: int) -> None:
        self.books.freed(address)

    def _device_set(self, device: int) -> None:
        self.current.device = device


def find_runtime() -> str:
    """The name of the CUDA runtime that the dynamic linker can load."""
    names = ["libcudart.so.12", "libcudart.so.13", "libcudart.so"]
    for name in names:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return name
    sys.exit(f"none of {', '.join(names)} can be loaded: set LD_LIBRARY_PATH or --runtime")
