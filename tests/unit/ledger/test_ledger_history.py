"""What each stack held from time to time is kept evenly, in bounded memory."""

from __future__ import annotations

from itertools import pairwise

import pytest
from ledger_program import Program

from gpumemprof.ledger.events import MemoryKind
from gpumemprof.ledger.history import FIRST_INTERVAL_NS, HistoryLimits, StackHistory
from gpumemprof.ledger.ledger import Ledger
from gpumemprof.ledger.model import AggregateKey
from gpumemprof.process.identity import ProcessId

ONE, OTHER = ProcessId(1, 1), ProcessId(2, 1)


def key(stack: int, process: ProcessId = ONE) -> AggregateKey:
    return AggregateKey(process, stack, "cudaMalloc", MemoryKind.DEVICE, 0)


def test_a_stack_is_told_at_every_look_from_the_first_that_found_it() -> None:
    history = StackHistory()
    history.look(10, [(key(1), 64)])
    history.look(20, [(key(1), 96), (key(2), 8)])
    history.look(30, [(key(2), 4)])
    assert history.snapshot() == {
        key(1): ((10, 64), (20, 96), (30, 0)),
        key(2): ((20, 8), (30, 4)),
    }


def test_the_ledger_tells_what_running_processes_hold() -> None:
    ledger = Ledger()
    running, ended = Program(ledger, 1), Program(ledger, 2)
    for program in (running, ended):
        program.malloc(0x1000, 64, stack=1)
        program.malloc(0x2000, 32, stack=2)
    running.free(0x2000)
    ended.ends()
    assert [(held.process, held.stack, size) for held, size in ledger.held()] == [
        (running.id, 1, 64)
    ]


def test_looks_cover_the_whole_time_evenly() -> None:
    history = StackHistory(HistoryLimits(looks=32))
    looks, now = [], 0
    for tick in range(100_000):
        now = tick * 7_000_000
        if history.due(now):
            looks.append(now)
            history.look(now, [(key(1), tick)])
    points = history.snapshot()[key(1)]
    assert 16 <= len(points) < 32
    assert points[-1][0] == looks[-1]
    gaps = {after - before for (before, _), (after, _) in pairwise(points)}
    assert max(gaps) < 1.5 * min(gaps)
    assert points[0][0] < 100_000 * 7_000_000 / 8
    assert len(looks) < 400


def test_the_first_looks_come_soon() -> None:
    history = StackHistory()
    assert history.due(0)
    history.look(0, [])
    assert not history.due(FIRST_INTERVAL_NS // 2)


def test_of_too_many_stacks_the_largest_are_kept_and_small_ones_are_not_called_gone() -> None:
    history = StackHistory(HistoryLimits(stacks=2))
    history.look(10, [(key(1), 5), (key(2), 7)])
    history.look(20, [(key(1), 5), (key(2), 7), (key(3), 6)])
    history.look(30, [(key(3), 6)])
    assert history.snapshot() == {
        key(1): ((10, 5), (30, 0)),
        key(2): ((10, 7), (20, 7), (30, 0)),
        key(3): ((20, 6), (30, 6)),
    }


def test_a_forgotten_process_has_no_history() -> None:
    history = StackHistory()
    history.look(10, [(key(1), 64), (key(1, OTHER), 32)])
    history.forget(ONE)
    history.look(20, [(key(1, OTHER), 33)])
    assert history.snapshot() == {key(1, OTHER): ((10, 32), (20, 33))}


def test_where_no_stacks_are_wanted_it_is_never_time_to_look() -> None:
    assert not StackHistory(HistoryLimits(stacks=0)).due(10**18)


@pytest.mark.parametrize("limits", [{"looks": 3}, {"stacks": -1}])
def test_limits_that_hold_nothing_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"limit {next(iter(limits))} must be at least"):
        HistoryLimits(**limits)
