"""Symbols of a file as large as PyTorch's largest: time and memory of the first look-up."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from gpumemprof.process.maps import Mapping
from gpumemprof.stack.symbols import Symbolizer
from gpumemprof.stack.unwind import FileCache

FUNCTIONS = 400_000
_PEAK = "VmHWM"


def _memory(field: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0])


def _library(folder: Path) -> Path:
    """A library of many functions, each of which has a symbol."""
    source, library = folder / "many.s", folder / "libmany.so"
    with source.open("w") as out:
        out.write(".text\n")
        for i in range(FUNCTIONS):
            name = f"_ZN2at6native12_GLOBAL__N_1{len(f'kernel_{i}')}kernel_{i}Ev"
            out.write(
                f".globl {name}\n.type {name},@function\n{name}:\nret\n.size {name},.-{name}\n"
            )
    subprocess.run(["gcc", "-shared", "-nostdlib", "-o", library, source], check=True)
    return library


def report() -> Iterator[str]:
    """Lines of the table, measured in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        library = _library(Path(name))
        command = [sys.executable, "-m", "tests.bench.symbols", str(library)]
        yield from subprocess.run(
            command, check=True, capture_output=True, text=True
        ).stdout.splitlines()


def _measure(library: Path) -> Iterator[str]:
    import ctypes
    import os

    from gpumemprof.process import maps

    ctypes.CDLL(str(library))
    mapping: Mapping = next(
        m for m in maps.read(os.getpid()).executable() if m.path == str(library)
    )
    files = FileCache()
    file = files.mapped(os.getpid(), mapping)
    assert file.elf is not None
    addresses = [
        file.elf.code_vaddr(mapping.offset + i * (mapping.end - mapping.start) // 64) or 0
        for i in range(60)
    ]
    before = _memory(_PEAK)
    began = time.perf_counter()
    frames = Symbolizer(files).frames([(file.id, address) for address in addresses])
    seconds = time.perf_counter() - began
    named = sum("kernel_" in frame.name for frame in frames)
    yield "| what | figure |"
    yield "|---|---|"
    yield f"| symbols, size of the file | {FUNCTIONS:,}, {library.stat().st_size >> 20} MiB |"
    yield f"| 60 addresses, nothing known before | {seconds:.2f} s, {named} named |"
    yield f"| memory it took at its peak | {(_memory(_PEAK) - before) >> 10} MiB |"


if __name__ == "__main__":
    for line in _measure(Path(sys.argv[1])):
        print(line)
