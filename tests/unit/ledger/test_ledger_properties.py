"""Whatever the events, the ledger answers what the rules say.

Pools of numbers are tiny, so that addresses, handles, ranges and threads collide all the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from naive_ledger import NaiveLedger

from gpumemprof.ledger import events as e
from gpumemprof.ledger.ledger import Ledger
from gpumemprof.ledger.model import LET_GO_STACK, Count, LedgerSnapshot, Limits
from gpumemprof.process.identity import ProcessId

MILLISECOND = 1_000_000

processes = st.sampled_from([ProcessId(7, 100), ProcessId(7, 200), ProcessId(7, 100, image=1)])
threads = st.integers(7, 8)
numbers = st.integers(0, 2)
contexts = st.integers(0, 2)
devices = st.integers(e.UNKNOWN_DEVICE, 1)
starts = st.integers(1, 5)
lengths = st.integers(0, 4)
sizes = st.integers(0, 4)
stacks = st.integers(1, 3)
spaces = st.sampled_from([e.AddressSpace.DEVICE, *e.AddressSpace])  # mostly one
kinds = st.sampled_from(e.MemoryKind)

Make = Callable[[int], e.LedgerEvent]


def timed(make: Callable[..., e.LedgerEvent], **fields: SearchStrategy) -> SearchStrategy[Make]:
    """Events that lack only their time, which follows from their place in the list."""

    def bind(values: dict[str, object]) -> Make:
        return lambda time_ns: make(time_ns=time_ns, **values)

    return st.fixed_dictionaries({"process": processes, **fields}).map(bind)


call = st.just("call")
memory_events = st.one_of(
    timed(
        e.Allocated,
        call=st.sampled_from(["cudaMalloc", "cuMemAlloc_v2"]),
        kind=kinds,
        space=spaces,
        device=devices,
        context=contexts,
        address=numbers,
        size=sizes,
        stack=stacks,
    ),
    timed(e.FreeEntered, thread=threads, call=call, space=spaces, address=numbers),
    timed(e.FreeFailed, thread=threads, call=call, error=st.just(1)),
    timed(e.Imported, call=call, space=st.none() | spaces, number=numbers),
    timed(e.ContextEnded, call=call, context=contexts),
)
virtual_memory_events = st.one_of(
    timed(
        e.PhysicalCreated,
        call=call,
        kind=kinds,
        device=devices,
        handle=numbers,
        size=sizes,
        stack=stacks,
    ),
    timed(e.HandleRetained, handle=numbers, address=starts),
    timed(e.Mapped, handle=numbers, address=starts, size=lengths),
    timed(e.UnmapEntered, thread=threads, call=call, address=starts, size=lengths),
    timed(e.ReleaseEntered, thread=threads, call=call, handle=numbers),
    timed(e.FreeFailed, thread=threads, call=call, error=st.just(1)),
    timed(e.Imported, call=call, space=st.none(), number=numbers),
)
other_events = st.one_of(
    timed(
        e.AllocationFailed,
        call=call,
        kind=kinds,
        device=devices,
        requested=sizes,
        error=st.just(2),
        stack=stacks,
    ),
    timed(e.MemoryInfo, device=devices, free=sizes, total=sizes),
    timed(e.ProcessEnded, reason=st.just("exit")),
)


def long_lists(events: SearchStrategy[Make]) -> SearchStrategy[list[Make]]:
    """Lists that are long by themselves, and still shrink to short ones when a test fails."""
    return st.integers(0, 40).flatmap(lambda n: st.lists(events, min_size=n, max_size=60))


# Of one sort of events as well, so that rules that need many events to meet are met.
histories = st.one_of(
    long_lists(memory_events),
    long_lists(virtual_memory_events),
    long_lists(memory_events | other_events),
    long_lists(memory_events | virtual_memory_events | other_events),
)


def comparable(snapshot: LedgerSnapshot) -> tuple[object, ...]:
    """With read-only mappings as what they show, and without types of events that never came."""
    return (
        [(p, dict(p.counters), dict(p.failures_by_error)) for p in snapshot.processes],
        snapshot.aggregates,
        snapshot.failures,
        {count: n for count, n in snapshot.counters.items() if n},
        {name: n for name, n in snapshot.events.items() if n},
    )


def events_of(history: list[Make], alone: bool) -> list[e.LedgerEvent]:
    """The events in their order; all of one process if ``alone``."""
    made = [make((place + 1) * MILLISECOND) for place, make in enumerate(history)]
    return [replace(event, process=ProcessId(7, 1)) for event in made] if alone else made


@settings(max_examples=150, deadline=None)
@given(histories, st.booleans())
def test_at_any_time_the_ledger_agrees_with_the_rules_summed_from_scratch(
    history: list[Make], alone: bool
) -> None:
    limits = Limits(failures=5, failure_stacks=2)
    ledger, naive = Ledger(limits), NaiveLedger(limits)

    events = events_of(history, alone)
    for place, event in enumerate(events, start=1):
        ledger.apply(event)
        naive.apply(event)
        if place % 8 == 0 or place == len(events):
            assert comparable(ledger.snapshot()) == comparable(naive.snapshot())


@settings(max_examples=50, deadline=None)
@given(
    histories,
    st.builds(
        Limits,
        live=st.integers(0, 3),
        aggregates=st.integers(0, 3),
        failures=st.integers(0, 3),
        failure_stacks=st.integers(0, 2),
        threads=st.integers(0, 2),
        devices=st.integers(0, 2),
    ),
)
def test_over_its_limits_the_ledger_still_adds_up_and_nothing_is_negative(
    history: list[Make], limits: Limits
) -> None:
    ledger = Ledger(limits)
    made = failed = 0

    for event in events_of(history, alone=False):
        before = ledger.snapshot()
        ended = {p.process for p in before.processes if p.ended_ns is not None}
        ledger.apply(event)
        snapshot = ledger.snapshot()
        if event.process not in ended:
            number = getattr(event, "address", getattr(event, "handle", 0))
            made += isinstance(event, e.Allocated | e.PhysicalCreated) and bool(number)
            failed += isinstance(event, e.AllocationFailed)

        assert all(snapshot.counters[count] >= before.counters[count] for count in Count)
        for process in snapshot.processes:
            for usage, on_gpu in ((process.gpu, True), (process.pinned, False)):
                aggregates = [
                    a
                    for a in snapshot.aggregates
                    if a.key.process == process.process and a.key.kind.on_gpu is on_gpu
                ]
                assert sum(a.alloc_count for a in aggregates) == usage.alloc_count
                assert sum(a.alloc_bytes for a in aggregates) == usage.alloc_bytes
                assert sum(a.inuse_count for a in aggregates) == usage.inuse_count
                assert sum(a.inuse_bytes for a in aggregates) == usage.in_use
                assert sum(a.peak_bytes for a in aggregates) == usage.peak
                assert 0 <= usage.in_use <= usage.peak
                assert all(min(a[1:]) >= 0 for a in aggregates)
            assert len(process.memory) <= limits.devices
        for failure in snapshot.failures:
            held = failure.in_use if failure.kind.on_gpu else failure.pinned_in_use
            assert sum(size for _, size in failure.live) + failure.live_omitted == held
            assert len(failure.live) <= limits.failure_stacks
        totals = ledger.totals()
        assert totals.gpu_in_use == sum(p.gpu.in_use for p in snapshot.processes)
        assert totals.pinned_in_use == sum(p.pinned.in_use for p in snapshot.processes)
        assert totals.alloc_count == made == sum(a.alloc_count for a in snapshot.aggregates)
        assert totals.inuse_count == sum(a.inuse_count for a in snapshot.aggregates)
        assert totals.failures == failed == sum(p.failures for p in snapshot.processes)
        dropped = snapshot.counters[Count.FAILURES_DROPPED]
        assert len(snapshot.failures) + dropped == failed


@settings(max_examples=100, deadline=None)
@given(histories, st.booleans(), st.booleans())
def test_the_changes_told_always_add_up_to_what_is_held(
    history: list[Make], alone: bool, few: bool
) -> None:
    held: Counter[tuple[ProcessId, e.MemoryKind, int]] = Counter()
    counts: Counter[tuple[ProcessId, e.MemoryKind, int]] = Counter()
    now = 0

    def change(
        process: ProcessId, kind: e.MemoryKind, device: int, size: int, count: int, time_ns: int
    ) -> None:
        assert time_ns == now
        assert count
        assert size * count >= 0
        held[process, kind, device] += size
        counts[process, kind, device] += count

    ledger = Ledger(Limits(live=3, aggregates=2, threads=1) if few else Limits(), change)

    for event in events_of(history, alone):
        now = event.time_ns
        ledger.apply(event)
        expected, numbers = Counter(), Counter()
        for a in ledger.snapshot().aggregates:
            expected[a.key.process, a.key.kind, a.key.device] += a.inuse_bytes
            numbers[a.key.process, a.key.kind, a.key.device] += a.inuse_count
        assert +held == +expected
        assert +counts == +numbers
        assert min(held.values(), default=0) >= 0


def sums(snapshot: LedgerSnapshot) -> tuple[object, ...]:
    """What stays the same whatever is let go of."""
    held = {
        a.key: (a.inuse_count, a.inuse_bytes, a.peak_bytes)
        for a in snapshot.aggregates
        if a.inuse_count or a.peak_bytes
    }
    made: Counter[object] = Counter()
    for a in snapshot.aggregates:
        process, _, call, kind, device = a.key
        made[process, call, kind, device, "count"] += a.alloc_count
        made[process, call, kind, device, "bytes"] += a.alloc_bytes
    failures = [replace(f, live=tuple(sorted(f.live, key=str))) for f in snapshot.failures]
    processes = [(p, dict(p.counters), dict(p.failures_by_error)) for p in snapshot.processes]
    return held, +made, failures, processes


@settings(max_examples=150, deadline=None)
@given(histories, st.booleans())
def test_letting_go_of_what_holds_nothing_changes_no_sum(history: list[Make], alone: bool) -> None:
    ledger, other = Ledger(), Ledger()

    for place, event in enumerate(events_of(history, alone)):
        ledger.apply(event)
        other.apply(event)
        if place % 3 == 0:
            before = {a.key for a in ledger.snapshot().aggregates}
            gone = ledger.let_go_idle(event.process)
            after = {a.key for a in ledger.snapshot().aggregates}
            assert set(gone) == before - after
            assert {key.stack for key in after - before} <= {LET_GO_STACK}
            assert not ledger.let_go_idle(event.process)
        assert sums(ledger.snapshot()) == sums(other.snapshot())
        assert ledger.totals() == other.totals()
