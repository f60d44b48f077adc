"""The profile at the moment of running out of memory."""

from __future__ import annotations

import pytest
from ledger_program import OUT_OF_MEMORY, Program

from gpumemprof.ledger.events import UNKNOWN_DEVICE, AllocationFailed, MemoryKind
from gpumemprof.ledger.ledger import Ledger
from gpumemprof.ledger.model import Count, Limits

A, B, C = 0x7F00_0000_0000, 0x7F00_0020_0000, 0x7F00_0040_0000
WEIGHTS, CACHE, SCRATCH, GREEDY = 1, 2, 3, 4


@pytest.fixture
def program() -> Program:
    return Program(Ledger())


def test_a_failure_shows_what_was_asked_for_what_was_free_and_what_was_live(
    program: Program,
) -> None:
    program.malloc(A, 10, CACHE)
    program.malloc(B, 70, WEIGHTS)
    program.malloc_host(A, 500, SCRATCH)
    program.memory_info(free=20, total=100)
    program.malloc_fails(2**45, GREEDY)

    (failure,) = program.failures
    assert (failure.error, failure.requested, failure.stack) == (OUT_OF_MEMORY, 2**45, GREEDY)
    assert failure.memory is not None
    assert (failure.memory.free, failure.memory.total) == (20, 100)
    assert (failure.in_use, failure.pinned_in_use) == (80, 500)
    assert [(key.stack, size) for key, size in failure.live] == [(WEIGHTS, 70), (CACHE, 10)]
    assert failure.live_omitted == 0


def test_an_allocation_that_failed_is_not_memory(program: Program) -> None:
    program.malloc_fails(2**45)

    assert program.in_use == program.peak == 0
    assert program.known.gpu.alloc_count == 0
    assert program.ledger.snapshot().aggregates == ()
    assert program.known.failures == 1


def test_out_of_memory_then_a_retry_that_succeeds(program: Program) -> None:
    # GIVEN PyTorch, which frees its cache and tries again when an allocation fails
    program.malloc(A, 60, WEIGHTS)
    program.malloc(B, 30, CACHE)
    program.malloc_fails(25, SCRATCH)
    program.free(B)
    program.malloc(B, 25, SCRATCH)

    # THEN the failure shows what was live before the cache was freed
    (failure,) = program.failures
    assert [(key.stack, size) for key, size in failure.live] == [(WEIGHTS, 60), (CACHE, 30)]
    assert program.in_use == 85
    assert program.stack(SCRATCH).alloc_count == 1


def test_each_of_two_failures_in_a_row_shows_what_was_live_then(program: Program) -> None:
    program.malloc(A, 60, WEIGHTS)
    program.malloc(B, 30, CACHE)
    program.malloc_fails(25)
    program.free(B)
    program.malloc_fails(25)
    program.last_free_fails()
    program.malloc_fails(25)

    lives = [[size for _, size in failure.live] for failure in program.failures]
    assert lives == [[60, 30], [60], [60, 30]]


def test_when_pinned_memory_runs_out_the_pinned_memory_is_shown(program: Program) -> None:
    program.malloc(A, 70, WEIGHTS)
    program.malloc_host(A, 500, SCRATCH)
    program.tell(
        AllocationFailed,
        call="cuMemHostAlloc",
        kind=MemoryKind.PINNED_HOST,
        device=0,
        requested=10**12,
        error=OUT_OF_MEMORY,
        stack=GREEDY,
    )

    (failure,) = program.failures
    assert [(key.stack, size) for key, size in failure.live] == [(SCRATCH, 500)]


def test_the_smallest_stacks_are_summed_when_there_are_too_many() -> None:
    program = Program(Ledger(Limits(failure_stacks=2)))
    for stack, size in ((1, 5), (2, 40), (3, 7), (4, 40)):
        program.malloc(A + stack, size, stack)
    program.malloc_fails(1000)

    (failure,) = program.failures
    assert [(key.stack, size) for key, size in failure.live] == [(2, 40), (4, 40)]
    assert failure.live_omitted == 12


class TestFreeAndTotal:
    def test_are_those_of_the_device_that_ran_out(self, program: Program) -> None:
        program.memory_info(free=1, total=10, device=0)
        program.memory_info(free=2, total=20, device=1)
        program.malloc_fails(1000, device=0)

        assert program.failures[0].memory == program.known.memory[0]
        assert program.failures[0].memory is not None
        assert program.failures[0].memory.total == 10

    def test_are_the_last_told_when_the_device_is_not_known(self, program: Program) -> None:
        program.memory_info(free=2, total=20, device=1)
        program.memory_info(free=1, total=10, device=0)
        program.memory_info(free=3, total=20, device=1)
        program.malloc_fails(1000, device=UNKNOWN_DEVICE)

        assert program.failures[0].memory is not None
        assert program.failures[0].memory.free == 3

    def test_are_unknown_if_the_program_never_asked_for_that_device(self, program: Program) -> None:
        program.memory_info(free=2, total=20, device=1)
        program.malloc_fails(1000, device=0)

        assert program.failures[0].memory is None


class TestManyFailures:
    def test_the_first_and_the_most_recent_are_kept_and_all_are_counted(self) -> None:
        program = Program(Ledger(Limits(failures=4)))
        for requested in range(10):
            program.malloc_fails(requested)

        assert [f.requested for f in program.failures] == [0, 1, 8, 9]
        assert program.known.failures == program.ledger.totals().failures == 10
        assert program.counted == {Count.FAILURES_DROPPED: 6}

    def test_one_process_that_fails_in_a_loop_does_not_push_out_another_s_failure(self) -> None:
        ledger = Ledger(Limits(failures=2))
        quiet, loud = Program(ledger, pid=1), Program(ledger, pid=2)
        quiet.malloc_fails(77)
        for requested in range(10):
            loud.malloc_fails(requested)

        assert [f.requested for f in quiet.failures] == [77]

    def test_in_a_quick_loop_the_live_set_is_not_taken_each_time_but_never_a_wrong_one(
        self,
    ) -> None:
        # GIVEN a program with a hundred stacks that has failed often enough to fill the first half
        program = Program(Ledger(Limits(failures=6)))
        for stack in range(100):
            program.malloc(A + stack, 1, stack)
        for _ in range(3):
            program.malloc_fails(1000)

        # WHEN it changes what it holds and fails again, at once and after a while
        program.malloc(B, 5, CACHE)
        program.malloc_fails(1000)
        at_once = program.failures[-1]
        program.malloc_fails(1000, time_ns=Program.clock + 1_000_000)
        after_a_while = program.failures[-1]

        # THEN the first of them tells that it has no live set, and the second has one
        assert (at_once.live, at_once.live_omitted) == ((), 105)
        assert after_a_while.live[0][1] == 6
        assert after_a_while.live_omitted == 105 - sum(s for _, s in after_a_while.live)
        assert program.counted[Count.FAILURES_ABRIDGED] == 1

    def test_a_loop_that_holds_the_same_all_the_time_shows_it_each_time(self) -> None:
        program = Program(Ledger(Limits(failures=6)))
        for stack in range(100):
            program.malloc(A + stack, 1, stack)
        for _ in range(50):
            program.malloc_fails(1000)

        assert {len(failure.live) for failure in program.failures} == {64}
        assert Count.FAILURES_ABRIDGED not in program.counted
