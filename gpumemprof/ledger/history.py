"""What each stack held from time to time, in bounded memory: from this, slow leaks are told.

The bytes in use of all stacks are looked at in equal intervals. When there are as many looks as are
kept, every second one goes, and the interval doubles; so they cover the whole time evenly.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import NamedTuple

from gpumemprof.ledger.model import AggregateKey
from gpumemprof.ledger.series import Points
from gpumemprof.process.identity import ProcessId

FIRST_INTERVAL_NS = 20_000_000
SHARE = 100
"""A look takes 60 ns a stack. The time between two is at least so many times what the last took."""


@dataclass(frozen=True, slots=True)
class HistoryLimits:
    """``looks`` kept; ``stacks`` kept of each, those with the most bytes; 0: none are taken."""

    looks: int = 32
    stacks: int = 512

    def __post_init__(self) -> None:
        """Raise ValueError for limits too small to hold anything."""
        for each in fields(self):
            least = 4 if each.name == "looks" else 0
            if getattr(self, each.name) < least:
                raise ValueError(f"limit {each.name} must be at least {least}")


class _Look(NamedTuple):
    time_ns: int
    held: dict[AggregateKey, int]
    least: int
    """Stacks that are not in ``held`` had no more bytes than this."""


class StackHistory:
    """Of all processes. Times are ns of CLOCK_MONOTONIC."""

    def __init__(self, limits: HistoryLimits | None = None) -> None:
        self._limits = limits or HistoryLimits()
        self._looks: list[_Look] = []
        self._interval = FIRST_INTERVAL_NS
        self._due = 0 if self._limits.stacks else None

    def due(self, time_ns: int) -> bool:
        """Whether it is time for the next look."""
        return self._due is not None and time_ns >= self._due

    def look(self, time_ns: int, held: Iterable[tuple[AggregateKey, int]]) -> None:
        """Note what each stack of the running processes holds (bytes)."""
        began = time.perf_counter_ns()
        largest = heapq.nlargest(self._limits.stacks + 1, held, key=lambda pair: pair[1])
        kept = dict(largest[: self._limits.stacks])
        least = largest[-1][1] if len(largest) > len(kept) else 0
        self._looks.append(_Look(time_ns, kept, least))
        if len(self._looks) == self._limits.looks:
            # The last one stays, so that the next is an interval after it.
            self._looks = self._looks[1::2] if self._limits.looks % 2 == 0 else self._looks[::2]
            self._interval *= 2
        took = time.perf_counter_ns() - began
        self._due = time_ns + max(self._interval, SHARE * took)

    def snapshot(self) -> dict[AggregateKey, Points]:
        """For each stack (time, bytes in use) from the first look that found it, so far as known:
        at a look with too many stacks, a small one is not known."""
        found: dict[AggregateKey, list[tuple[int, int]]] = {}
        for look in self._looks:
            for key, size in look.held.items():
                found.setdefault(key, []).append((look.time_ns, size))
            if not look.least:
                for key in found.keys() - look.held.keys():
                    found[key].append((look.time_ns, 0))
        return {key: tuple(points) for key, points in found.items()}

    def forget(self, process: ProcessId) -> None:
        """Let go of a process that is published."""
        for look in self._looks:
            for key in [key for key in look.held if key.process == process]:
                del look.held[key]
