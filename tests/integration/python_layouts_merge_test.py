"""Native and Python frames of every interpreter fit together, stripped interpreters included."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import pytest
from python_layouts_interpreters import INTERPRETERS, Interpreter
from python_layouts_live_test import find, own_accounts, program_for, running
from python_layouts_walk import frames, thread_states

from gpumemprof.stack.frames import Frame, FrameKind
from gpumemprof.stack.merge import NativeFrame, merge
from gpumemprof.stack.python.frames import PythonFrames
from gpumemprof.stack.python.memory import ProcessMemory
from gpumemprof.stack.symbols import Symbolizer
from gpumemprof.stack.unwind import FileCache, ProcessImage, Registers, UnwindEnd, Unwinder

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="not root"),
    pytest.mark.skipif(shutil.which("gdb") is None, reason="needs gdb"),
]

_REGISTERS = ("rip", "rsp", "rbp", "rbx", "r12", "r13", "r14", "r15")


def registers_at_call(pid: int, interpreter: Interpreter) -> Registers:
    """Those of the main thread as it entered the function it is in, by the debugger."""
    commands = (
        f"set sysroot {interpreter.root}",
        f"attach {pid}",
        "frame 1",
        f"info registers {' '.join(_REGISTERS)}",
    )
    arguments = [word for command in commands for word in ("-ex", command)]
    shown = subprocess.run(
        ["gdb", "-nx", "-batch", *arguments], capture_output=True, text=True, check=False
    ).stdout
    values = {name: int(value, 16) for name, value in re.findall(r"^(\w+) +(0x\w+)", shown, re.M)}
    ip, sp, *saved = (values[name] for name in _REGISTERS)
    return Registers(ip, sp - 8, *saved)  # the return address is still below the caller's stack


@pytest.mark.parametrize("interpreter", INTERPRETERS, ids=lambda i: i.id)
def test_each_run_of_python_frames_has_its_native_call(interpreter: Interpreter) -> None:
    with running(interpreter, program_for(interpreter)) as process:
        accounts = own_accounts(process)
        found = find(process)
        files = FileCache()
        image = ProcessImage(process.pid, files)
        registers = registers_at_call(process.pid, interpreter)
        with ProcessMemory(process.pid) as memory:
            window = memory.read_some(registers.sp, 64 << 10)
            python = PythonFrames(memory, found.layout, found.code_type, found.none)
            runs = next(
                runs
                for state in thread_states(memory, found.target).values()
                if (runs := python.resolve(frames(memory, found.target, state)))[-1][-1].name
                == "<module>"
            )
        stack = Unwinder(image).unwind(registers, window)
        assert stack.end is UnwindEnd.ROOT
        assert sum(map(found.evaluates, stack.lookups)) == len(runs)

        native = [
            NativeFrame(frame, found.evaluates(pc), frame.module == found.module)
            for frame, pc in zip(
                Symbolizer(files).image_frames(image, stack.lookups), stack.lookups, strict=True
            )
        ]
        merged = merge(native, runs)
    shown = [(f.name, f.file, f.line) for f in merged if f.kind is FrameKind.PYTHON]
    assert shown in accounts
    assert merged[-1].name == "<module>"
    first = next(i for i, frame in enumerate(merged) if frame.kind is FrameKind.PYTHON)
    assert all(of_asyncio(frame) for frame in merged[first:] if frame.kind is not FrameKind.PYTHON)


def of_asyncio(frame: Frame) -> bool:
    """The one extension module that calls Python in the program, a file of its own or not."""
    return "_asyncio" in frame.module
