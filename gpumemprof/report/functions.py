"""Which functions hold memory: the table's semantics, on the profile alone.

- *total* of a function: values of the stacks it is on; recursion counts once.
- *self*: values of the stacks it owns. The owner of a stack is the Python function nearest to the
  allocating call, because what native code allocates beneath a Python function was asked for by
  that function. Without a Python function it is the frame nearest to the call that is not CUDA's
  own (so a program linked with the static runtime does not end in the runtime's inside); if there
  is none, the call itself. A note such as ``[unwind failed: no CFI]`` owns as a function does: it
  says that the owner is not known. Every stack has one owner, so *self* adds up to the total.
- A function is told apart by kind, name, file and module: lines are summed. Its ``line`` is the
  one through which most bytes go, where a reader should look first (on a stack with recursion,
  the line of the innermost call).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from gpumemprof.probe.calls import ROWS
from gpumemprof.profile.model import TYPE_NAMES, Profile, Values
from gpumemprof.profile.numbering import FrameNumbers
from gpumemprof.profile.text import short_path
from gpumemprof.stack.frames import Frame, FrameKind, Stack

SORTS = {"inuse": "inuse_space", "alloc": "alloc_space", "peak": "peak_space"}
"""What tables can be sorted by, and the sample type it means."""

_CUDA_MODULE = re.compile(r"(?:^|/)libcuda(?:rt)?\.so[^/]*$")
_STATIC_RUNTIME = re.compile(r"^(?:__cudart|libcudart_static_)\w+$")


@dataclass(frozen=True, slots=True)
class FunctionRow:
    """One function. ``line`` 0: not known. ``internal``: owns nothing and is native code either
    beneath or around Python functions wherever it was seen, or CUDA's own: tables for people
    leave it out."""

    name: str
    kind: FrameKind
    file: str
    line: int
    module: str
    total: Values
    self: Values
    internal: bool


class _Key(NamedTuple):
    kind: FrameKind
    name: str
    file: str
    module: str


class _Sums:
    """What is summed up for one function."""

    __slots__ = ("beneath_python", "by_line", "of_cuda", "own", "owns")

    def __init__(self, of_cuda: bool) -> None:
        self.of_cuda = of_cuda
        self.by_line: dict[int, list[int]] = {}
        self.own = Values()
        self.owns = False
        self.beneath_python = True

    def add(self, line: int, values: Values) -> None:
        total = self.by_line.get(line)
        if total is None:
            self.by_line[line] = list(values)
            return
        for column, value in enumerate(values):
            total[column] += value

    def add_own(self, values: Values) -> None:
        self.own = self.own.plus(values)
        self.owns = True


def owner(stack: Stack) -> Frame | None:
    """The frame that a stack's bytes belong to; None for an empty stack."""
    index = owner_index(stack)
    return None if index is None else stack[index]


def owner_index(stack: Stack) -> int | None:
    """Where the owner stands in ``stack``."""
    for index, frame in enumerate(stack):
        if frame.kind is FrameKind.PYTHON:
            return index
    for index, frame in enumerate(stack):
        if not is_cuda(frame):
            return index
    return 0 if stack else None


def functions(profile: Profile, sort: str = "inuse", by: str = "self") -> list[FunctionRow]:
    """A row for each function of ``profile``, largest first.

    ``sort``: a key of ``SORTS``. ``by``: ``self`` puts first who asked for the memory, ``total``
    who called them; the other one decides between equals. Which kinds of memory are counted is
    the caller's choice (profile/merge.py)."""
    column = TYPE_NAMES.index(SORTS[sort])
    numbers = FrameNumbers()
    sums: dict[_Key, _Sums] = {}
    of_frame: list[_Sums] = []  # by the frame's number
    for sample in profile.samples:
        stack, values = sample.stack, sample.values
        frames = [numbers.number(frame) for frame in stack]
        for frame in numbers.frames[len(of_frame) :]:
            key = _Key(frame.kind, frame.name, frame.file, frame.module)
            of_frame.append(sums.setdefault(key, _Sums(is_cuda(frame))))
        owned = owner_index(stack)
        if owned is not None:
            of_frame[frames[owned]].add_own(values)
        python = any(frame.kind is FrameKind.PYTHON for frame in stack)
        seen: set[int] = set()
        for number, frame in zip(frames, stack, strict=True):
            entry = of_frame[number]
            if id(entry) not in seen:
                seen.add(id(entry))
                entry.add(frame.line, values)
                entry.beneath_python &= python
    rows = [_row(key, entry, column) for key, entry in sums.items()]
    first, second = (_self, _total) if by == "self" else (_total, _self)
    rows.sort(
        key=lambda row: (
            -first(row)[column],
            -second(row)[column],
            -row.total.peak_space,
            -row.total.alloc_space,
            row.name,
            row.file,
            row.module,
        )
    )
    return rows


def place(at: Frame | FunctionRow) -> str:
    """Where a frame or function is: file and line, or the module of native code."""
    if at.file:
        file = short_path(at.file) if at.kind is FrameKind.PYTHON else at.file
        return f"{file}:{at.line}" if at.line > 0 else file
    return at.module.rpartition("/")[2]


def _self(row: FunctionRow) -> Values:
    return row.self


def _total(row: FunctionRow) -> Values:
    return row.total


def _row(key: _Key, sums: _Sums, column: int) -> FunctionRow:
    def weight(line: int) -> tuple[int, int, int, int]:
        values = Values(*sums.by_line[line])
        return values[column], values.peak_space, values.alloc_space, -line

    return FunctionRow(
        name=key.name,
        kind=key.kind,
        file=key.file,
        line=max(sums.by_line, key=weight),
        module=key.module,
        total=Values(*map(sum, zip(*sums.by_line.values(), strict=True))),
        self=sums.own,
        internal=key.kind is FrameKind.NATIVE
        and not sums.owns
        and (sums.beneath_python or sums.of_cuda),
    )


def is_cuda(frame: Frame) -> bool:
    """Whether a frame is a CUDA call, or inside of CUDA."""
    return frame.kind is FrameKind.NATIVE and (
        frame.name in ROWS
        or _CUDA_MODULE.search(frame.module) is not None
        or _STATIC_RUNTIME.match(frame.name) is not None
    )
