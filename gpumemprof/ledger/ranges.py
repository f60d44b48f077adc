"""Ranges of addresses that do not overlap, in order."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class HasRange(Protocol):
    """Anything that covers [start, end), at least one address; compared by identity."""

    @property
    def start(self) -> int:
        """First address."""

    @property
    def end(self) -> int:
        """First address after it."""


T = TypeVar("T", bound=HasRange)


class RangeMap(Generic[T]):
    """Finds ranges by address in O(log n). Adding and taking move a list of integers."""

    __slots__ = ("_by_start", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._by_start: dict[int, T] = {}

    def __len__(self) -> int:
        """How many ranges there are."""
        return len(self._starts)

    def __iter__(self) -> Iterator[T]:
        """All ranges, in no order."""
        return iter(self._by_start.values())

    def add(self, item: T) -> None:
        """Add a range; none that overlaps it may be present (``take_overlapping`` first)."""
        if not self._starts or item.start > self._starts[-1]:
            self._starts.append(item.start)
        else:
            self._starts.insert(bisect_left(self._starts, item.start), item.start)
        self._by_start[item.start] = item

    def covering(self, address: int) -> T | None:
        """The range that contains ``address``."""
        index = bisect_right(self._starts, address) - 1
        if index < 0:
            return None
        item = self._by_start[self._starts[index]]
        return item if address < item.end else None

    def add_all(self, items: list[T]) -> None:
        """Add many at once, in one pass over the list."""
        if len(items) == 1:  # by far the most frequent
            self.add(items[0])
            return
        self._by_start.update((item.start, item) for item in items)
        self._starts.extend(item.start for item in items)
        self._starts.sort()  # runs that are sorted already: linear

    def take_these(self, items: list[T]) -> list[T]:
        """Take out those of ``items``, which are in order, that are present."""
        if not items or not self._starts:
            return []
        if len(items) == 1:
            if self._by_start.get(items[0].start) is not items[0]:
                return []
            index = bisect_left(self._starts, items[0].start)
            return self._take(index, index + 1)
        wanted = set(items)
        inside = self.take_inside(items[0].start, items[-1].end)
        self.add_all([item for item in inside if item not in wanted])
        return [item for item in inside if item in wanted]

    def take_overlapping(self, start: int, end: int) -> list[T]:
        """Take out every range that shares an address with [start, end)."""
        first = bisect_left(self._starts, start)
        if first and self._by_start[self._starts[first - 1]].end > start:
            first -= 1
        return self._take(first, bisect_left(self._starts, end))

    def take_inside(self, start: int, end: int) -> list[T]:
        """Take out every range that lies wholly in [start, end)."""
        first = bisect_left(self._starts, start)
        last = bisect_left(self._starts, end)
        if first < last and self._by_start[self._starts[last - 1]].end > end:
            last -= 1
        return self._take(first, last)

    def _take(self, first: int, last: int) -> list[T]:
        if first >= last:
            return []
        taken = [self._by_start.pop(start) for start in self._starts[first:last]]
        del self._starts[first:last]
        return taken
