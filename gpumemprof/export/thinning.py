"""What to let go first when a store is full. A pure function.

Readers look closely at the last hour and from afar at last week. So the one that goes is the one
whose neighbours are closest to each other *for their age*: what remains stands ever farther apart
the older it is, and still reaches back to the beginning. (At 1,000 kept of one container, one
every 15 s: all of the last half hour, one in ten minutes a day ago, one an hour a week ago.)
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple


class Item(NamedTuple):
    """Something kept. ``group``: whose it is; the first and the last of a group mark its span.
    ``size``: in the unit of the limit. ``fixed``: goes only when nothing else is left."""

    group: str
    time_ns: int
    size: int
    fixed: bool = False


def to_let_go(items: Iterable[Item], excess: int, now_ns: int) -> list[Item]:
    """Which of ``items`` to let go, until their sizes reach ``excess``.

    Groups that take more than others are thinned more, and so are those which ended long ago. At
    last the fixed ones and the ends of groups go too, the oldest first, newest ones of a group
    last of all."""
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(item.group, []).append(item)
    rows = [_Row(sorted(group, key=lambda item: item.time_ns), now_ns) for group in groups.values()]
    heap = [
        (row.score(index), number, index)
        for number, row in enumerate(rows)
        for index in range(1, len(row.items) - 1)
        if not row.items[index].fixed
    ]
    heapq.heapify(heap)
    gone: list[Item] = []
    while heap and excess > 0:
        score, number, index = heap[0]
        row = rows[number]
        now = row.score(index)
        if now > score:  # a neighbour went meanwhile
            heapq.heapreplace(heap, (now, number, index))
            continue
        heapq.heappop(heap)
        gone.append(row.remove(index))
        excess -= gone[-1].size
    if excess > 0:
        rest = [(index == row.newest, row.items[index]) for row in rows for index in row.left()]
        for _, item in sorted(rest, key=lambda pair: (pair[0], pair[1].time_ns)):
            if excess <= 0:
                break
            gone.append(item)
            excess -= item.size
    return gone


class _Row:
    """One group in the order of time, as a list whose members know their neighbours."""

    def __init__(self, items: list[Item], now_ns: int) -> None:
        self.items = items
        self.newest = len(items) - 1
        self._now = now_ns
        self._size = max(sum(item.size for item in items), 1)
        self._before = list(range(-1, len(items) - 1))
        self._after = list(range(1, len(items) + 1))
        self._gone: set[int] = set()

    def score(self, index: int) -> float:
        """How much it would be missed."""
        gap = self.items[self._after[index]].time_ns - self.items[self._before[index]].time_ns
        age = max(self._now - self.items[index].time_ns, 1)
        return gap / age / self._size

    def remove(self, index: int) -> Item:
        before, after = self._before[index], self._after[index]
        self._after[before], self._before[after] = after, before
        self._gone.add(index)
        return self.items[index]

    def left(self) -> list[int]:
        return [index for index in range(len(self.items)) if index not in self._gone]
