"""From what the ledger knows to a profile: stacks get frames, processes get labels."""

from __future__ import annotations

import time
from collections.abc import Mapping

from gpumemprof.ledger import events as e
from gpumemprof.ledger.events import UNKNOWN_DEVICE, AddressSpace, MemoryKind
from gpumemprof.ledger.ledger import Ledger
from gpumemprof.ledger.model import AggregateKey, Limits
from gpumemprof.ledger.series import Points, SeriesKey
from gpumemprof.process.identity import ProcessId
from gpumemprof.process.table import Process
from gpumemprof.profile.build import MAX_HISTORIES, build
from gpumemprof.profile.model import Profile, Values
from gpumemprof.stack.frames import Frame, Stack

MIB = 1 << 20
FIRST, SECOND = ProcessId(7, 100), ProcessId(8, 200)
STARTED = 1_700_000_000_000_000_000
STACKS: Mapping[int, Stack] = {
    1: (Frame("cudaMalloc"), Frame("load")),
    2: (Frame("cudaMalloc"), Frame("infer")),
}


def process(identity: ProcessId, comm: str = "python", ended: int | None = None) -> Process:
    reason = "" if ended is None else "exit"
    return Process(identity, comm, f"{comm} x.py", STARTED, ended, reason)


def malloc(
    ledger: Ledger, stack: int, size: int, owner: ProcessId = FIRST, address: int | None = None
) -> None:
    chosen = address or (stack << 32) + size
    ledger.apply(
        e.Allocated(
            owner,
            1,
            "cudaMalloc",
            MemoryKind.DEVICE,
            AddressSpace.DEVICE,
            0,
            0,
            chosen,
            size,
            stack,
        )
    )


def fail(
    ledger: Ledger, stack: int, kind: MemoryKind = MemoryKind.DEVICE, time_ns: int = 5
) -> None:
    ledger.apply(
        e.AllocationFailed(FIRST, time_ns, "cudaMalloc", kind, UNKNOWN_DEVICE, 1 << 40, 2, stack)
    )


def profile_of(
    ledger: Ledger,
    *processes: Process,
    before_attach: Mapping[ProcessId, int] | None = None,
    series: Mapping[SeriesKey, Points] | None = None,
    histories: Mapping[AggregateKey, Points] | None = None,
) -> Profile:
    return build(
        ledger.snapshot(),
        processes or (process(FIRST),),
        STACKS.__getitem__,
        started_ns=STARTED,
        duration_ns=10,
        completeness={"events_lost": 3},
        about={"version": "1"},
        driver_bytes={FIRST: 500 * MIB},
        before_attach=before_attach,
        series=series,
        histories=histories,
    )


def test_each_stack_is_a_sample_with_its_values_and_labels() -> None:
    ledger = Ledger()
    malloc(ledger, 1, 2 * MIB)
    malloc(ledger, 2, 3 * MIB)
    ledger.apply(e.FreeEntered(FIRST, 1, 2, "cudaFree", AddressSpace.DEVICE, (2 << 32) + 3 * MIB))
    first, second = profile_of(ledger).samples
    assert first.stack == STACKS[1]
    assert dict(first.labels) == {
        "pid": "7", "comm": "python", "call": "cudaMalloc", "kind": "device", "device": "0",
    }  # fmt: skip
    assert first.values == Values(1, 2 * MIB, 1, 2 * MIB, 2 * MIB)
    assert second.values == Values(1, 3 * MIB, 0, 0, 3 * MIB)


def test_labels_are_sorted_and_never_empty() -> None:
    ledger = Ledger()
    malloc(ledger, 1, MIB)
    (sample,) = profile_of(ledger, process(FIRST, comm="")).samples
    assert [key for key, _ in sample.labels] == ["call", "device", "kind", "pid"]


def test_processes_are_told_with_their_peak_and_what_the_driver_says() -> None:
    ledger = Ledger()
    malloc(ledger, 1, 2 * MIB)
    malloc(ledger, 1, MIB, SECOND)
    ledger.apply(e.ProcessEnded(SECOND, 3, "exit"))
    told = profile_of(ledger, process(FIRST), process(SECOND, "sh", 99)).processes
    first, second = sorted(told, key=lambda process: process.pid)
    assert (first.pid, first.in_use, first.peak, first.driver) == (7, 2 * MIB, 2 * MIB, 500 * MIB)
    assert (second.in_use, second.peak, second.driver) == (0, MIB, None)
    assert (second.ended, second.end_reason) == (99, "exit")


def test_two_programs_of_one_process_are_two() -> None:
    ledger = Ledger()
    again = FIRST._replace(image=1)
    malloc(ledger, 1, MIB)
    ledger.apply(e.ProcessEnded(FIRST, 3, "exec"))
    malloc(ledger, 1, 2 * MIB, again)
    told = profile_of(ledger, process(FIRST), process(again)).processes
    assert [(p.pid, p.in_use, p.peak) for p in told] == [(7, 0, MIB), (7, 2 * MIB, 2 * MIB)]


def test_a_process_that_was_forgotten_keeps_its_samples() -> None:
    ledger = Ledger()
    malloc(ledger, 1, MIB, SECOND)
    profile = profile_of(ledger)
    assert profile.processes == ()
    assert dict(profile.samples[0].labels)["pid"] == "8"


def test_stacks_beyond_the_limit_are_one_that_says_so() -> None:
    ledger = Ledger(Limits(aggregates=1))
    malloc(ledger, 1, MIB)
    malloc(ledger, 2, 2 * MIB)
    _, rest = profile_of(ledger).samples
    assert rest.stack == (Frame.note("stacks beyond the limit"),)
    assert rest.values.inuse_space == 2 * MIB


def test_memory_from_before_is_a_sample_of_its_own() -> None:
    found = profile_of(Ledger(), before_attach={FIRST: 400 * MIB, SECOND: 0}).samples
    (sample,) = found
    assert sample.stack == (Frame.note("before attach"),)
    assert sample.values == Values(0, 0, 0, 400 * MIB, 400 * MIB)
    assert dict(sample.labels) == {
        "pid": "7", "comm": "python", "kind": "device", "device": "unknown",
    }  # fmt: skip


def test_a_failure_says_what_was_held_and_points_to_the_samples() -> None:
    ledger = Ledger()
    ledger.apply(e.MemoryInfo(FIRST, 1, 0, 5 * MIB, 80 * MIB))
    malloc(ledger, 1, MIB)
    malloc(ledger, 2, 2 * MIB)
    fail(ledger, 2)
    profile = profile_of(ledger)
    (failure,) = profile.failures
    assert failure.stack == STACKS[2]
    assert (failure.error, failure.requested, failure.in_use) == (2, 1 << 40, 3 * MIB)
    assert (failure.free, failure.total) == (5 * MIB, 80 * MIB)
    assert [(profile.samples[i].stack, size) for i, size in failure.live] == [
        (STACKS[2], 2 * MIB),
        (STACKS[1], MIB),
    ]
    assert failure.live_omitted == 0


def test_a_failure_of_pinned_memory_tells_pinned_memory() -> None:
    ledger = Ledger()
    malloc(ledger, 1, MIB)
    fail(ledger, 2, MemoryKind.PINNED_HOST)
    (failure,) = profile_of(ledger).failures
    assert failure.in_use == 0
    assert failure.live == ()
    assert (failure.free, failure.total) == (None, None)


def test_the_time_of_a_failure_is_of_the_wall_clock() -> None:
    ledger = Ledger()
    fail(ledger, 1, time_ns=time.monotonic_ns())
    (failure,) = profile_of(ledger).failures
    assert abs(failure.time_ns - time.time_ns()) < 60 * 10**9


def test_memory_over_time_has_the_labels_of_samples_and_the_wall_clock() -> None:
    now = time.monotonic_ns()
    key = SeriesKey(FIRST, MemoryKind.DEVICE, UNKNOWN_DEVICE)
    (series,) = profile_of(Ledger(), series={key: ((now, MIB), (now + 5, 3 * MIB))}).series
    assert dict(series.labels) == {
        "pid": "7", "comm": "python", "kind": "device", "device": "unknown",
    }  # fmt: skip
    (first, low), (second, high) = series.points
    assert (low, high, second - first) == (MIB, 3 * MIB, 5)
    assert abs(first - time.time_ns()) < 60 * 10**9
    assert series.peak == (second, high)


def test_stacks_that_grew_have_a_history_and_others_have_none() -> None:
    ledger = Ledger()
    malloc(ledger, 1, MIB)
    malloc(ledger, 2, 2 * MIB)
    first, second = (aggregate.key for aggregate in ledger.snapshot().aggregates)
    looks = {first: ((10, 5), (20, 5)), second: ((10, 5), (20, 4), (30, 9))}
    (history,) = profile_of(ledger, histories=looks).histories
    assert history.sample == 1
    assert [size for _, size in history.points] == [5, 4, 9]
    assert history.points[1][0] - history.points[0][0] == 10


def test_the_history_of_a_process_that_ended_is_of_the_time_before() -> None:
    ledger = Ledger()
    malloc(ledger, 1, MIB)
    ledger.apply(e.ProcessEnded(FIRST, 35, "exit"))
    (aggregate,) = ledger.snapshot().aggregates
    looks = {aggregate.key: ((10, 5), (20, 6), (30, 1), (40, 0))}
    (history,) = profile_of(ledger, histories=looks).histories
    assert [size for _, size in history.points] == [5, 6]


def test_only_the_histories_that_grew_most_are_kept() -> None:
    ledger = Ledger()
    for stack in range(1, MAX_HISTORIES + 6):
        malloc(ledger, stack, MIB)
    keys = [aggregate.key for aggregate in ledger.snapshot().aggregates]
    looks = {key: ((10, 1), (20, 1 + key.stack)) for key in keys}
    names = dict.fromkeys(range(100), STACKS[1])
    told = build(
        ledger.snapshot(), (process(FIRST),), names.__getitem__, started_ns=STARTED, duration_ns=10,
        completeness={}, about={}, histories=looks,
    ).histories  # fmt: skip
    assert len(told) == MAX_HISTORIES
    assert min(history.points[-1][1] for history in told) == 7


def test_counters_of_all_stages_are_told_together() -> None:
    ledger = Ledger()
    ledger.apply(e.FreeEntered(FIRST, 1, 2, "cudaFree", AddressSpace.DEVICE, 99))
    completeness = profile_of(ledger).completeness
    assert completeness["events_lost"] == 3
    assert completeness["unknown_frees"] == 1
