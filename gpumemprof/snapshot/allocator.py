"""What PyTorch's caching allocator takes for tensors that are allocated one after the other.

Its rules (c10/cuda/CUDACachingAllocator, default settings): sizes are rounded up to 512 bytes; up
to 1 MiB comes from segments of 2 MiB, up to 10 MiB from segments of 20 MiB, more from a segment of
its own rounded up to 2 MiB; the smallest free block that is large enough is taken, and what is
left of it is split off unless it is at most 1 MiB (in the small pool: less than 512 bytes).
So ``allocated`` has rests that were not split off, and ``reserved`` free blocks too.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass

MIB = 1 << 20
ROUND = 512
SMALL = MIB
SMALL_SEGMENT = 2 * MIB
MIDDLE = 10 * MIB
MIDDLE_SEGMENT = 20 * MIB
LARGE_ROUND = 2 * MIB


@dataclass(frozen=True, slots=True)
class Taken:
    """Bytes: what tensors ask for, what their blocks have, what the segments have."""

    requested: int
    allocated: int
    reserved: int


def rounded(size: int) -> int:
    """The block that ``size`` bytes need."""
    return max(ROUND, -(-size // ROUND) * ROUND)


def segment_size(size: int) -> int:
    """The segment that is taken from the driver for a block of ``size`` bytes."""
    if size <= SMALL:
        return SMALL_SEGMENT
    if size < MIDDLE:
        return MIDDLE_SEGMENT
    return -(-size // LARGE_ROUND) * LARGE_ROUND


def allocate(sizes: Iterable[int]) -> Taken:
    """What tensors of ``sizes`` bytes take, in this order, none freed."""
    free: dict[bool, list[int]] = {True: [], False: []}
    requested = allocated = reserved = 0
    for size in sizes:
        if not size:
            continue
        need = rounded(size)
        small = need <= SMALL
        pool = free[small]
        at = bisect.bisect_left(pool, need)
        if at < len(pool):
            block = pool.pop(at)
        else:
            block = segment_size(need)
            reserved += block
        rest = block - need
        if rest >= ROUND if small else rest > SMALL:
            bisect.insort(pool, rest)
            block = need
        requested += size
        allocated += block
    return Taken(requested, allocated, reserved)
