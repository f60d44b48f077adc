"""What waits to be pushed, bounded. A pure value; times are monotonic seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpumemprof.export.model import ContainerProfile, Owner
from gpumemprof.export.pyroscope import series
from gpumemprof.export.pyroscope.encode import Encoded

_SAMPLE_BYTES = 200
_ITEM_BYTES = 1000


@dataclass(slots=True, eq=False)
class Pending:
    """One request that is not settled. ``due``: not to be sent before."""

    owner: Owner
    time_ns: int
    interval_ns: int
    encoded: Encoded
    due: float
    attempts: int = 0
    uncertain: bool = False
    """An attempt had no answer: it may be stored already."""

    @property
    def memory(self) -> int:
        """Bytes that it takes, about."""
        return (
            _ITEM_BYTES + self.encoded.push.stored + _SAMPLE_BYTES * len(self.encoded.undelivered)
        )

    def undelivered(self) -> ContainerProfile | None:
        """What its owner's next profile has to tell if this is never delivered. None if nothing,
        or if it may have been delivered."""
        if self.uncertain or not self.encoded.undelivered:
            return None
        return series.dropped(self.owner, self.time_ns, self.interval_ns, self.encoded.undelivered)


class PushQueue:
    """Requests that wait. The newest profiles go first, so that what is in use now is shown now,
    also after an outage. When it is full, the oldest go: what they tell of memory in use has been
    told anew since."""

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._items: list[Pending] = []
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    def add(self, pending: Pending) -> list[Pending]:
        """Let ``pending`` wait. Returns what had to go for it; it can be ``pending`` itself."""
        self._items.append(pending)
        self.bytes += pending.memory
        gone = []
        while len(self._items) > self._max_items or self.bytes > self._max_bytes:
            oldest = min(self._items, key=lambda item: item.time_ns)
            self._remove(oldest)
            gone.append(oldest)
        return gone

    def take(self, now: float) -> Pending | None:
        """The next that is due, which waits no more."""
        due = [item for item in self._items if item.due <= now]
        if not due:
            return None
        first = min(due, key=lambda item: (-item.time_ns, item.due))
        self._remove(first)
        return first

    def next_due(self) -> float | None:
        """When the next is due."""
        return min((item.due for item in self._items), default=None)

    def take_older(self, time_ns: int) -> list[Pending]:
        """All whose profiles are of before ``time_ns``; they wait no more."""
        old = [item for item in self._items if item.time_ns < time_ns]
        for item in old:
            self._remove(item)
        return old

    def take_where(self, chosen: Callable[[Owner], bool]) -> list[Pending]:
        """All of the owners for which ``chosen`` is true; they wait no more."""
        found = [item for item in self._items if chosen(item.owner)]
        for item in found:
            self._remove(item)
        return found

    def take_all(self) -> list[Pending]:
        """All; none waits any more."""
        items, self._items, self.bytes = self._items, [], 0
        return items

    def hurry(self, now: float) -> None:
        """All are due now."""
        for item in self._items:
            item.due = min(item.due, now)

    def _remove(self, pending: Pending) -> None:
        self._items.remove(pending)
        self.bytes -= pending.memory
