"""The high-water mark: bytes of each stack at the moment its process held most.

Copying every stack's bytes at each new peak would cost O(stacks) an event. Instead every new peak
has a number, its *generation*. A stack that has not changed since the peak still holds what it
held at the peak; so its bytes are copied once, at its first change after the peak. This is exact
at every event and O(1).

At equal maxima the first one stays the peak.
"""

from __future__ import annotations

from gpumemprof.ledger.events import MemoryKind
from gpumemprof.ledger.model import Aggregate, AggregateKey, OnChange, Usage
from gpumemprof.process.identity import ProcessId


class RunningTotal:
    """Sums over all processes."""

    __slots__ = ("alloc_count", "inuse_bytes", "inuse_count")

    def __init__(self) -> None:
        self.inuse_bytes = 0
        self.inuse_count = 0
        self.alloc_count = 0


class HighWaterMark:
    """What one process holds of one group of memory kinds, and the most it held."""

    __slots__ = (
        "alloc_bytes",
        "alloc_count",
        "changes",
        "generation",
        "holdings",
        "inuse_bytes",
        "inuse_count",
        "on_change",
        "peak",
        "peak_time_ns",
        "total",
    )

    def __init__(self, total: RunningTotal, on_change: OnChange | None = None) -> None:
        self.total = total
        self.on_change = on_change
        self.holdings: list[Holding] = []
        self.inuse_bytes = 0
        self.inuse_count = 0
        self.alloc_bytes = 0
        self.alloc_count = 0
        self.peak = 0
        self.peak_time_ns = 0
        self.generation = 0
        self.changes = 0  # tells whether anything changed since it was last looked at

    def end(self, time_ns: int) -> None:
        """Nothing is held any more; the peak stays."""
        ended: dict[tuple[ProcessId, MemoryKind, int], tuple[int, int]] = {}
        for holding in self.holdings:
            holding.keep_peak()
            if holding.inuse_count:
                where = holding.key.process, holding.key.kind, holding.key.device
                size, count = ended.get(where, (0, 0))
                ended[where] = size + holding.inuse_bytes, count + holding.inuse_count
            holding.inuse_bytes = holding.inuse_count = 0
        if self.on_change is not None:
            for where, (size, count) in ended.items():
                self.on_change(*where, -size, -count, time_ns)
        self.total.inuse_bytes -= self.inuse_bytes
        self.total.inuse_count -= self.inuse_count
        self.inuse_bytes = self.inuse_count = 0
        self.changes += 1

    def usage(self) -> Usage:
        """The sums now."""
        return Usage(
            in_use=self.inuse_bytes,
            inuse_count=self.inuse_count,
            peak=self.peak,
            peak_time_ns=self.peak_time_ns,
            alloc_count=self.alloc_count,
            alloc_bytes=self.alloc_bytes,
        )


class Holding:
    """The sums of one aggregate, part of its process's ``HighWaterMark``."""

    __slots__ = (
        "alloc_bytes",
        "alloc_count",
        "at_peak",
        "generation",
        "inuse_bytes",
        "inuse_count",
        "key",
        "mark",
    )

    def __init__(self, key: AggregateKey, mark: HighWaterMark) -> None:
        self.key = key
        self.mark = mark
        self.alloc_count = 0
        self.alloc_bytes = 0
        self.inuse_count = 0
        self.inuse_bytes = 0
        self.at_peak = 0  # valid while generation is the mark's
        self.generation = mark.generation  # it held 0 bytes at the peak before it
        mark.holdings.append(self)

    def obtain(self, size: int) -> None:
        """An allocation of ``size`` bytes was made (``put`` says that it is held)."""
        self.alloc_count += 1
        self.alloc_bytes += size
        mark = self.mark
        mark.alloc_count += 1
        mark.alloc_bytes += size
        mark.total.alloc_count += 1

    def put(self, size: int, time_ns: int) -> None:
        """``size`` bytes are held from ``time_ns`` on."""
        mark = self.mark
        if self.generation != mark.generation:
            self.keep_peak()
        self.inuse_count += 1
        self.inuse_bytes += size
        mark.changes += 1
        mark.inuse_count += 1
        mark.inuse_bytes = in_use = mark.inuse_bytes + size
        if in_use > mark.peak:
            mark.peak = in_use
            mark.peak_time_ns = time_ns
            mark.generation += 1
        total = mark.total
        total.inuse_count += 1
        total.inuse_bytes += size
        if mark.on_change is not None:
            key = self.key
            mark.on_change(key.process, key.kind, key.device, size, 1, time_ns)

    def take(self, size: int, time_ns: int) -> None:
        """``size`` bytes that were put are held no longer from ``time_ns`` on."""
        mark = self.mark
        if self.generation != mark.generation:
            self.keep_peak()
        self.inuse_count -= 1
        self.inuse_bytes -= size
        mark.changes += 1
        mark.inuse_count -= 1
        mark.inuse_bytes -= size
        total = mark.total
        total.inuse_count -= 1
        total.inuse_bytes -= size
        if mark.on_change is not None:
            key = self.key
            mark.on_change(key.process, key.kind, key.device, -size, -1, time_ns)

    def keep_peak(self) -> None:
        """Note the bytes held at the present peak, before they change."""
        if self.generation != self.mark.generation:
            self.at_peak = self.inuse_bytes
            self.generation = self.mark.generation

    @property
    def idle(self) -> bool:
        """Whether nothing is held, nor was at the peak."""
        return not self.inuse_count and not self.aggregate().peak_bytes

    def absorb(self, other: Holding) -> None:
        """Take over the sums of one that holds nothing and will not be used again."""
        self.alloc_count += other.alloc_count
        self.alloc_bytes += other.alloc_bytes

    def aggregate(self) -> Aggregate:
        """The sums now."""
        unchanged = self.generation != self.mark.generation
        return Aggregate(
            self.key,
            self.alloc_count,
            self.alloc_bytes,
            self.inuse_count,
            self.inuse_bytes,
            self.inuse_bytes if unchanged else self.at_peak,
        )
