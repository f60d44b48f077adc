"""One stack out of two: native frames, with Python frames where the interpreter ran them. Pure.

Each call of ``_PyEval_EvalFrameDefault`` on the native stack stands for one run of Python
frames (see :mod:`gpumemprof.stack.python.frames`), in the same order from the leaf; the run
takes that frame's place. If the two do not agree in number, no Python frame is lost or moved
past a native frame that was matched: what is left over follows at the root end, after a note.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Sequence
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

    ``evaluates``: one call of the interpreter loop. ``interpreter``: code of the file that
    holds the interpreter (libpython, or the python executable).
    """

    frame: Frame
    evaluates: bool = False
    interpreter: bool = False


_EVALUATES = re.compile(r"_PyEval_EvalFrameDefault(\.|$)")
_START = re.compile(
    r"(_start|main|_dl_start_user|_?_libc_start_(main|call_main)(_impl|_alias_\d+)?"
    r"|start_thread|(__)?clone3?|thread_start)(\.\w+|@.*)?$"
)
_TRAMPOLINE = re.compile(r"py::")  # made by `python -X perf` around each Python function


def is_eval_symbol(name: str) -> bool:
    """Whether a symbol is the interpreter loop: one such frame stands for one run.

    Compilers split it (``.cold``, ``.part.0``, ``.lto_priv.0``). In builds whose instructions
    are functions of their own (3.14 and later, ``_TAIL_CALL_*``) it is still the one frame
    below them. ``PyEval_EvalFrameEx`` only calls it and is not counted.
    """
    return _EVALUATES.match(name) is not None


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
    if not all(_START.match(frame.name) for frame in after_python):
        stack += after_python
    return tuple(stack)


def _hidden(entry: NativeFrame) -> bool:
    """The interpreter's machinery: of no interest to one who reads Python."""
    if entry.frame.kind is not FrameKind.NATIVE:
        return False
    return entry.interpreter or _TRAMPOLINE.match(entry.frame.name) is not None


def native_frames(
    frames: Sequence[Frame], interpreter_module: str, evaluates: Sequence[bool] | None = None
) -> Iterator[NativeFrame]:
    """Tell symbolised frames apart by name and module.

    ``interpreter_module``: path of the file that holds the interpreter, "" for a process
    without one. ``evaluates``: for each frame, whether its address lies in the interpreter
    loop, where that is known better than by name (stripped files).
    """
    for index, frame in enumerate(frames):
        inside = bool(interpreter_module) and frame.module == interpreter_module
        loop = inside and (is_eval_symbol(frame.name) or bool(evaluates and evaluates[index]))
        yield NativeFrame(frame, evaluates=loop, interpreter=inside)
