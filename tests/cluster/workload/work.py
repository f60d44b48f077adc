"""What runs in the test's pods: allocates known amounts in functions of known names and holds them.

    work.py NAME=MIB... [--late SECONDS] [--seconds SECONDS] [--churn PAIRS]

Each NAME is a function that allocates so many MiB through libcudart. With --churn, so many pairs
of 1 MiB are allocated and freed first. Prints one line of JSON when it holds all; then it stays
for --seconds, or until it is told to end.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import signal
import sys
import threading
import time
from collections.abc import Callable

MIB = 1 << 20


class Cuda:
    """Two calls of the runtime library."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcudart.so.12")

    def malloc(self, size: int) -> int:
        pointer = ctypes.c_void_p()
        error = self._library.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size))
        if error:
            raise SystemExit(f"cudaMalloc: error {error}")
        return pointer.value or 0

    def free(self, address: int) -> None:
        if self._library.cudaFree(ctypes.c_void_p(address)):
            raise SystemExit("cudaFree failed")


def function_named(name: str, cuda: Cuda, size: int) -> Callable[[], int]:
    """A function of that name, as a profiler sees it."""
    if not name.isidentifier():
        raise SystemExit(f"{name} is no name of a function")
    place: dict[str, Callable[[], int]] = {}
    source = f"def {name}():\n    return cuda.malloc(size)\n"
    exec(compile(source, f"/srv/{name}.py", "exec"), {"cuda": cuda, "size": size}, place)
    return place[name]


def churn(cuda: Cuda, pairs: int) -> None:
    for _ in range(pairs):
        cuda.free(cuda.malloc(MIB))
        time.sleep(0.002)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("allocations", nargs="+", metavar="NAME=MIB")
    parser.add_argument("--late", type=float, default=0)
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--churn", type=int, default=0)
    options = parser.parse_args()
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())

    time.sleep(options.late)
    cuda = Cuda()
    # The Python part of what a program allocates in the first moments after cuInit is not seen
    # by those who record every process; these tests are about bytes and whose they are.
    cuda.free(0)
    time.sleep(1)
    churn(cuda, options.churn)
    held, functions = {}, []
    for text in options.allocations:
        name, _, mib = text.partition("=")
        size = int(mib) * MIB
        functions.append(function_named(name, cuda, size))  # kept: code that is gone has no name
        functions[-1]()
        held[name] = size
    print(json.dumps({"held": held, "churned": options.churn * MIB}), flush=True)
    ended.wait(options.seconds or None)


if __name__ == "__main__":
    sys.exit(main())
