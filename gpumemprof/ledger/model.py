"""What the ledger answers: frozen values. Bytes are bytes; times are ns of CLOCK_MONOTONIC."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import NamedTuple, TypeAlias

from gpumemprof.ledger.events import MemoryInfo, MemoryKind
from gpumemprof.process.identity import ProcessId

OnChange: TypeAlias = Callable[[ProcessId, MemoryKind, int, int, int, int], None]
"""Told of each change of what is held, in the order of events: process, kind, device, bytes more
(negative: fewer), allocations more (negative: fewer), time in ns. Of one process, kind and device
the bytes told add up to what it holds; the end of a process is one call for each kind and device.
A call of a free that fails is told twice, as it was counted: when entered, and when put back."""

OVERFLOW_STACK = -1
"""Stands for every stack that came after ``Limits.aggregates`` was reached."""

LET_GO_STACK = -2
"""Stands for stacks that were let go of since nothing of them is held (``Ledger.let_go_idle``)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what the ledger keeps of one process; what exceeds them is counted, see ``Count``.

    ``live``: entries of one number space (addresses of a space, handles, mappings).
    ``aggregates``: distinct (stack, call, kind, device).
    ``failures``: stored failures, the first half and the most recent half.
    ``failure_stacks``: aggregates in the live set of one failure.
    ``threads``: threads whose last free can still be put back.
    ``devices``: devices whose last free and total memory is kept.
    """

    live: int = 1 << 18
    aggregates: int = 1 << 16
    failures: int = 64
    failure_stacks: int = 64
    threads: int = 4096
    devices: int = 64

    def __post_init__(self) -> None:
        """Raise ValueError for a negative limit."""
        for each in fields(self):
            if getattr(self, each.name) < 0:
                raise ValueError(f"limit {each.name} must not be negative")


class Count(enum.Enum):
    """What the ledger met that a reader of its numbers should know. Counts never decrease."""

    UNKNOWN_FREES = "unknown_frees"
    """Frees of addresses never seen: normal for memory from before attach. Counted when the free
    is entered, so one that then fails (an invalid pointer) is in here and in ``FAILED_FREES``."""
    UNKNOWN_MAPS = "unknown_maps"
    """Mappings of handles never seen; their own unmapping is then known."""
    UNKNOWN_UNMAPS = "unknown_unmaps"
    """Unmapped ranges that are not made of whole mappings seen."""
    UNKNOWN_RELEASES = "unknown_releases"
    """Releases of handles never seen, or released more often than obtained."""
    UNKNOWN_RETAINS = "unknown_retains"
    """References obtained for memory never seen."""
    REPLACED = "replaced"
    """Memory or mappings whose end was not seen: their number or range was given out anew."""
    FAILED_FREES = "failed_frees"
    """Frees, unmappings and releases that failed."""
    FAILED_FREES_NOT_RESTORED = "failed_frees_not_restored"
    """Failed ones not put back (in part, for an unmapping), since the number or range had been
    given out anew, or its context had ended, meanwhile."""
    FAILED_FREES_UNMATCHED = "failed_frees_unmatched"
    """Failed ones whose entry was not seen, or no longer known (``Limits.threads``)."""
    EMPTY = "empty"
    """Successful calls that obtained nothing, such as ``cudaMalloc(0)``."""
    UNTRACKED = "untracked"
    """Over ``Limits.live``: allocations counted as made but not as in use, and references or
    mappings not followed."""
    STACKS_MERGED = "stacks_merged"
    """Allocations counted under ``OVERFLOW_STACK``."""
    FAILURES_DROPPED = "failures_dropped"
    """Failures counted but no longer stored."""
    FAILURES_ABRIDGED = "failures_abridged"
    """Failures in quick succession, stored with all that was live in ``live_omitted``."""
    AFTER_END = "after_end"
    """Events of a process that had ended: ignored."""


class AggregateKey(NamedTuple):
    """What allocations are summed by. ``stack``: as told in the events, or ``OVERFLOW_STACK``
    (then ``device`` is ``UNKNOWN_DEVICE``), or ``LET_GO_STACK``."""

    process: ProcessId
    stack: int
    call: str
    kind: MemoryKind
    device: int


class Aggregate(NamedTuple):
    """The sums of one key."""

    key: AggregateKey
    alloc_count: int
    """Allocations made (cumulative)."""
    alloc_bytes: int
    """Bytes they obtained (cumulative)."""
    inuse_count: int
    """Allocations held now."""
    inuse_bytes: int
    """Bytes held now."""
    peak_bytes: int
    """Bytes held when the process first held its most of this group (GPU or pinned host)."""


class Usage(NamedTuple):
    """One process's memory of one group: GPU (device, managed, array) or pinned host."""

    in_use: int = 0
    """Bytes held now."""
    inuse_count: int = 0
    """Allocations held now."""
    peak: int = 0
    """Most bytes held after any one event."""
    peak_time_ns: int = 0
    """When that was first reached; 0 if nothing was ever held."""
    alloc_count: int = 0
    """Allocations made (cumulative)."""
    alloc_bytes: int = 0
    """Bytes they obtained (cumulative)."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An allocation that failed, and what its process held then.

    ``error``: CUDA error code (2: out of memory). ``requested``: bytes. ``memory``: what the
    driver last told the program of this device's free and total memory (of any device if
    ``device`` is unknown), None if it never asked. ``live``: what the process held of the failed
    kind's group (GPU, or pinned host), largest first, equal ones in the order first seen;
    bounded: ``live_omitted`` bytes are in aggregates left out, so that their sum is ``in_use`` or
    ``pinned_in_use``.
    """

    process: ProcessId
    time_ns: int
    call: str
    kind: MemoryKind
    device: int
    requested: int
    error: int
    stack: int
    memory: MemoryInfo | None
    in_use: int
    pinned_in_use: int
    live: tuple[tuple[AggregateKey, int], ...]
    live_omitted: int


@dataclass(frozen=True, slots=True)
class ProcessSnapshot:
    """One process at the time of the snapshot, or as its end left it.

    ``failures``: how many allocations failed, stored or not. ``memory``: the last MemoryInfo of
    each device, the latest told last. ``ended_ns``: None while it runs; ``end_reason``: then "".
    ``counters`` has every ``Count``.
    """

    process: ProcessId
    first_event_ns: int
    ended_ns: int | None
    end_reason: str
    gpu: Usage
    pinned: Usage
    failures: int
    memory: tuple[MemoryInfo, ...]
    counters: Mapping[Count, int]
    failures_by_error: Mapping[tuple[MemoryKind, int, int], int] = field(default_factory=dict)
    """(kind, device, CUDA error code) → how many of the failures."""


@dataclass(frozen=True, slots=True)
class LedgerSnapshot:
    """Everything the ledger knows, in the order it was first seen; failures by time.

    ``counters`` has every ``Count``, summed over all processes, forgotten ones included.
    ``events``: events applied, by name of their type.
    """

    processes: tuple[ProcessSnapshot, ...]
    aggregates: tuple[Aggregate, ...]
    failures: tuple[Failure, ...]
    counters: Mapping[Count, int]
    events: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ForgottenProcess:
    """What the ledger knew of an ended process when it was told to forget it."""

    process: ProcessSnapshot
    aggregates: tuple[Aggregate, ...]
    failures: tuple[Failure, ...]


class Totals(NamedTuple):
    """Sums over all running processes, for a live line."""

    gpu_in_use: int
    """GPU bytes held."""
    pinned_in_use: int
    """Pinned host bytes held."""
    inuse_count: int
    """Allocations held, of any kind."""
    alloc_count: int
    """Allocations made since the start, of any kind, by ended processes too."""
    failures: int
    """Allocations that failed since the start."""
