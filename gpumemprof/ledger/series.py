"""What each process held over time, in bounded memory.

A series is a step function: a list of points, each a time and the bytes held from then on. Every
change is a point while they fit. When they no longer do, time is cut into buckets of equal width,
and of the points in a bucket those that hold its first, lowest, highest and last bytes stay: what a
chart with a column for each bucket shows is exact, and so are the peak, when it was first reached,
the first point and the last. Whenever the buckets get too many, they become twice as wide or wider.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import groupby
from typing import NamedTuple

from gpumemprof.ledger.events import MemoryKind
from gpumemprof.process.identity import ProcessId

Points = tuple[tuple[int, int], ...]
"""(time in ns, bytes held from then on); times rise strictly. Before the first: 0 bytes."""

_KEPT = 4  # of each bucket: first, lowest, highest, last
_MOST = (1 << 63) - 1
"""Bytes that a point can tell: a library that is not what it seems may claim to hand out more."""


@dataclass(frozen=True, slots=True)
class SeriesLimits:
    """``points`` of one series (16 bytes each), ``series`` kept at once."""

    points: int = 1024
    series: int = 256

    def __post_init__(self) -> None:
        """Raise ValueError for limits too small to hold anything."""
        for field in fields(self):
            least = 8 * _KEPT if field.name == "points" else 0
            if getattr(self, field.name) < least:
                raise ValueError(f"limit {field.name} must be at least {least}")


class SeriesKey(NamedTuple):
    """Whose memory it is, of which kind, on which device (``UNKNOWN_DEVICE``: not known)."""

    process: ProcessId
    kind: MemoryKind
    device: int


class StepFunction:
    """One series, from its first change on.

    The present point is not settled: one event may tell several changes, and only what it leaves
    counts. Settled points of the bucket that is being filled are kept as the four that will stay.
    """

    __slots__ = (
        "_end",
        "_first",
        "_high",
        "_high_time",
        "_limit",
        "_low",
        "_low_time",
        "_time",
        "_times",
        "_values",
        "_width",
        "peak",
        "value",
    )

    def __init__(self, limit: int, time_ns: int) -> None:
        self._limit = limit
        self._times = array("q")
        self._values = array("q")
        self._time = time_ns
        self.value = 0
        """Bytes held now."""
        self.peak = 0
        """Most bytes of any settled point."""
        self._width = 1  # of a bucket, in ns
        self._begin_bucket(time_ns)

    def _begin_bucket(self, time_ns: int) -> None:
        self._end = time_ns + self._width - time_ns % self._width
        self._first: tuple[int, int] | None = None
        self._low, self._high = sys.maxsize, -1
        self._low_time = self._high_time = 0

    def change(self, delta: int, time_ns: int) -> None:
        """``delta`` bytes more are held from ``time_ns`` on; a time that lies before the one told
        last is taken for that. O(1) amortised, some 0.3 µs."""
        now = self._time
        if time_ns > now:
            value = self.value
            if value < self._low:
                if self._first is None:
                    self._first = now, value
                self._low, self._low_time = value, now
            if value > self._high:
                self._high, self._high_time = value, now
                if value > self.peak:  # noqa: PLR1730  (max() would be slower)
                    self.peak = value
            if time_ns >= self._end:
                self._close(time_ns)
            self._time = time_ns
        self.value += delta

    def _bucket(self) -> list[tuple[int, int]]:
        """Its points and the present one."""
        points = {(self._time, self.value)}
        if self._first is not None:
            points |= {self._first, (self._low_time, self._low), (self._high_time, self._high)}
        return sorted((time_ns, min(value, _MOST)) for time_ns, value in points)

    def _close(self, next_ns: int) -> None:
        """The present point is settled, and the next one is of a later bucket."""
        alone = self._low_time == self._high_time == self._time
        points = [(self._time, min(self.value, _MOST))] if alone else self._bucket()
        for time_ns, value in points:
            self._times.append(time_ns)
            self._values.append(value)
        if len(self._times) > self._limit - 2 * _KEPT:
            self._widen(next_ns)
        self._begin_bucket(next_ns)

    def _widen(self, now: int) -> None:
        """Thin to half of the limit or less."""
        buckets = self._limit // (2 * _KEPT) - 1
        while (now - self._times[0]) // self._width >= buckets:
            self._width *= 2
        points = [*thinned(zip(self._times, self._values, strict=True), self._width)]
        self._times = array("q", [time_ns for time_ns, _ in points])
        self._values = array("q", [value for _, value in points])

    def points(self) -> Points:
        """All points so far, the present one last; at most ``limit``."""
        return (*zip(self._times, self._values, strict=True), *self._bucket())


def thinned(points: Iterator[tuple[int, int]], width: int) -> Iterator[tuple[int, int]]:
    """Of the points in each bucket of ``width`` ns the first, the lowest, the highest and the last;
    of equal ones the earliest."""
    for _, grouped in groupby(points, key=lambda point: point[0] // width):
        group = list(grouped)
        low = min(group, key=lambda point: point[1])
        high = max(group, key=lambda point: point[1])
        yield from sorted({group[0], low, high, group[-1]})


class SeriesLog:
    """The series of all processes: a ledger's ``on_change`` is to be ``change``.

    When ``limits.series`` are kept, a new one takes the place of the one with the smallest peak
    among those that hold nothing now; if all hold something, the new one is not kept.
    """

    def __init__(self, limits: SeriesLimits | None = None) -> None:
        self._limits = limits or SeriesLimits()
        self._series: dict[tuple[ProcessId, MemoryKind, int], StepFunction] = {}
        self._refused: dict[tuple[ProcessId, MemoryKind, int], int] = {}
        """What is held of those that are not kept: they may begin anew only from nothing."""
        self.omitted = 0
        """Series that were not kept, or let go for others."""

    def change(
        self, process: ProcessId, kind: MemoryKind, device: int, delta: int, _: int, time_ns: int
    ) -> None:
        """What is held changes; see ``ledger.model.OnChange``."""
        key = process, kind, device
        series = self._series.get(key)
        if series is None:
            series = self._begin(key, delta, time_ns)
            if series is None:
                return
        series.change(delta, time_ns)

    def _begin(
        self, key: tuple[ProcessId, MemoryKind, int], delta: int, time_ns: int
    ) -> StepFunction | None:
        refused = self._refused.get(key)
        if refused is None and (len(self._series) < self._limits.series or self._make_room()):
            series = self._series[key] = StepFunction(self._limits.points, time_ns)
            return series
        self.omitted += refused is None
        held = (refused or 0) + delta
        if held:
            self._refused[key] = held
        else:
            self._refused.pop(key, None)
        return None

    def _make_room(self) -> bool:
        unused = [key for key, series in self._series.items() if not series.value]
        if not unused:
            return False
        del self._series[min(unused, key=lambda key: self._series[key].peak)]
        self.omitted += 1
        return True

    def snapshot(self) -> dict[SeriesKey, Points]:
        """All series kept, in the order they began."""
        return {SeriesKey(*key): series.points() for key, series in self._series.items()}

    def forget(self, process: ProcessId) -> None:
        """Let go of a process whose series are published."""
        for key in [key for key in self._series if key[0] == process]:
            del self._series[key]
        for key in [key for key in self._refused if key[0] == process]:
            del self._refused[key]
