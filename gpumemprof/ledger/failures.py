"""Failed allocations, with what was live then."""

from __future__ import annotations

import heapq
from collections import Counter, deque

from gpumemprof.ledger.events import UNKNOWN_DEVICE, MemoryKind
from gpumemprof.ledger.model import AggregateKey, Failure, Limits
from gpumemprof.ledger.peaks import HighWaterMark, Holding

Live = tuple[tuple[tuple[AggregateKey, int], ...], int]
"""The largest aggregates with their bytes, and the bytes in those left out."""

UNKNOWN_ERROR = 999
"""cudaErrorUnknown, CUDA_ERROR_UNKNOWN: stands for errors beyond the limit of different ones."""
SCAN_NS_PER_AGGREGATE = 1000
"""Once the first failures are stored, looking at every aggregate (some 60 ns each) for the live
set of one more is done at most this often, so that a program that fails in a loop cannot make the
profiler spend more than a few per cent of a processor on it."""


class FailureLog:
    """Failures of one process: all counted, the first and the most recent stored."""

    __slots__ = ("_first", "_first_room", "_limits", "_looked", "_recent", "by_error", "count")

    def __init__(self, limits: Limits) -> None:
        self.count = 0
        self.by_error: Counter[tuple[MemoryKind, int, int]] = Counter()
        """(kind, device, error code) → failures, for as many different ones as are stored."""
        self._limits = limits
        self._first_room = limits.failures // 2
        self._first: list[Failure] = []
        self._recent: deque[Failure] = deque(maxlen=limits.failures - self._first_room)
        self._looked: dict[HighWaterMark, tuple[int, int, Live]] = {}

    @property
    def dropped(self) -> int:
        """Failures counted and no longer stored."""
        return self.count - len(self._first) - len(self._recent)

    def add(self, failure: Failure) -> None:
        """Count a failure, and store it in place of an older one if need be."""
        self.count += 1
        self._count_error(failure)
        if len(self._first) < self._first_room:
            self._first.append(failure)
        else:
            self._recent.append(failure)

    def _count_error(self, failure: Failure) -> None:
        kind = failure.kind, failure.device, failure.error
        if kind not in self.by_error and len(self.by_error) >= self._limits.failures:
            kind = failure.kind, UNKNOWN_DEVICE, UNKNOWN_ERROR  # a program chooses its errors
        self.by_error[kind] += 1

    def stored(self) -> tuple[Failure, ...]:
        """Oldest first."""
        return (*self._first, *self._recent)

    def live(self, mark: HighWaterMark, time_ns: int) -> Live | None:
        """What is held of a group now; None if it was looked at too short a time ago."""
        if mark in self._looked:
            changes, when, live = self._looked[mark]
            if changes == mark.changes:
                return live
            early = self.count < self._first_room
            if not early and time_ns - when < SCAN_NS_PER_AGGREGATE * len(mark.holdings):
                return None
        live = _largest(mark, self._limits.failure_stacks)
        self._looked[mark] = mark.changes, time_ns, live
        return live


def _largest(mark: HighWaterMark, limit: int) -> Live:
    def held_bytes(holding: Holding) -> int:
        return holding.inuse_bytes

    held = [holding for holding in mark.holdings if holding.inuse_bytes]
    largest = heapq.nlargest(limit, held, key=held_bytes)  # equal ones stay in their order
    live = tuple((holding.key, holding.inuse_bytes) for holding in largest)
    return live, mark.inuse_bytes - sum(size for _, size in live)
