"""Builds the programs of tests/fakes/native so that capture_point allocates."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.integration.recording import FAKES
from tests.integration.stacks_held import NATIVE

_OPTIMISED = ("-O2", "-fomit-frame-pointer", "-g0")
_RUNTIME = FAKES / "libcudart.so.12"


@dataclass(frozen=True)
class Program:
    """How one program is built."""

    sources: tuple[str, ...]
    flags: tuple[str, ...] = _OPTIMISED
    compiler: str = "gcc"
    strip: bool = False

    def build(self, directory: Path, name: str) -> Path:
        """The program, built when it is first asked for."""
        program = directory / name.replace(" ", "_").replace(",", "")
        if program.exists():
            return program
        capture = directory / f"{program.name}.capture.o"
        c_compiler = "clang" if self.compiler.startswith("clang") else "gcc"
        plain = [flag for flag in self.flags if not flag.startswith(("-std=", "-Wl,"))]
        subprocess.run(
            [c_compiler, *plain, "-c", "-o", capture,
             NATIVE / "stacks_capture.c"],
            check=True,
        )  # fmt: skip
        subprocess.run(
            [self.compiler, *self.flags, "-w", "-o", program,
             *(NATIVE / source for source in self.sources), capture,
             *(["-s"] if self.strip else []), _RUNTIME, "-lpthread", "-ldl"],
            check=True,
        )  # fmt: skip
        return program


_STACKS = ("stacks.c", "frames.S")
PROGRAMS = {
    "gcc -O2": Program(_STACKS),
    "gcc -O2, lazy binding, control-flow protection": Program(
        _STACKS, (*_OPTIMISED, "-fcf-protection=full", "-Wl,-z,lazy")
    ),
    "gcc -O2 -g": Program(_STACKS, ("-O2", "-fomit-frame-pointer", "-g")),
    "gcc -O0": Program(_STACKS, ("-O0",)),
    "clang -O2": Program(_STACKS, _OPTIMISED, "clang"),
    "gcc -O2, stripped": Program(_STACKS, strip=True),
    "gcc -O2, fixed addresses": Program(_STACKS, (*_OPTIMISED, "-no-pie", "-fno-pie")),
    "gcc -O2, no search table": Program(_STACKS, (*_OPTIMISED, "-Wl,--no-eh-frame-hdr")),
    "more, gcc -O2": Program(("stacks_more.c",)),
    "more, clang -O2": Program(("stacks_more.c",), _OPTIMISED, "clang"),
    "exceptions, g++ -O2": Program(("exceptions.cpp",), _OPTIMISED, "g++"),
    "C++, g++ -O2": Program(("stacks_cxx.cpp",), (*_OPTIMISED, "-std=c++20"), "g++"),
    "C++, g++ -O2 -g": Program(
        ("stacks_cxx.cpp",), ("-O2", "-fomit-frame-pointer", "-g", "-std=c++20"), "g++"
    ),
}
