"""Memory over time is exact while it fits, and keeps what matters when it is thinned."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_program import Program

from gpumemprof.ledger.events import MemoryKind
from gpumemprof.ledger.ledger import Ledger
from gpumemprof.ledger.series import Points, SeriesKey, SeriesLimits, SeriesLog, StepFunction
from gpumemprof.process.identity import ProcessId

DEVICE, PINNED = MemoryKind.DEVICE, MemoryKind.PINNED_HOST
MIB = 1 << 20


class Log(SeriesLog):
    """With the words of these tests."""

    def of(self, program: Program, kind: MemoryKind = DEVICE, device: int = 0) -> Points:
        return self.snapshot()[SeriesKey(program.id, kind, device)]

    def bytes_of(self, program: Program, kind: MemoryKind = DEVICE, device: int = 0) -> list[int]:
        return [value for _, value in self.of(program, kind, device)]


def followed(limits: SeriesLimits | None = None) -> tuple[Log, Program]:
    log = Log(limits)
    return log, Program(Ledger(on_change=log.change))


def summed(changes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Every point there was: what is held after each time."""
    held, points = 0, {}
    for time_ns, delta in changes:
        held += delta
        points[time_ns] = held
    return list(points.items())


def test_what_is_held_is_told_at_every_change() -> None:
    log, program = followed()
    program.malloc(0x1000, 64)
    start = Program.clock
    program.malloc(0x2000, 32)
    program.free(0x1000)
    assert log.of(program) == ((start, 64), (start + 1, 96), (start + 2, 32))


def test_kinds_and_devices_are_apart() -> None:
    log, program = followed()
    program.malloc(0x1000, 64, device=1)
    program.malloc_host(0x1000, 16)
    assert log.bytes_of(program, DEVICE, 1) == [64]
    assert log.bytes_of(program, PINNED) == [16]


def test_what_one_event_ends_and_begins_is_one_point() -> None:
    log, program = followed()
    program.malloc(0x1000, 64)
    program.malloc(0x1000, 32)
    assert log.bytes_of(program) == [64, 32]


def test_the_end_of_the_process_is_its_last_point() -> None:
    log, program = followed()
    program.malloc(0x1000, 64)
    program.malloc(0x2000, 64, stack=2)
    program.ends()
    assert log.of(program)[-1] == (Program.clock, 0)


def test_a_million_events_leave_a_bounded_series_with_the_exact_peak() -> None:
    series, chance = StepFunction(1024, 0), random.Random(1)
    held, highest, when = 0, 0, 0
    for time_ns in range(0, 100_000_000, 100):
        delta = chance.randint(-min(held, 4 * MIB), 4 * MIB)
        if time_ns == 31_415_900:
            delta = 1 << 34
        if time_ns == 31_416_000:
            delta = -(1 << 34)
        held += delta
        if held > highest:
            highest, when = held, time_ns
        series.change(delta, time_ns)
    points = series.points()
    assert 300 < len(points) <= 1024
    assert (when, highest) in points
    assert points[-1] == (99_999_900, held)
    gaps = [after - before for (before, _), (after, _) in itertools.pairwise(points)]
    assert max(gaps) < 100_000_000 / 64  # no part of the time is thinned much more than others


def test_old_and_new_times_are_thinned_alike() -> None:
    series = StepFunction(1024, 0)
    for time_ns in range(100_000):
        series.change(1 if time_ns % 2 else -1, time_ns)
    times = [time_ns for time_ns, _ in series.points()]
    for start in range(0, 100_000, 10_000):
        assert sum(start <= time_ns < start + 10_000 for time_ns in times) > 20


changes = st.lists(
    st.tuples(st.sampled_from([0, 1, 2, 50, 10_000]), st.integers(-40, 60)),
    min_size=1,
    max_size=300,
)


@settings(deadline=None)
@given(changes, st.integers(32, 64), st.integers(0, 1 << 60))
def test_a_thinned_series_keeps_first_last_and_extremes_and_invents_nothing(
    steps: list[tuple[int, int]], limit: int, start: int
) -> None:
    told, held, time_ns = [], 0, start
    for gap, wanted in steps:
        time_ns += gap
        delta = max(wanted, -held)
        held += delta
        told.append((time_ns, delta))
    series = StepFunction(limit, told[0][0])
    for time_ns, delta in told:
        series.change(delta, time_ns)

    points, full = series.points(), summed(told)

    assert len(points) <= limit
    assert set(points) <= set(full)
    assert list(points) == sorted(set(points))
    assert len({time_ns for time_ns, _ in points}) == len(points)
    assert points[0] == full[0]
    assert points[-1] == full[-1]
    assert max(points, key=lambda point: point[1]) == max(full, key=lambda point: point[1])
    assert min(value for _, value in points) == min(value for _, value in full)
    if len(full) <= limit - 8:
        assert list(points) == full


def test_an_event_that_comes_late_does_not_turn_time_back() -> None:
    series = StepFunction(32, 100)
    series.change(10, 100)
    series.change(5, 90)
    assert series.points() == ((100, 15),)


def test_more_bytes_than_a_file_can_tell_are_told_as_the_most_it_can() -> None:
    series = StepFunction(32, 0)
    series.change(1 << 64, 0)
    series.change(-(1 << 64) + 1, 1)
    series.change(1, 2)
    assert series.points() == ((0, (1 << 63) - 1), (1, 1), (2, 2))


def test_beyond_the_limit_a_series_that_holds_nothing_makes_room() -> None:
    log = Log(SeriesLimits(series=2))
    ledger = Ledger(on_change=log.change)
    large, small, new = (Program(ledger, pid) for pid in (1, 2, 3))
    large.malloc(0x1000, 64)
    large.ends()
    small.malloc(0x1000, 32)
    small.ends()
    new.malloc(0x1000, 1)
    assert [key.process.pid for key in log.snapshot()] == [1, 3]
    assert log.omitted == 1


def test_beyond_the_limit_what_cannot_be_kept_is_counted_once() -> None:
    log = Log(SeriesLimits(series=1))
    ledger = Ledger(on_change=log.change)
    kept, refused = Program(ledger, 1), Program(ledger, 2)
    kept.malloc(0x1000, 64)
    for address in (0x1000, 0x2000, 0x3000):
        refused.malloc(address, 8)
    assert list(log.snapshot()) == [SeriesKey(kept.id, DEVICE, 0)]
    assert log.omitted == 1


def test_a_series_that_was_refused_begins_only_when_nothing_is_held() -> None:
    log = Log(SeriesLimits(series=1))
    ledger = Ledger(on_change=log.change)
    kept, refused = Program(ledger, 1), Program(ledger, 2)
    kept.malloc(0x1000, 64)
    refused.malloc(0x1000, 8)
    kept.ends()
    refused.malloc(0x2000, 8)  # there would be room now, but what it holds is not known
    assert list(log.snapshot()) == [SeriesKey(kept.id, DEVICE, 0)]
    refused.free(0x1000)
    refused.free(0x2000)
    refused.malloc(0x3000, 5)
    assert log.bytes_of(refused) == [5]


def test_a_forgotten_process_has_no_series() -> None:
    log = Log(SeriesLimits(series=2))
    ledger = Ledger(on_change=log.change)
    first, second, third = (Program(ledger, pid) for pid in (1, 2, 3))
    for program in (first, second, third):
        program.malloc(0x1000, 64)
    log.forget(first.id)
    log.forget(third.id)
    assert [key.process.pid for key in log.snapshot()] == [2]


def test_no_series_are_kept_where_none_are_wanted() -> None:
    log, program = followed(SeriesLimits(series=0))
    program.malloc(0x1000, 64)
    assert log.snapshot() == {}


@pytest.mark.parametrize("limits", [{"points": 31}, {"series": -1}])
def test_limits_that_hold_nothing_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"limit {next(iter(limits))} must be at least"):
        SeriesLimits(**limits)


def test_processes_are_told_by_their_identity() -> None:
    log = Log()
    log.change(ProcessId(7, 1), DEVICE, 0, 5, 1, 10)
    log.change(ProcessId(7, 1, image=1), DEVICE, 0, 6, 1, 20)
    assert list(log.snapshot().values()) == [((10, 5),), ((20, 6),)]
