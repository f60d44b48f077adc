"""Runs a test in a process of its own that uses the stand-in CUDA libraries.

Their settings are read once, and the dynamic linker looks for libraries as told at start: so each
such test is a process. It gets the two libraries and truth() as a Cuda value.
"""

from __future__ import annotations

import ctypes as c
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

FAKES = Path(__file__).parents[2] / "build" / "fakes"
MIB = 1 << 20
GIB = 1 << 30

INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED = 1, 2, 3
NO_DEVICE, INVALID_DEVICE, INVALID_CONTEXT = 100, 101, 201
CONTEXT_IS_DESTROYED = 709


class Prop(c.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", c.c_int),
        ("handle_types", c.c_int),
        ("location_type", c.c_int),
        ("location_id", c.c_int),
        ("win32", c.c_void_p),
        ("flags", c.c_ubyte * 8),
    )


class Array3D(c.Structure):
    """CUDA_ARRAY3D_DESCRIPTOR."""

    _fields_ = (
        ("width", c.c_size_t),
        ("height", c.c_size_t),
        ("depth", c.c_size_t),
        ("format", c.c_int),
        ("channels", c.c_uint),
        ("flags", c.c_uint),
    )


class IpcHandle(c.Structure):
    """CUipcMemHandle, which is passed by value."""

    _fields_ = (("bytes", c.c_ubyte * 64),)


class Cuda:
    """The two libraries. Python integers are passed 64 bits wide; calls return their error code."""

    def __init__(self, runtime: str = "libcudart.so.12") -> None:
        self.driver = c.CDLL("libcuda.so.1")
        self.runtime = c.CDLL(runtime)

    def __getattr__(self, name: str) -> Callable[..., int]:
        function = getattr(self.runtime if name.startswith("cuda") else self.driver, name)

        def call(*arguments: Any) -> int:
            wide = [c.c_uint64(a) if isinstance(a, int) else a for a in arguments]
            return int(function(*wide))

        return call

    def new(self, call: str, *arguments: Any) -> int:
        """Calls what writes a pointer, handle or number through its first argument, and returns
        that; an error is an AssertionError."""
        out = c.c_uint64()
        error = getattr(self, call)(c.byref(out), *arguments)
        assert error == 0, f"{call} returned {error}"
        return out.value

    def start(self, device: int = 0) -> int:
        """cuInit and the primary context, current on this thread."""
        assert self.cuInit(0) == 0
        context = self.new("cuDevicePrimaryCtxRetain", device)
        assert self.cuCtxSetCurrent(context) == 0
        return context

    def truth(self) -> dict[str, Any]:
        """See print_json in tests/fakes/truth.c."""
        self.driver.fake_stats_json.restype = c.c_size_t
        size = self.driver.fake_stats_json(None, c.c_size_t(0)) + 1024
        buffer = c.create_string_buffer(size)
        self.driver.fake_stats_json(buffer, c.c_size_t(size))
        return dict(json.loads(buffer.value))

    def live(self, kind: str, device: int = 0) -> int:
        """Live bytes of a kind on a device."""
        return int(self.truth()["devices"][device][kind]["live_bytes"])

    def calls(self, name: str) -> dict[str, int]:
        """How often a call was entered, entered as the outermost, and failed."""
        nothing = {"entered": 0, "outermost": 0, "failed": 0}
        return dict(self.truth()["calls"].get(name, nothing))


def environment(**settings: str) -> dict[str, str]:
    """The environment of a process that uses the stand-ins."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("GPUMEMPROF_FAKE", "CUDA_"))}
    return {**clean, "LD_LIBRARY_PATH": str(FAKES), **settings}


def cuda_process(**settings: str) -> Callable[[Callable[[Cuda], None]], Callable[[], None]]:
    """A test that runs in a process of its own, with these settings."""

    def decorate(test: Callable[[Cuda], None]) -> Callable[[], None]:
        def run() -> None:
            assert (FAKES / "libcuda.so.1").exists(), "the stand-ins are not built: make fakes"
            command = [sys.executable, __file__, test.__code__.co_filename, test.__name__]
            chosen = environment(**settings)
            done = subprocess.run(
                command, env=chosen, capture_output=True, text=True, timeout=60, check=False
            )
            assert done.returncode == 0, done.stderr

        run.__name__ = test.__name__
        run.body = test  # type: ignore[attr-defined]
        return run

    return decorate


def _child(path: str, name: str) -> None:
    spec = importlib.util.spec_from_file_location("test_in_process", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    getattr(module, name).body(Cuda())


if __name__ == "__main__":
    _child(*sys.argv[1:])
