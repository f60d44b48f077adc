"""The ledger: live allocations, totals, peaks and failures of all processes.

A pure value driven by events: it asks nobody anything, so that every rule is tested without a
GPU, a kernel or a clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from gpumemprof.ledger import events
from gpumemprof.ledger.events import LedgerEvent, ProcessEnded
from gpumemprof.ledger.model import (
    AggregateKey,
    Count,
    ForgottenProcess,
    LedgerSnapshot,
    Limits,
    OnChange,
    Totals,
)
from gpumemprof.ledger.peaks import RunningTotal
from gpumemprof.ledger.process import ProcessLedger
from gpumemprof.process.identity import ProcessId

# The one table of events. Each rule takes the event of its own type, which mypy cannot say here.
_RULES: Mapping[type, Callable[[ProcessLedger, Any], None]] = {
    events.Allocated: ProcessLedger.allocated,
    events.FreeEntered: ProcessLedger.free_entered,
    events.FreeFailed: ProcessLedger.free_failed,
    events.AllocationFailed: ProcessLedger.allocation_failed,
    events.PhysicalCreated: ProcessLedger.physical_created,
    events.HandleRetained: ProcessLedger.handle_retained,
    events.Mapped: ProcessLedger.mapped,
    events.UnmapEntered: ProcessLedger.unmap_entered,
    events.ReleaseEntered: ProcessLedger.release_entered,
    events.Imported: ProcessLedger.imported,
    events.ContextEnded: ProcessLedger.context_ended,
    events.ProcessEnded: ProcessLedger.end,
    events.MemoryInfo: ProcessLedger.memory_told,
}


class Ledger:
    """Applies events in the order the kernel saw them. Not safe for use by several threads at once.

    >>> from gpumemprof.ledger.events import AddressSpace, Allocated, MemoryKind
    >>> ledger = Ledger()
    >>> ledger.apply(
    ...     Allocated(
    ...         process=ProcessId(pid=7, start_ns=1),
    ...         time_ns=5,
    ...         call="cudaMalloc",
    ...         kind=MemoryKind.DEVICE,
    ...         space=AddressSpace.DEVICE,
    ...         device=0,
    ...         context=0,
    ...         address=0x7F0000000000,
    ...         size=4096,
    ...         stack=1,
    ...     )
    ... )
    >>> ledger.totals().gpu_in_use
    4096
    """

    def __init__(self, limits: Limits | None = None, on_change: OnChange | None = None) -> None:
        self._limits = limits or Limits()
        self._on_change = on_change
        self._running: dict[ProcessId, ProcessLedger] = {}
        self._ended: dict[ProcessId, ProcessLedger] = {}
        self._gpu = RunningTotal()
        self._pinned = RunningTotal()
        self._events: dict[type, int] = dict.fromkeys(_RULES, 0)
        self._failures = 0
        self._forgotten: Counter[Count] = Counter()

    def apply(self, event: LedgerEvent) -> None:
        """Count one event. O(1) amortised, but for the ends of contexts and processes."""
        kind = type(event)
        self._events[kind] += 1
        process = self._running.get(event.process)
        if process is None:
            process = self._first_seen(event)
            if process is None:
                return
        _RULES[kind](process, event)
        if kind is ProcessEnded:
            self._ended[event.process] = self._running.pop(event.process)
        elif kind is events.AllocationFailed:
            self._failures += 1

    def _first_seen(self, event: LedgerEvent) -> ProcessLedger | None:
        """A new process; None if it ended before, or ends now without having done anything."""
        ended = self._ended.get(event.process)
        if ended is not None:
            ended.after_end()
            return None
        if isinstance(event, ProcessEnded):
            return None
        process = ProcessLedger(
            event.process, event.time_ns, self._limits, self._gpu, self._pinned, self._on_change
        )
        self._running[event.process] = process
        return process

    def totals(self) -> Totals:
        """The sums for a live line. O(1)."""
        return Totals(
            gpu_in_use=self._gpu.inuse_bytes,
            pinned_in_use=self._pinned.inuse_bytes,
            inuse_count=self._gpu.inuse_count + self._pinned.inuse_count,
            alloc_count=self._gpu.alloc_count + self._pinned.alloc_count,
            failures=self._failures,
        )

    def snapshot(self, only: Iterable[ProcessId] | None = None) -> LedgerSnapshot:
        """Everything, as a value that later events do not change; or of these processes only, with
        their counters and everybody's events. O(processes and stacks)."""
        if only is None:
            processes = [*self._ended.values(), *self._running.values()]
            forgotten = self._forgotten
        else:
            found = (self._ended.get(each) or self._running.get(each) for each in only)
            processes = [process for process in found if process is not None]
            forgotten = Counter()
        failures = [failure for process in processes for failure in process.failures()]
        return LedgerSnapshot(
            processes=tuple(process.snapshot() for process in processes),
            aggregates=tuple(a for process in processes for a in process.aggregates()),
            failures=tuple(sorted(failures, key=lambda failure: failure.time_ns)),
            counters=_sum([forgotten, *(process.counters() for process in processes)]),
            events=MappingProxyType({kind.__name__: n for kind, n in self._events.items()}),
        )

    def held(self) -> Iterator[tuple[AggregateKey, int]]:
        """What each stack of the running processes holds, in bytes; those that hold nothing are
        left out. O(stacks)."""
        for process in self._running.values():
            yield from process.held()

    def version(self, process: ProcessId) -> tuple[int, ...]:
        """Changes whenever anything of the process does that a snapshot of it tells. O(1)."""
        found = self._running.get(process) or self._ended.get(process)
        return () if found is None else found.version()

    def let_go_idle(self, process: ProcessId) -> tuple[AggregateKey, ...]:
        """Of a process that makes ever new stacks for months: let go of the aggregates of which
        nothing is held, nor was at the peak, nor is told of in a failure. What they allocated is
        summed under ``LET_GO_STACK``, by call, kind and device, so that all sums stay. Returns
        which they were. O(aggregates of the process)."""
        found = self._running.get(process)
        return () if found is None else found.let_go_idle()

    def stacks(self, process: ProcessId) -> set[int]:
        """The stacks of a process that are in its aggregates and failures."""
        found = self._running.get(process) or self._ended.get(process)
        return set() if found is None else found.stacks()

    def forget(self, process: ProcessId) -> ForgottenProcess:
        """Drop what is known of a process that has ended, and return it, so that a recording of
        months keeps no more than it has yet to publish. Its counters stay in the ledger's.

        Raises KeyError if no such process has ended: one that runs is not forgotten.
        """
        ended = self._ended.pop(process)
        self._forgotten += ended.counters()
        return ForgottenProcess(ended.snapshot(), ended.aggregates(), ended.failures())


def _sum(counters: Iterable[Counter[Count]]) -> Mapping[Count, int]:
    total: Counter[Count] = Counter()
    for counter in counters:
        total += counter
    return MappingProxyType({count: total[count] for count in Count})
