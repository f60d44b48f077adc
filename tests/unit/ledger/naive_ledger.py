"""The counting rules written a second time: slow, without indexes, everything summed anew.

Records are never removed. After every event the whole history is walked to find what is live.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from gpumemprof.ledger import events as e
from gpumemprof.ledger.model import (
    Aggregate,
    AggregateKey,
    Count,
    Failure,
    LedgerSnapshot,
    Limits,
    ProcessSnapshot,
    Usage,
)


@dataclass(eq=False)
class Memory:
    """What may be charged. ``key`` None: not this process's, or not seen being made."""

    key: AggregateKey | None
    size: int


@dataclass(eq=False)
class Name:
    """A number of one space, given out once."""

    space: object
    number: int
    memory: Memory
    context: int = 0
    references: int = 1
    over: bool = False
    """The number was given out anew, or its context ended: nothing comes back."""


@dataclass(eq=False)
class Mapping:
    start: int
    end: int
    memory: Memory
    mapped: bool = True
    over: bool = False


HANDLE = "handle"


@dataclass
class NaiveProcess:
    id: Any
    first_event_ns: int
    limits: Limits
    names: list[Name] = field(default_factory=list)
    mappings: list[Mapping] = field(default_factory=list)
    in_flight: dict[int, Any] = field(default_factory=dict)
    made: list[tuple[AggregateKey, int]] = field(default_factory=list)
    told: list[e.MemoryInfo] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    counts: Counter[Count] = field(default_factory=Counter)
    ended: e.ProcessEnded | None = None
    peaks: dict[bool, tuple[int, int, dict[AggregateKey, int]]] = field(
        default_factory=lambda: {True: (0, 0, {}), False: (0, 0, {})}
    )

    # What is live

    def live_memories(self) -> list[Memory]:
        held = [n.memory for n in self.names if n.references]
        held += [m.memory for m in self.mappings if m.mapped]
        return [m for m in dict.fromkeys(held) if m.key is not None and not self.ended]

    def held(self, on_gpu: bool) -> dict[AggregateKey, int]:
        """Bytes by aggregate, in the order the aggregates were first seen."""
        held = {key: 0 for key, _ in self.made if key.kind.on_gpu is on_gpu}
        for memory in self.live_memories():
            assert memory.key is not None
            if memory.key in held:
                held[memory.key] += memory.size
        return held

    def look_for_peak(self, time_ns: int) -> None:
        for on_gpu in (True, False):
            held = self.held(on_gpu)
            if sum(held.values()) > self.peaks[on_gpu][0]:
                self.peaks[on_gpu] = sum(held.values()), time_ns, held

    # Numbers

    def named(self, space: object, number: int) -> Name | None:
        for name in self.names:
            if name.space == space and name.number == number and name.references:
                return name
        return None

    def give_out(self, new: Name) -> None:
        for name in self.names:
            if name.space == new.space and name.number == new.number:
                if name.references and name.memory.key is not None:
                    self.counts[Count.REPLACED] += 1
                name.references = 0
                name.over = True
        self.names.append(new)

    def drop(self, thread: int, space: object, number: int, unknown: Count) -> None:
        name = self.named(space, number)
        if name is None:
            self.counts[unknown] += 1
        else:
            name.references -= 1
        self.in_flight[thread] = [name] if name else []

    # Events

    def apply(self, event: e.LedgerEvent) -> None:
        getattr(self, "on_" + type(event).__name__)(event)
        self.look_for_peak(event.time_ns)

    def new_memory(self, event: Any) -> Memory:
        key = AggregateKey(self.id, event.stack, event.call, event.kind, event.device)
        self.made.append((key, event.size))
        return Memory(key, event.size)

    def on_Allocated(self, event: e.Allocated) -> None:  # noqa: N802
        if event.address == 0:
            self.counts[Count.EMPTY] += 1
            return
        self.give_out(
            Name(event.space, event.address, self.new_memory(event), context=event.context)
        )

    def on_FreeEntered(self, event: e.FreeEntered) -> None:  # noqa: N802
        self.in_flight[event.thread] = []
        if event.address:
            self.drop(event.thread, event.space, event.address, Count.UNKNOWN_FREES)

    def on_ReleaseEntered(self, event: e.ReleaseEntered) -> None:  # noqa: N802
        self.drop(event.thread, HANDLE, event.handle, Count.UNKNOWN_RELEASES)

    def on_UnmapEntered(self, event: e.UnmapEntered) -> None:  # noqa: N802
        end = event.address + event.size
        inside = [
            m for m in self.mappings if m.mapped and event.address <= m.start and m.end <= end
        ]
        if sum(m.end - m.start for m in inside) != event.size:
            self.counts[Count.UNKNOWN_UNMAPS] += 1
        for mapping in inside:
            mapping.mapped = False
        self.in_flight[event.thread] = inside

    def on_FreeFailed(self, event: e.FreeFailed) -> None:  # noqa: N802
        self.counts[Count.FAILED_FREES] += 1
        if event.thread not in self.in_flight:
            self.counts[Count.FAILED_FREES_UNMATCHED] += 1
            return
        taken = self.in_flight.pop(event.thread)
        if any(item.over for item in taken):
            self.counts[Count.FAILED_FREES_NOT_RESTORED] += 1
        for item in taken:
            if item.over:
                continue
            if isinstance(item, Mapping):
                item.mapped = True
            else:
                item.references += 1

    def on_PhysicalCreated(self, event: e.PhysicalCreated) -> None:  # noqa: N802
        if event.handle == 0:
            self.counts[Count.EMPTY] += 1
            return
        self.give_out(Name(HANDLE, event.handle, self.new_memory(event)))

    def on_HandleRetained(self, event: e.HandleRetained) -> None:  # noqa: N802
        name = self.named(HANDLE, event.handle)
        there = [m.memory for m in self.mappings if m.mapped and m.start <= event.address < m.end]
        if not there:
            if name is None:
                self.counts[Count.UNKNOWN_RETAINS] += 1
            else:
                name.references += 1
            return
        if name is None:
            for taken in self.in_flight.values():
                for item in taken:
                    if (
                        isinstance(item, Name)
                        and (item.space, item.number) == (HANDLE, event.handle)
                        and item.memory is there[0]
                        and not item.over
                    ):
                        name = item
        if name is not None and name.memory is there[0]:
            name.references += 1
        else:
            self.give_out(Name(HANDLE, event.handle, there[0]))

    def on_Mapped(self, event: e.Mapped) -> None:  # noqa: N802
        if event.size == 0:
            self.counts[Count.EMPTY] += 1
            return
        name = self.named(HANDLE, event.handle)
        if name is None:
            self.counts[Count.UNKNOWN_MAPS] += 1
        end = event.address + event.size
        for mapping in self.mappings:
            if mapping.start < end and event.address < mapping.end:
                if mapping.mapped and mapping.memory.key is not None:
                    self.counts[Count.REPLACED] += 1
                mapping.mapped = False
                mapping.over = True
        self.mappings.append(Mapping(event.address, end, name.memory if name else Memory(None, 0)))

    def on_Imported(self, event: e.Imported) -> None:  # noqa: N802
        if event.number == 0:
            self.counts[Count.EMPTY] += 1
            return
        space = HANDLE if event.space is None else event.space
        name = self.named(space, event.number)
        if name is not None and (space == HANDLE or name.memory.key is None):
            name.references += 1
        else:
            self.give_out(Name(space, event.number, Memory(None, 0)))

    def on_ContextEnded(self, event: e.ContextEnded) -> None:  # noqa: N802
        for name in self.names:
            if event.context and name.context == event.context:
                name.references = 0
                name.over = True

    def on_ProcessEnded(self, event: e.ProcessEnded) -> None:  # noqa: N802
        self.ended = event

    def on_MemoryInfo(self, event: e.MemoryInfo) -> None:  # noqa: N802
        self.told = [told for told in self.told if told.device != event.device] + [event]

    def on_AllocationFailed(self, event: e.AllocationFailed) -> None:  # noqa: N802
        held = self.held(event.kind.on_gpu)
        largest = sorted(
            ((key, size) for key, size in held.items() if size), key=lambda pair: -pair[1]
        )
        memory = [told for told in self.told if event.device in (told.device, e.UNKNOWN_DEVICE)]
        self.failures.append(
            Failure(
                process=self.id,
                time_ns=event.time_ns,
                call=event.call,
                kind=event.kind,
                device=event.device,
                requested=event.requested,
                error=event.error,
                stack=event.stack,
                memory=memory[-1] if memory else None,
                in_use=sum(self.held(True).values()),
                pinned_in_use=sum(self.held(False).values()),
                live=tuple(largest[: self.limits.failure_stacks]),
                live_omitted=sum(size for _, size in largest[self.limits.failure_stacks :]),
            )
        )

    # Answers

    def usage(self, on_gpu: bool) -> Usage:
        made = [size for key, size in self.made if key.kind.on_gpu is on_gpu]
        live = [m for m in self.live_memories() if m.key and m.key.kind.on_gpu is on_gpu]
        peak, when, _ = self.peaks[on_gpu]
        return Usage(sum(m.size for m in live), len(live), peak, when, len(made), sum(made))

    def aggregates(self) -> list[Aggregate]:
        aggregates = []
        for key in dict.fromkeys(key for key, _ in self.made):
            made = [size for made_key, size in self.made if made_key == key]
            live = [memory.size for memory in self.live_memories() if memory.key == key]
            at_peak = self.peaks[key.kind.on_gpu][2].get(key, 0)
            aggregates.append(Aggregate(key, len(made), sum(made), len(live), sum(live), at_peak))
        return aggregates

    def stored_failures(self) -> list[Failure]:
        first = self.limits.failures // 2
        last = self.limits.failures - first
        rest = self.failures[first:]
        return self.failures[:first] + rest[max(0, len(rest) - last) :]

    def counters(self) -> dict[Count, int]:
        dropped = len(self.failures) - len(self.stored_failures())
        return {c: self.counts[c] for c in Count} | {Count.FAILURES_DROPPED: dropped}

    def snapshot(self) -> ProcessSnapshot:
        return ProcessSnapshot(
            process=self.id,
            first_event_ns=self.first_event_ns,
            ended_ns=self.ended.time_ns if self.ended else None,
            end_reason=self.ended.reason if self.ended else "",
            gpu=self.usage(True),
            pinned=self.usage(False),
            failures=len(self.failures),
            memory=tuple(self.told),
            counters=self.counters(),
            failures_by_error=self.failures_by_error(),
        )

    def failures_by_error(self) -> dict[tuple[e.MemoryKind, int, int], int]:
        told = [(f.kind, f.device, f.error) for f in self.failures]
        kept: dict[tuple[e.MemoryKind, int, int], int] = {}
        for each in told:
            known = each in kept or len(kept) < self.limits.failures
            name = each if known else (each[0], e.UNKNOWN_DEVICE, 999)
            kept[name] = kept.get(name, 0) + 1
        return kept


class NaiveLedger:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.processes: dict[Any, NaiveProcess] = {}
        self.seen: Counter[str] = Counter()

    def apply(self, event: e.LedgerEvent) -> None:
        self.seen[type(event).__name__] += 1
        process = self.processes.get(event.process)
        if process is None:
            if isinstance(event, e.ProcessEnded):
                return
            process = NaiveProcess(event.process, event.time_ns, self.limits)
            self.processes[event.process] = process
        if process.ended:
            process.counts[Count.AFTER_END] += 1
        else:
            process.apply(event)

    def snapshot(self) -> LedgerSnapshot:
        ended = [p for p in self.processes.values() if p.ended]
        ended.sort(key=lambda p: p.ended.time_ns if p.ended else 0)
        processes = ended + [p for p in self.processes.values() if not p.ended]
        failures = [f for p in processes for f in p.stored_failures()]
        return LedgerSnapshot(
            processes=tuple(p.snapshot() for p in processes),
            aggregates=tuple(a for p in processes for a in p.aggregates()),
            failures=tuple(sorted(failures, key=lambda f: f.time_ns)),
            counters={c: sum(p.counters()[c] for p in processes) for c in Count},
            events=dict(self.seen),
        )
