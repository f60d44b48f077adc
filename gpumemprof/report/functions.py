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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from gpumemprof.probe.calls import ROWS
from gpumemprof.profile.model import Profile, Sample, Values
from gpumemprof.profile.text import short_path
from gpumemprof.profile.weighted import TYPE_NAMES
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


@dataclass(slots=True)
class _Sums:
    """What is summed up for one function."""

    by_line: dict[int, Values] = field(default_factory=dict)
    own: Values = field(default_factory=Values)
    owns: bool = False
    internal: bool = True


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
        if not _of_cuda(frame):
            return index
    return 0 if stack else None


def functions(profile: Profile, sort: str = "inuse", by: str = "self") -> list[FunctionRow]:
    """A row for each function of ``profile``, largest first.

    ``sort``: a key of ``SORTS``. ``by``: ``self`` puts first who asked for the memory, ``total``
    who called them; the other one decides between equals. Which kinds of memory are counted is
    the caller's choice (profile/merge.py)."""
    column = TYPE_NAMES.index(SORTS[sort])
    sums: dict[_Key, _Sums] = {}
    keys: dict[Frame, _Key] = {}
    for sample in _by_stack(profile.samples):
        stack, values = sample.stack, sample.values
        owned = owner_index(stack)
        python = any(frame.kind is FrameKind.PYTHON for frame in stack)
        seen: set[_Key] = set()
        for index, frame in enumerate(stack):
            key = keys.get(frame)
            if key is None:
                key = keys[frame] = _Key(frame.kind, frame.name, frame.file, frame.module)
            entry = sums.get(key)
            if entry is None:
                entry = sums[key] = _Sums()
            if index == owned:
                entry.own = entry.own.plus(values)
                entry.owns = True
            if key in seen:
                continue
            seen.add(key)
            entry.by_line[frame.line] = entry.by_line.get(frame.line, Values()).plus(values)
            if frame.kind is not FrameKind.NATIVE or not (python or _of_cuda(frame)):
                entry.internal = False
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
    total = Values()
    for values in sums.by_line.values():
        total = total.plus(values)

    def weight(line: int) -> tuple[int, int, int, int]:
        values = sums.by_line[line]
        return values[column], values.peak_space, values.alloc_space, -line

    return FunctionRow(
        name=key.name,
        kind=key.kind,
        file=key.file,
        line=max(sums.by_line, key=weight),
        module=key.module,
        total=total,
        self=sums.own,
        internal=sums.internal and not sums.owns,
    )


def _by_stack(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Samples summed over processes, calls and devices: each stack is looked at once."""
    stacks: dict[Stack, Values] = {}
    for sample in samples:
        known = stacks.get(sample.stack)
        stacks[sample.stack] = sample.values if known is None else known.plus(sample.values)
    for stack, values in stacks.items():
        yield Sample(stack, (), values)


def _of_cuda(frame: Frame) -> bool:
    """Whether a frame is a CUDA call, or inside of CUDA."""
    return frame.kind is FrameKind.NATIVE and (
        frame.name in ROWS
        or _CUDA_MODULE.search(frame.module) is not None
        or _STATIC_RUNTIME.match(frame.name) is not None
    )
