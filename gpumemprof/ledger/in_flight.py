"""Frees that were entered and may still fail: one a thread.

Success sends no event. So what a thread's free took out is kept until that free is told to have
failed, or the thread enters its next one.
"""

from __future__ import annotations

from typing import Generic, Protocol

from gpumemprof.ledger.names import NameTable, T
from gpumemprof.ledger.vmm import Mapping, VirtualMemory


class Taken(Protocol):
    """What a free, unmapping or release took out."""

    def undo(self, time_ns: int) -> bool:
        """It failed. False if what it named was given out anew, or ended, meanwhile."""

    def settle(self) -> None:
        """It can no longer fail."""


class Drop(Generic[T]):
    """A free or release of ``number``."""

    __slots__ = ("_named", "_number", "_table")

    def __init__(self, table: NameTable[T], number: int, named: T) -> None:
        self._table = table
        self._number = number
        self._named = named

    def undo(self, time_ns: int) -> bool:
        """See ``Taken``."""
        return self._table.undo(self._number, self._named, time_ns)

    def settle(self) -> None:
        """See ``Taken``."""
        self._table.settle(self._number, self._named)


class Unmap:
    """An unmapping of several mappings."""

    __slots__ = ("_mappings", "_memory")

    def __init__(self, memory: VirtualMemory, mappings: list[Mapping]) -> None:
        self._memory = memory
        self._mappings = mappings

    def undo(self, time_ns: int) -> bool:
        """See ``Taken``."""
        return self._memory.remap(self._mappings, time_ns)

    def settle(self) -> None:
        """See ``Taken``."""
        self._memory.settle(self._mappings)


class FreesInFlight:
    """The last free of each thread. Of more than ``limit`` threads the oldest is forgotten: if its
    free fails after all, that is told as unmatched."""

    __slots__ = ("_limit", "_taken")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken: dict[int, Taken | None] = {}

    def settle(self, thread: int) -> None:
        """The thread enters a new free: its last one did not fail."""
        taken = self._taken.get(thread)
        if taken is not None:
            taken.settle()

    def enter(self, thread: int, taken: Taken | None) -> None:
        """The thread entered a free, after ``settle``. ``taken`` None: it took nothing out."""
        self._taken[thread] = taken
        if len(self._taken) > self._limit:
            forgotten = self._taken.pop(next(iter(self._taken)))
            if forgotten is not None:
                forgotten.settle()

    def undo(self, thread: int, time_ns: int) -> bool | None:
        """The thread's free failed: put back what it took. False if that could not be done (in
        part), None if no free of the thread is known."""
        if thread not in self._taken:
            return None
        taken = self._taken.pop(thread)
        return taken is None or taken.undo(time_ns)
