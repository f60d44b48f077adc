"""Numbers that name things: addresses name allocations, handles name physical memory.

A number names one thing at a time. A thing may have been obtained several times under its number
(an IPC handle opened twice, a handle retained) and lives until it is dropped as often.

A drop is taken out when its call is entered, because another thread may be given the same number
before the call returns, and undone if the call fails. When the number was given out anew in
between, the drop has evidently had its effect in spite of the error (CUDA also returns errors of
earlier asynchronous work), so then it is not undone.
"""

from __future__ import annotations

from collections import Counter
from typing import Generic, TypeVar

from gpumemprof.ledger.model import Count
from gpumemprof.ledger.peaks import Holding


class Named:
    """Something with a number. ``context``: it ends with this context; 0: with none known."""

    __slots__ = ("context", "in_flight", "references")

    counted = False
    """Whether it is memory of this process, not a reference to another's."""

    def __init__(self, context: int = 0) -> None:
        self.context = context
        self.references = 1
        self.in_flight = 0  # drops that may still turn out to have failed

    def take(self, references: int, time_ns: int) -> None:
        """So many references are gone."""

    def put(self, time_ns: int) -> None:
        """One reference came (back)."""


class Reference(Named):
    """Memory of another owner, opened by this process: never counted."""

    __slots__ = ()


class Allocation(Named):
    """Memory obtained by one call."""

    __slots__ = ("holding", "size")

    counted = True

    def __init__(self, holding: Holding, size: int, context: int) -> None:
        self.context = context
        self.references = 1
        self.in_flight = 0
        self.holding = holding
        self.size = size

    def take(self, references: int, time_ns: int) -> None:
        """It is held no longer."""
        self.holding.take(self.size, time_ns)

    def put(self, time_ns: int) -> None:
        """It is held after all."""
        self.holding.put(self.size, time_ns)


T = TypeVar("T", bound=Named)


class NameTable(Generic[T]):
    """What the numbers of one space name now."""

    __slots__ = ("_counts", "_limit", "dropped", "live")

    def __init__(self, limit: int, counts: Counter[Count]) -> None:
        self._limit = limit
        self._counts = counts
        self.live: dict[int, T] = {}
        self.dropped: dict[int, T] = {}
        """Last reference dropped by a call that may still fail; the number is not in ``live``."""

    def issue(self, number: int, named: T, time_ns: int) -> None:
        """From now on ``number`` names ``named``."""
        live = self.live
        old = live.get(number)
        if old is not None:
            old.take(old.references, time_ns)
            if old.counted:
                self._counts[Count.REPLACED] += 1
        else:
            if self.dropped:
                self.dropped.pop(number, None)
            if len(live) >= self._limit:
                self._counts[Count.UNTRACKED] += 1
                return
        live[number] = named
        named.put(time_ns)

    def share(self, number: int, named: T, time_ns: int) -> None:
        """One more reference to what ``number`` names or named before a drop in flight."""
        if self.dropped.get(number) is named:
            del self.dropped[number]
            self.live[number] = named
        named.references += 1
        named.put(time_ns)

    def drop(self, number: int, time_ns: int) -> T | None:
        """Take one reference; None if ``number`` names nothing. To be undone or settled."""
        named = self.live.get(number)
        if named is None:
            return None
        named.references -= 1
        named.in_flight += 1
        if not named.references:
            del self.live[number]
            self.dropped[number] = named
        named.take(1, time_ns)
        return named

    def undo(self, number: int, named: T, time_ns: int) -> bool:
        """A drop failed: the reference is back. False if the number was given out anew since."""
        still = self.live.get(number) is named or self.dropped.get(number) is named
        if still:
            self.share(number, named, time_ns)
        self.settle(number, named)
        return still

    def settle(self, number: int, named: T) -> None:
        """A drop can no longer fail."""
        named.in_flight -= 1
        if not named.in_flight and self.dropped.get(number) is named:
            del self.dropped[number]

    def end_context(self, context: int, time_ns: int) -> None:
        """End what belongs to ``context``, also what a drop in flight could bring back."""
        for number in [n for n, named in self.live.items() if named.context == context]:
            named = self.live.pop(number)
            named.take(named.references, time_ns)
        for number in [n for n, named in self.dropped.items() if named.context == context]:
            del self.dropped[number]
