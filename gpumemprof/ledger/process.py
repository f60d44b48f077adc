"""The counting rules, applied to one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import MappingProxyType

from gpumemprof.ledger import events
from gpumemprof.ledger.events import UNKNOWN_DEVICE, AddressSpace, MemoryKind
from gpumemprof.ledger.failures import FailureLog
from gpumemprof.ledger.in_flight import Drop, FreesInFlight, Unmap
from gpumemprof.ledger.model import (
    LET_GO_STACK,
    OVERFLOW_STACK,
    Aggregate,
    AggregateKey,
    Count,
    Failure,
    Limits,
    OnChange,
    ProcessSnapshot,
)
from gpumemprof.ledger.names import Allocation, Named, NameTable, Reference, T
from gpumemprof.ledger.peaks import HighWaterMark, Holding, RunningTotal
from gpumemprof.ledger.vmm import Handle, Physical, VirtualMemory
from gpumemprof.process.identity import ProcessId


class ProcessLedger:
    """What one process holds, held and failed to get."""

    __slots__ = (
        "_arrays",
        "_counts",
        "_device",
        "_end_reason",
        "_ended_ns",
        "_failures",
        "_first_event_ns",
        "_gpu",
        "_holdings",
        "_host",
        "_in_flight",
        "_limits",
        "_memory",
        "_pinned",
        "_process",
        "_virtual",
    )

    def __init__(
        self,
        process: ProcessId,
        time_ns: int,
        limits: Limits,
        gpu_total: RunningTotal,
        pinned_total: RunningTotal,
        on_change: OnChange | None = None,
    ) -> None:
        self._process = process
        self._limits = limits
        self._first_event_ns = time_ns
        self._ended_ns: int | None = None
        self._end_reason = ""
        self._counts: Counter[Count] = Counter()
        self._gpu = HighWaterMark(gpu_total, on_change)
        self._pinned = HighWaterMark(pinned_total, on_change)
        self._holdings: dict[tuple[int, str, MemoryKind, int], Holding] = {}
        self._failures = FailureLog(limits)
        self._memory: dict[int, events.MemoryInfo] = {}
        self._clear()

    def _clear(self) -> None:
        """Know no number any more."""
        limit, counts = self._limits.live, self._counts
        self._device: NameTable[Named] = NameTable(limit, counts)
        self._host: NameTable[Named] = NameTable(limit, counts)
        self._arrays: NameTable[Named] = NameTable(limit, counts)
        self._virtual = VirtualMemory(limit, counts)
        self._in_flight = FreesInFlight(self._limits.threads)

    # Allocations and frees

    def allocated(self, event: events.Allocated) -> None:
        """An allocation at a number already live ends what the number named before."""
        if not event.address:
            self._counts[Count.EMPTY] += 1
            return
        size = event.size
        holding = self._holding(event)
        holding.obtain(size)
        self._space(event.space).issue(
            event.address, Allocation(holding, size, event.context), event.time_ns
        )

    def free_entered(self, event: events.FreeEntered) -> None:
        """What is freed is out from now on."""
        self._in_flight.settle(event.thread)
        if event.address:
            self._drop(event, self._space(event.space), event.address, Count.UNKNOWN_FREES)
        else:
            self._in_flight.enter(event.thread, None)

    def free_failed(self, event: events.FreeFailed) -> None:
        """Put back what the thread's last free, unmapping or release took out."""
        self._counts[Count.FAILED_FREES] += 1
        undone = self._in_flight.undo(event.thread, event.time_ns)
        if undone is None:
            self._counts[Count.FAILED_FREES_UNMATCHED] += 1
        elif not undone:
            self._counts[Count.FAILED_FREES_NOT_RESTORED] += 1

    def imported(self, event: events.Imported) -> None:
        """One more reference if the number is open already, else the number names it from now on.

        A handle of own physical memory that is imported again is one more reference to it."""
        number = event.number
        if not number:
            self._counts[Count.EMPTY] += 1
        elif event.space is None:
            handles = self._virtual.handles
            handle = handles.live.get(number)
            if handle is not None:
                handles.share(number, handle, event.time_ns)
            else:
                handles.issue(number, Handle(Physical(None, 0)), event.time_ns)
        else:
            table = self._space(event.space)
            named = table.live.get(number)
            if isinstance(named, Reference):
                table.share(number, named, event.time_ns)
            else:
                table.issue(number, Reference(), event.time_ns)

    def _drop(
        self,
        event: events.FreeEntered | events.ReleaseEntered,
        table: NameTable[T],
        number: int,
        unknown: Count,
    ) -> None:
        named = table.drop(number, event.time_ns)
        if named is None:
            self._counts[unknown] += 1
            self._in_flight.enter(event.thread, None)
        else:
            self._in_flight.enter(event.thread, Drop(table, number, named))

    # Physical memory, handles and mappings

    def physical_created(self, event: events.PhysicalCreated) -> None:
        """Charged here: mapping and unmapping change nothing while a handle is unreleased."""
        if not event.handle:
            self._counts[Count.EMPTY] += 1
            return
        holding = self._holding(event)
        holding.obtain(event.size)
        handle = Handle(Physical(holding, event.size))
        self._virtual.handles.issue(event.handle, handle, event.time_ns)

    def handle_retained(self, event: events.HandleRetained) -> None:
        """The address tells whose reference it is, and only if it is unknown the handle."""
        self._virtual.retain(event.handle, event.address, event.time_ns)

    def mapped(self, event: events.Mapped) -> None:
        """A mapping keeps its physical memory alive."""
        if not event.size:
            self._counts[Count.EMPTY] += 1
            return
        self._virtual.map(event.handle, event.address, event.address + event.size, event.time_ns)

    def unmap_entered(self, event: events.UnmapEntered) -> None:
        """Whole mappings in the range are out from now on."""
        self._in_flight.settle(event.thread)
        start, end = event.address, event.address + event.size
        mappings, whole = self._virtual.unmap(start, end, event.time_ns)
        if not whole:
            self._counts[Count.UNKNOWN_UNMAPS] += 1
        unmap = Unmap(self._virtual, mappings) if mappings else None
        self._in_flight.enter(event.thread, unmap)

    def release_entered(self, event: events.ReleaseEntered) -> None:
        """One reference is out from now on."""
        self._in_flight.settle(event.thread)
        handles = self._virtual.handles
        self._drop(event, handles, event.handle, Count.UNKNOWN_RELEASES)

    # Ends, failures and what the driver told

    def context_ended(self, event: events.ContextEnded) -> None:
        """Ends what was allocated under the context; context 0 stands for none known."""
        if event.context:
            for table in (self._device, self._host, self._arrays):
                table.end_context(event.context, event.time_ns)

    def end(self, event: events.ProcessEnded) -> None:
        """Nothing is held any more; peaks and cumulative sums stay."""
        self._ended_ns = event.time_ns
        self._end_reason = event.reason
        self._gpu.end(event.time_ns)
        self._pinned.end(event.time_ns)
        self._clear()

    def after_end(self) -> None:
        """An event came after the end: what it tells of is gone."""
        self._counts[Count.AFTER_END] += 1

    def allocation_failed(self, event: events.AllocationFailed) -> None:
        """Keeps a record of the failure; counts nothing as memory."""
        mark = self._gpu if event.kind.on_gpu else self._pinned
        live = self._failures.live(mark, event.time_ns)
        if live is None:
            self._counts[Count.FAILURES_ABRIDGED] += 1
            live = (), mark.inuse_bytes
        memory = self._memory.get(event.device)
        if event.device == UNKNOWN_DEVICE and self._memory:
            memory = self._memory[next(reversed(self._memory))]
        self._failures.add(
            Failure(
                process=self._process,
                time_ns=event.time_ns,
                call=event.call,
                kind=event.kind,
                device=event.device,
                requested=event.requested,
                error=event.error,
                stack=event.stack,
                memory=memory,
                in_use=self._gpu.inuse_bytes,
                pinned_in_use=self._pinned.inuse_bytes,
                live=live[0],
                live_omitted=live[1],
            )
        )

    def memory_told(self, event: events.MemoryInfo) -> None:
        """Keeps the last of each device, in the order told."""
        self._memory.pop(event.device, None)
        self._memory[event.device] = event
        if len(self._memory) > self._limits.devices:
            del self._memory[next(iter(self._memory))]

    # Answers

    def aggregates(self) -> tuple[Aggregate, ...]:
        """The sums of every stack, in the order first seen."""
        return tuple(holding.aggregate() for holding in self._holdings.values())

    def held(self) -> Iterator[tuple[AggregateKey, int]]:
        """The bytes of every stack that holds any."""
        for holding in self._holdings.values():
            if holding.inuse_bytes:
                yield holding.key, holding.inuse_bytes

    def failures(self) -> tuple[Failure, ...]:
        """The failures stored, oldest first."""
        return self._failures.stored()

    def counters(self) -> Counter[Count]:
        """What was met that is not zero."""
        return self._counts + Counter({Count.FAILURES_DROPPED: self._failures.dropped})

    def version(self) -> tuple[int, ...]:
        """Different after any change of what is held, allocated or failed, and after the end."""
        gpu, pinned = self._gpu, self._pinned
        return (
            gpu.changes,
            gpu.alloc_count,
            pinned.changes,
            pinned.alloc_count,
            self._failures.count,
            self._ended_ns or 0,
        )

    def snapshot(self) -> ProcessSnapshot:
        """The process now."""
        counters = self.counters()
        return ProcessSnapshot(
            process=self._process,
            first_event_ns=self._first_event_ns,
            ended_ns=self._ended_ns,
            end_reason=self._end_reason,
            gpu=self._gpu.usage(),
            pinned=self._pinned.usage(),
            failures=self._failures.count,
            memory=tuple(self._memory.values()),
            counters=MappingProxyType({count: counters[count] for count in Count}),
            failures_by_error=MappingProxyType(dict(self._failures.by_error)),
        )

    # For months

    def let_go_idle(self) -> tuple[AggregateKey, ...]:
        """Sum the aggregates that hold nothing under ``LET_GO_STACK``. O(aggregates)."""
        needed = self._may_hold_again()
        told = {key for failure in self.failures() for key, _ in failure.live}
        gone = [
            holding
            for holding in self._holdings.values()
            if holding.key.stack >= 0
            and holding.idle
            and holding not in needed
            and holding.key not in told
        ]
        for holding in gone:
            key = holding.key
            del self._holdings[key.stack, key.call, key.kind, key.device]
            self._at(holding.mark, LET_GO_STACK, key.call, key.kind, key.device).absorb(holding)
        for mark in (self._gpu, self._pinned):
            mark.holdings = [each for each in self._holdings.values() if each.mark is mark]
        return tuple(holding.key for holding in gone)

    def _may_hold_again(self) -> set[Holding]:
        """Those of which memory was freed by calls that may still fail."""
        dropped = [named for table in (self._device, self._host, self._arrays)
                   for named in table.dropped.values()]  # fmt: skip
        found = {named.holding for named in dropped if isinstance(named, Allocation)}
        virtual = self._virtual
        for owner in (*virtual.handles.dropped.values(), *virtual.unmapped):
            if owner.physical.holding is not None:
                found.add(owner.physical.holding)
        return found

    def stacks(self) -> set[int]:
        """The stacks that are in what it tells."""
        return {key[0] for key in self._holdings} | {failure.stack for failure in self.failures()}

    # Where things are

    def _space(self, space: AddressSpace) -> NameTable[Named]:
        if space is AddressSpace.DEVICE:
            return self._device
        return self._host if space is AddressSpace.HOST else self._arrays

    def _holding(self, event: events.Allocated | events.PhysicalCreated) -> Holding:
        key = event.stack, event.call, event.kind, event.device
        holding = self._holdings.get(key)
        if holding is not None:
            return holding
        if len(self._holdings) >= self._limits.aggregates:
            self._counts[Count.STACKS_MERGED] += 1
            key = OVERFLOW_STACK, event.call, event.kind, UNKNOWN_DEVICE
            holding = self._holdings.get(key)
            if holding is not None:
                return holding
        return self._at(self._gpu if event.kind.on_gpu else self._pinned, *key)

    def _at(
        self, mark: HighWaterMark, stack: int, call: str, kind: MemoryKind, device: int
    ) -> Holding:
        key = stack, call, kind, device
        holding = self._holdings.get(key)
        if holding is None:
            holding = self._holdings[key] = Holding(AggregateKey(self._process, *key), mark)
        return holding
