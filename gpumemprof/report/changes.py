"""What changed between two profiles, as rows of one sample type: what tables and JSON show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeVar

from gpumemprof.profile.diff import FunctionKey, StackChange, compare, function_key
from gpumemprof.profile.growth import MINUTE_NS, between
from gpumemprof.profile.merge import PINNED_KIND, gpu_only, of_kinds
from gpumemprof.profile.model import TYPE_NAMES, Profile
from gpumemprof.report.functions import SORTS, FunctionRow, functions, is_cuda
from gpumemprof.stack.frames import FrameKind, Stack


class Change(Protocol):
    """Bytes before and after."""

    @property
    def name(self) -> str:
        """To sort by."""

    @property
    def before(self) -> int:
        """Bytes before; 0: it is new."""

    @property
    def after(self) -> int:
        """Bytes after; 0: it is gone."""


GPU_TITLE, PINNED_TITLE = "GPU memory", "Pinned host memory"

R = TypeVar("R", bound=Change)

ORDERS: Mapping[str, Callable[[Change], Any]] = {
    "growth": lambda change: change.before - change.after,
    "before": lambda change: -change.before,
    "after": lambda change: -change.after,
    "name": lambda change: change.name,
}
"""What changes can be sorted by."""


@dataclass(frozen=True, slots=True)
class FunctionChanged:
    """One function; file, line and module as they are after, or were if it is gone."""

    name: str
    kind: FrameKind
    file: str
    line: int
    module: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class StackChanged:
    """One stack, as it is after, or was if it is gone."""

    stack: Stack
    before: int
    after: int

    @property
    def name(self) -> str:
        """Its functions from the root, to sort by."""
        return ";".join(frame.name for frame in reversed(self.stack))


@dataclass(frozen=True)
class Part:
    """GPU memory, or pinned host memory, of both profiles, and the sample type compared."""

    title: str
    type: str
    before: Profile
    after: Profile

    @property
    def column(self) -> int:
        """Of the sample type in ``Values``."""
        return TYPE_NAMES.index(self.type)

    @property
    def totals(self) -> tuple[int, int]:
        """Bytes before and after."""
        return self.before.total[self.column], self.after.total[self.column]

    @property
    def minutes(self) -> float | None:
        """Between the two, if both are of the same running process and what is in use is
        compared: then bytes by minute can be told (of two points, that is no steady rise)."""
        trend = between(self.before, self.after) if self.type == "inuse_space" else None
        return (trend.until_ns - trend.since_ns) / MINUTE_NS if trend else None

    @property
    def strangers(self) -> bool:
        """Whether both have bytes, and no function in common (the calls of CUDA do not count)."""
        was, now = (
            {
                function_key(frame.kind, frame.name, frame.file, frame.module)
                for sample in profile.samples
                if sample.values[self.column]
                for frame in sample.stack
                if not is_cuda(frame) and frame.kind is not FrameKind.NOTE
            }
            for profile in (self.before, self.after)
        )
        return bool(was and now) and not was & now

    @property
    def pinned(self) -> bool:
        """Whether it is pinned host memory."""
        return self.title == PINNED_TITLE

    @property
    def changed(self) -> bool:
        """Whether any stack has other bytes."""
        return any(row.before != row.after for row in self.stacks())

    @cached_property
    def _stacks(self) -> list[StackChange]:
        return compare(self.before, self.after)

    def stacks(self) -> list[StackChanged]:
        """Every stack that has bytes before or after."""
        column = self.column
        rows = (
            StackChanged(change.stack, change.before[column], change.after[column])
            for change in self._stacks
        )
        return [row for row in rows if row.before or row.after]

    def functions(self, by: str = "self") -> list[FunctionChanged]:
        """Every function that has bytes before or after; ``by``: ``self`` or ``total``."""
        was, now = self._rows(self.before, by), self._rows(self.after, by)
        changes = []
        for key in [*now, *(key for key in was if key not in now)]:
            old, new = was.get(key, ([], 0)), now.get(key, ([], 0))
            # What is internal in one of the two only has its bytes in both all the same.
            internal = all(row.internal for row in (*old[0], *new[0]))
            if (old[1] or new[1]) and not internal:
                row = (new[0] or old[0])[0]
                changes.append(
                    FunctionChanged(
                        row.name, row.kind, row.file, row.line, row.module, old[1], new[1]
                    )
                )
        return changes

    def _rows(self, profile: Profile, by: str) -> dict[FunctionKey, tuple[list[FunctionRow], int]]:
        """Rows of one key, largest first, and their bytes."""
        found: dict[FunctionKey, tuple[list[FunctionRow], int]] = {}
        for row in functions(profile, _sort_of(self.type), by):
            key = function_key(row.kind, row.name, row.file, row.module)
            size = (row.self if by == "self" else row.total)[self.column]
            rows, sum_ = found.get(key, ([], 0))
            found[key] = [*rows, row], sum_ + size
        return found


def parts(before: Profile, after: Profile, type_: str = "") -> Iterator[Part]:
    """GPU memory, and pinned host memory where there is any.

    ``type_``: a key of ``SORTS``; by default what is in use, or what was at the peak where one of
    the two holds nothing any more, as after the end of a recorded command."""
    for title, of in (
        (GPU_TITLE, gpu_only),
        (PINNED_TITLE, lambda profile: of_kinds(profile, {PINNED_KIND})),
    ):
        was, now = of(before), of(after)
        if type_:
            name = SORTS[type_]
        elif "peak_space" in (was.held_type, now.held_type):
            name = "peak_space"
        else:
            name = "inuse_space"
        if title == GPU_TITLE or was.samples or now.samples:
            yield Part(title, name, was, now)


def largest(changes: Sequence[R], sort: str, limit: int | None) -> list[R]:
    """The changes to show, in order: sorted by growth, the ``limit`` that changed most."""
    if sort == "growth" and limit is not None:
        changes = sorted(changes, key=lambda change: -abs(change.after - change.before))[:limit]
    return sorted(changes, key=ORDERS[sort])[:limit]


def status(change: Change) -> str:
    """``new``, ``gone``, ``grew``, ``shrank`` or ``same``."""
    if change.before == change.after:
        return "same"
    if not change.before:
        return "new"
    if not change.after:
        return "gone"
    return "grew" if change.after > change.before else "shrank"


def percent(before: int, after: int) -> float | None:
    """Growth in per cent; None from nothing to something."""
    if before == after:
        return 0.0
    return 100 * (after - before) / before if before else None


def _sort_of(type_: str) -> str:
    return next(sort for sort, name in SORTS.items() if name == type_)
