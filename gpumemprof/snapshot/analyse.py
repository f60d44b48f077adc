"""What a snapshot says: totals by pool, stream and device, fragmentation. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from gpumemprof.snapshot.allocator import SMALL, rounded
from gpumemprof.snapshot.model import Segment, Snapshot, State


@dataclass(frozen=True, slots=True)
class Totals:
    """Bytes and counts in PyTorch's own meaning (model.py), as ``torch.cuda.memory_stats()`` has
    them. ``largest_free``: of one free block. ``free``: of all of them, whole segments too."""

    reserved: int = 0
    allocated: int = 0
    active: int = 0
    requested: int = 0
    inactive_split: int = 0
    segments: int = 0
    allocations: int = 0
    active_blocks: int = 0
    inactive_split_blocks: int = 0
    free: int = 0
    largest_free: int = 0
    expandable: int = 0
    ranges: int = 0

    def plus(self, other: Totals) -> Totals:
        """The sum; of the largest block the larger."""
        values = {
            f.name: getattr(self, f.name) + getattr(other, f.name)
            for f in fields(self)
            if f.name != "largest_free"
        }
        return Totals(**values, largest_free=max(self.largest_free, other.largest_free))


@dataclass(frozen=True, slots=True)
class Pool:
    """Where a block may be used again: only for the same device, pool, size class and stream."""

    device: int
    pool_id: tuple[int, int]
    small: bool
    stream: int

    @property
    def name(self) -> str:
        """``large``, ``small``, and whose, if it is not the default pool."""
        size = "small" if self.small else "large"
        return size if self.pool_id == (0, 0) else f"{size}, private {self.pool_id}"


def totals_of(segment: Segment) -> Totals:
    """Of one segment. A free block counts as inactive split if others share its segment; not in
    expandable segments, whose free pages can always be given back."""
    allocated = [b for b in segment.blocks if b.state is State.ALLOCATED]
    active = [b for b in segment.blocks if b.state.active]
    split = [
        b
        for b in segment.blocks
        if not b.state.active and len(segment.blocks) > 1 and not segment.expandable
    ]
    return Totals(
        reserved=segment.size,
        allocated=sum(b.size for b in allocated),
        active=sum(b.size for b in active),
        requested=sum(b.requested for b in active),
        inactive_split=sum(b.size for b in split),
        segments=0 if segment.expandable else 1,
        ranges=1 if segment.expandable else 0,
        allocations=len(allocated),
        active_blocks=len(active),
        inactive_split_blocks=len(split),
        free=segment.free,
        largest_free=segment.largest_free,
        expandable=segment.size if segment.expandable else 0,
    )


def totals(segments: Iterable[Segment]) -> Totals:
    """Of all of them."""
    total = Totals()
    for segment in segments:
        total = total.plus(totals_of(segment))
    return total


def by_pool(snapshot: Snapshot) -> dict[Pool, Totals]:
    """Totals of each pool, the one with most reserved first."""
    found: dict[Pool, Totals] = {}
    for segment in snapshot.segments:
        pool = pool_of(segment)
        found[pool] = found.get(pool, Totals()).plus(totals_of(segment))
    return dict(sorted(found.items(), key=lambda pair: -pair[1].reserved))


def by_device(snapshot: Snapshot) -> dict[int, Totals]:
    """Totals of each device."""
    found: dict[int, Totals] = {}
    for segment in snapshot.segments:
        found[segment.device] = found.get(segment.device, Totals()).plus(totals_of(segment))
    return dict(sorted(found.items()))


def pool_of(segment: Segment) -> Pool:
    """The pool a segment belongs to."""
    return Pool(segment.device, segment.pool_id, segment.small, segment.stream)


@dataclass(frozen=True, slots=True)
class Unusable:
    """Free memory of one segment, seen by a request. ``usable``: bytes in blocks that it could
    take; ``free`` − ``usable`` is what fragmentation costs."""

    segment: Segment
    free: int
    usable: int


def for_request(snapshot: Snapshot, size: int, device: int = 0, stream: int = 0) -> list[Unusable]:
    """For each segment of the device with free memory: how much of it a request of ``size`` bytes
    on ``stream`` could use, most unusable first.

    A block is usable if it is large enough and in the default pool of that stream and size class.
    """
    need = rounded(size)
    small = need <= SMALL
    found = []
    for segment in snapshot.segments:
        if segment.device != device or not segment.free:
            continue
        fits = segment.small == small and segment.stream == stream and segment.pool_id == (0, 0)
        usable = sum(
            b.size for b in segment.blocks if fits and not b.state.active and b.size >= need
        )
        found.append(Unusable(segment, segment.free, usable))
    found.sort(key=lambda one: (one.usable - one.free, one.segment.address))
    return found
