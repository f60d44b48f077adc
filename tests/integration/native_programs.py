"""Build the programs of tests/fakes/native and take stacks from them, as the kernel would."""

from __future__ import annotations

import contextlib
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpumemprof.stack.unwind import Registers

SOURCES = Path(__file__).parent.parent / "fakes" / "native"
_RECORD = struct.Struct("<9Q")

# What libraries of this field are compiled with, and the extremes.
VARIANTS: dict[str, tuple[str, ...]] = {
    "gcc -O2": ("gcc", "-O2", "-fomit-frame-pointer"),
    "gcc -O2, control-flow protection": (
        "gcc",
        "-O2",
        "-fcf-protection=full",
        "-fomit-frame-pointer",
    ),
    "gcc -O0, frame pointers": ("gcc", "-O0"),
    "clang -O2": ("clang", "-O2", "-fomit-frame-pointer"),
}


def compiler(command: tuple[str, ...]) -> tuple[str, ...] | None:
    """The command, None where that compiler is not installed."""
    return command if shutil.which(command[0]) else None


def build_stacks(directory: Path, command: tuple[str, ...], *flags: str) -> Path:
    """The program of stacks.c."""
    program = directory / "stacks"
    sources = [SOURCES / name for name in ("stacks.c", "frames.S", "capture.S")]
    subprocess.run(
        [*command, *flags, "-g0", "-o", program, *sources, "-lpthread", "-ldl"], check=True
    )
    return program


def build_exceptions(directory: Path, command: tuple[str, ...]) -> Path:
    """The program of exceptions.cpp."""
    program = directory / "exceptions"
    cpp = {"gcc": "g++", "clang": "clang++"}[command[0]]
    sources = [SOURCES / name for name in ("exceptions.cpp", "capture.S")]
    subprocess.run([cpp, *command[1:], "-g0", "-o", program, *sources, "-lpthread"], check=True)
    return program


def build_library(directory: Path, name: str = "libplugin.so") -> Path:
    """The library of library.c."""
    library = directory / name
    subprocess.run(
        ["gcc", "-O2", "-fomit-frame-pointer", "-shared", "-fPIC", "-Wl,--build-id", "-o", library,
         SOURCES / "library.c"],
        check=True,
    )  # fmt: skip
    return library


@dataclass
class Captured:
    """A process that waits in capture_point."""

    pid: int
    registers: Registers
    window: bytes
    process: subprocess.Popen[bytes]

    def next(self) -> Captured:
        """Let it go on to the next capture."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"g")
        self.process.stdin.flush()
        registers, window = read_record(self.process)
        return Captured(self.pid, registers, window, self.process)


def read_record(process: subprocess.Popen[bytes]) -> tuple[Registers, bytes]:
    """The next record a program writes; EOFError when there is none."""
    assert process.stdout is not None
    head = process.stdout.read(_RECORD.size)
    if len(head) < _RECORD.size:
        raise EOFError
    *registers, size = _RECORD.unpack(head)
    return Registers(*registers), process.stdout.read(size)


@contextlib.contextmanager
def capture(*command: str | Path) -> Iterator[Captured]:
    """Run a program up to its first capture; it is killed at the end."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        registers, window = read_record(process)
        yield Captured(process.pid, registers, window, process)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        with contextlib.suppress(OSError):
            Path(f"/tmp/perf-{process.pid}.map").unlink()


_GDB_SCRIPT = """
import gdb
gdb.execute("set backtrace past-main on")
gdb.execute("set backtrace past-entry on")
for thread in gdb.selected_inferior().threads():
    thread.switch()
    frame = gdb.newest_frame()
    if frame.name() != "capture_point":
        continue
    while frame is not None:
        if frame.type() != gdb.INLINE_FRAME and frame.type() != gdb.TAILCALL_FRAME:
            print("FRAME", frame.pc(), frame.name())
        frame = frame.older()
"""


def gdb_frames(pid: int, directory: Path) -> list[tuple[int, str]]:
    """(pc, function) of each physical frame of the thread in capture_point, by the debugger."""
    script = directory / "frames.py"
    script.write_text(_GDB_SCRIPT)
    output = subprocess.run(
        ["gdb", "-nx", "-p", str(pid), "-batch", "-x", script],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    frames = []
    for line in output.splitlines():
        if line.startswith("FRAME "):
            _, pc, name = line.split(" ", 2)
            frames.append((int(pc), name))
    return frames
