"""A cache with a bound on what it holds; the entry unused for longest goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Lru(Generic[Key, Value]):
    """Holds entries until their costs sum to more than ``capacity``."""

    __slots__ = ("_capacity", "_cost", "_entries")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._cost = 0
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        """The value, which is now the last to go, or None."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: Key, value: Value, cost: int = 1) -> None:
        """Keep a value; one that alone exceeds the capacity is not kept."""
        replaced = self._entries.pop(key, None)
        if replaced is not None:
            self._cost -= replaced[1]
        if cost > self._capacity:
            return
        self._entries[key] = (value, cost)
        self._cost += cost
        while self._cost > self._capacity:
            _, (_, freed) = self._entries.popitem(last=False)
            self._cost -= freed

    def __len__(self) -> int:
        """Number of entries."""
        return len(self._entries)
