"""PyTorch's memory snapshot as values, checked. All sizes are bytes, all addresses virtual.

PyTorch's own words: *reserved* is what segments have, free or not; *allocated* are blocks that
tensors have; *active* are those and the ones that wait for another stream before they are free;
*inactive* blocks are free; *inactive split* are free blocks that share a segment with others, so
that the segment cannot be given back.

Format: torch.cuda.memory._snapshot() (torch/cuda/memory.py) and c10's CUDACachingAllocator.h.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpumemprof.stack.frames import Stack


class State(enum.Enum):
    """Of a block."""

    ALLOCATED = "active_allocated"
    AWAITING_FREE = "active_awaiting_free"
    INACTIVE = "inactive"

    @property
    def active(self) -> bool:
        """Whether it cannot be given to another tensor now."""
        return self is not State.INACTIVE


class Action(enum.Enum):
    """Of an entry of the trace. SEGMENT_MAP and SEGMENT_UNMAP are those of expandable segments."""

    ALLOC = "alloc"
    FREE_REQUESTED = "free_requested"
    FREE_COMPLETED = "free_completed"
    SEGMENT_ALLOC = "segment_alloc"
    SEGMENT_FREE = "segment_free"
    SEGMENT_MAP = "segment_map"
    SEGMENT_UNMAP = "segment_unmap"
    SNAPSHOT = "snapshot"
    OOM = "oom"
    OTHER = ""
    """One that we do not know: kept, and changes nothing."""


@dataclass(frozen=True, slots=True)
class Block:
    """``requested``: what the program asked for; ``size`` is rounded up."""

    address: int
    size: int
    requested: int
    state: State
    stack: Stack


@dataclass(frozen=True, slots=True)
class Segment:
    """Memory taken from the driver in one piece (of an expandable segment: one mapped range).

    ``small``: of the pool for blocks of at most 1 MiB. ``pool_id``: (0, 0) is the default pool;
    others belong to CUDA graphs and to the program's own pools. ``stream``: as PyTorch numbers
    them, 0 is the default stream."""

    device: int
    address: int
    size: int
    allocated: int
    active: int
    requested: int
    stream: int
    small: bool
    pool_id: tuple[int, int]
    expandable: bool
    blocks: tuple[Block, ...]
    stack: Stack

    @property
    def largest_free(self) -> int:
        """Bytes of the largest free block."""
        return max((b.size for b in self.blocks if not b.state.active), default=0)

    @property
    def free(self) -> int:
        """Bytes of all free blocks."""
        return sum(block.size for block in self.blocks if not block.state.active)


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the trace. ``address``: 0 where there is none. ``size``: as requested for
    ALLOC, FREE_REQUESTED, FREE_COMPLETED and OOM. ``device_free``: what the driver had left, of
    OOM only. ``time_us``: microseconds since the epoch, 0 if not recorded."""

    action: Action
    address: int
    size: int
    stream: int
    time_us: int
    device_free: int | None
    stack: Stack


@dataclass(frozen=True, slots=True)
class Snapshot:
    """``traces``: for each device, oldest first. ``settings``: of the allocator, as text.
    ``warnings``: what in the file contradicts itself."""

    segments: tuple[Segment, ...]
    traces: tuple[tuple[Event, ...], ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
