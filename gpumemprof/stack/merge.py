"""One stack out of two: native frames, with Python frames where the interpreter ran them. Pure.

Each call of ``_PyEval_EvalFrameDefault`` on the native stack stands for one run of Python
frames (see :mod:`gpumemprof.stack.python.frames`), in the same order from the leaf; the run
takes that frame's place. If the two do not agree in number, no Python frame is lost or moved
past a native frame that was matched: what is left over follows at the root end, after a note.
"""

from __future__ import annotations

import enum
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpumemprof.stack.frames import Frame, FrameKind, Stack

INCOMPLETE = Frame.note("native frames missing")
"""Stands where native frames between Python frames were not found."""


class FrameMode(enum.Enum):
    """Which frames a stack shows."""

    MIXED = "mixed"
    """Python frames and the native code they call. The interpreter's own machinery between
    Python frames (calling functions, iterating, running modules) is left out, and so are the
    C library's frames that start a thread or program which then runs nothing but Python."""
    PYTHON = "python"
    """Python frames, below them the hooked call. A stack without Python keeps its native frames."""
    NATIVE = "native"
    """Native frames only, the interpreter's included."""


@dataclass(frozen=True, slots=True)
class NativeFrame:
    """A symbolised native frame, and what it is to the Python interpreter.

    ``evaluates``: one call of the interpreter loop. (In builds whose instructions are functions
    of their own, 3.14 and later, it is still the one frame below them.) ``interpreter``: code of
    the file that holds the interpreter (libpython, or the python executable). Both are told by
    address and file, not by symbol: in a stripped file most of the loop may have no name.
    """

    frame: Frame
    evaluates: bool = False
    interpreter: bool = False


# The executable that only starts the interpreter in libpython is another file.
_INTERPRETER_FILE = re.compile(r"(lib)?python\d(\.\d+)?[a-z]*(\.so[.\d]*)?$")
_C_LIBRARY = re.compile(r"(libc|libpthread|ld-linux|ld-musl)[-.]")
_TRAMPOLINE = re.compile(r"py::")  # made by `python -X perf` around each Python function


def merge(
    native: Sequence[NativeFrame],
    runs: Sequence[Sequence[Frame]],
    mode: FrameMode = FrameMode.MIXED,
) -> Stack:
    """The merged stack, leaf first.

    ``native``: leaf first; may end in, or consist of, a note that says why unwinding stopped.
    ``runs``: Python frames of each call of the interpreter loop, innermost first.
    """
    if mode is FrameMode.NATIVE or not any(runs):
        return tuple(entry.frame for entry in native)
    if mode is FrameMode.PYTHON:
        return _python_only(native, runs)
    return _mixed(native, runs)


def _python_only(native: Sequence[NativeFrame], runs: Sequence[Sequence[Frame]]) -> Stack:
    leaf = native[:1]
    notes = [entry for entry in native[1:] if entry.frame.kind is FrameKind.NOTE]
    return (
        *(entry.frame for entry in leaf),
        *(frame for run in runs for frame in run),
        *(entry.frame for entry in notes),
    )


def _mixed(native: Sequence[NativeFrame], runs: Sequence[Sequence[Frame]]) -> Stack:
    stack: list[Frame] = []
    left = list(runs)
    after_python: list[Frame] = []  # native frames since the last run, towards the root
    for entry in native:
        if entry.evaluates and left:
            stack += after_python
            after_python = []
            stack += left.pop(0)
        elif entry.evaluates or not _hidden(entry):
            after_python.append(entry.frame)
    rest = [frame for run in left for frame in run]
    if rest:
        stack += after_python
        if not stack or stack[-1].kind is not FrameKind.NOTE:
            stack.append(INCOMPLETE)
        return tuple(stack + rest)
    if not all(_starts_threads(frame) for frame in after_python):
        stack += after_python
    return tuple(stack)


def _hidden(entry: NativeFrame) -> bool:
    """The interpreter's machinery: of no interest to one who reads Python."""
    if entry.frame.kind is not FrameKind.NATIVE:
        return False
    return (
        entry.interpreter
        or _TRAMPOLINE.match(entry.frame.name) is not None
        or _INTERPRETER_FILE.match(posixpath.basename(entry.frame.module)) is not None
    )


def _starts_threads(frame: Frame) -> bool:
    """Of the C library: below the outermost Python frame it has begun a thread or the program."""
    return _C_LIBRARY.match(posixpath.basename(frame.module)) is not None
