"""What a user is told about allocations, frees and the ends of contexts and processes."""

from __future__ import annotations

import doctest

import pytest
from ledger_program import Program

from gpumemprof.ledger import ledger as ledger_module
from gpumemprof.ledger.events import UNKNOWN_DEVICE, AddressSpace, MemoryKind
from gpumemprof.ledger.ledger import Ledger
from gpumemprof.ledger.model import OVERFLOW_STACK, Count, Limits, Usage
from gpumemprof.process.identity import ProcessId

A, B, C = 0x7F00_0000_0000, 0x7F00_0020_0000, 0x7F00_0040_0000
WEIGHTS, CACHE, SCRATCH = 1, 2, 3


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def program(ledger: Ledger) -> Program:
    return Program(ledger)


def test_a_program_that_allocates_and_frees_holds_the_rest(program: Program) -> None:
    program.malloc(A, 100, WEIGHTS)
    program.malloc(B, 30, WEIGHTS)
    program.free(B)

    assert program.in_use == 100
    assert program.stack(WEIGHTS)[1:] == (2, 130, 1, 100, 130)
    assert program.counted == {}


def test_the_peak_shows_which_stacks_held_it(program: Program) -> None:
    # GIVEN weights that stay and scratch memory that is gone
    program.malloc(A, 100, WEIGHTS)
    program.malloc(B, 80, SCRATCH)
    program.free(B)

    # WHEN a cache grows, but not to the earlier peak
    program.malloc(C, 50, CACHE)

    # THEN the peak is that of the scratch memory
    assert program.peak == 180
    assert program.stack(WEIGHTS).peak_bytes == 100
    assert program.stack(SCRATCH).peak_bytes == 80
    assert program.stack(CACHE).peak_bytes == 0
    assert program.stack(CACHE).inuse_bytes == 50


def test_of_two_equal_peaks_the_first_one_counts(program: Program) -> None:
    program.malloc(A, 100, SCRATCH)
    first_peak = Program.clock
    program.free(A)
    program.malloc(A, 100, CACHE)

    assert program.known.gpu.peak_time_ns == first_peak
    assert program.stack(SCRATCH).peak_bytes == 100
    assert program.stack(CACHE).peak_bytes == 0


def test_pinned_host_memory_is_kept_apart_from_gpu_memory(program: Program) -> None:
    # JAX: 104 cuMemHostAlloc, none of it on the GPU
    program.malloc(A, 100, WEIGHTS)
    program.malloc_host(A, 1000, SCRATCH)
    program.free(A, space=AddressSpace.HOST)
    program.malloc_host(B, 600, SCRATCH)

    assert program.known.gpu == Usage(100, 1, 100, program.known.gpu.peak_time_ns, 1, 100)
    assert program.known.pinned.in_use == 600
    assert program.known.pinned.peak == 1000
    assert program.stack(SCRATCH).peak_bytes == 1000
    assert program.stack(WEIGHTS).peak_bytes == 100
    assert program.ledger.totals()[:3] == (100, 600, 2)


def test_managed_memory_and_arrays_are_gpu_memory_of_their_own_kind(program: Program) -> None:
    program.malloc(A, 10, call="cudaMallocManaged", kind=MemoryKind.MANAGED)
    program.malloc(A, 20, call="cudaMallocArray", kind=MemoryKind.ARRAY, space=AddressSpace.ARRAY)

    assert program.in_use == 30
    assert [a.key.kind for a in program.ledger.snapshot().aggregates] == [
        MemoryKind.MANAGED,
        MemoryKind.ARRAY,
    ]


def test_one_stack_that_uses_two_gpus_has_two_rows(program: Program) -> None:
    program.malloc(A, 10, WEIGHTS, device=0)
    program.malloc(B, 20, WEIGHTS, device=1)

    rows = program.ledger.snapshot().aggregates
    assert [(row.key.device, row.inuse_bytes) for row in rows] == [(0, 10), (1, 20)]


def test_two_processes_with_equal_addresses_are_never_merged(ledger: Ledger) -> None:
    one, two = Program(ledger, pid=1), Program(ledger, pid=2)
    one.malloc(A, 100, WEIGHTS)
    two.malloc(A, 7, WEIGHTS)
    two.free(A)

    assert (one.in_use, two.in_use) == (100, 0)
    assert one.stack(WEIGHTS).inuse_bytes == 100


class TestFrees:
    def test_a_free_of_null_is_nothing(self, program: Program) -> None:
        program.malloc(A, 100)
        program.free(0)

        assert program.in_use == 100
        assert program.counted == {}

    def test_malloc_of_zero_bytes_is_no_allocation(self, program: Program) -> None:
        program.malloc(0, 0)

        assert program.known.gpu.alloc_count == 0
        assert program.counted == {Count.EMPTY: 1}

    def test_a_free_of_memory_from_before_attach_is_unknown_and_never_negative(
        self, program: Program
    ) -> None:
        program.free(A)

        assert program.in_use == 0
        assert program.counted == {Count.UNKNOWN_FREES: 1}

    def test_memory_that_another_thread_got_before_the_free_returned_is_counted(
        self, program: Program
    ) -> None:
        program.malloc(A, 100, WEIGHTS)
        program.free(A, thread=1)
        program.malloc(A, 40, CACHE)

        assert program.in_use == 40
        assert program.counted == {}

    def test_a_free_that_fails_leaves_everything_as_it_was(self, program: Program) -> None:
        program.malloc(A, 100, WEIGHTS)
        program.free(A)
        program.last_free_fails()

        assert program.stack(WEIGHTS)[1:] == (1, 100, 1, 100, 100)
        assert program.counted == {Count.FAILED_FREES: 1}

    def test_a_failed_free_concerns_only_the_thread_it_failed_in(self, program: Program) -> None:
        # GIVEN two threads that free at the same time
        program.malloc(A, 100, WEIGHTS)
        program.malloc(B, 10, CACHE)
        program.free(A, thread=1)
        program.free(B, thread=2)

        # WHEN one of the frees fails
        program.last_free_fails(thread=1)

        # THEN only its memory is back
        assert program.in_use == 100
        assert program.stack(CACHE).inuse_bytes == 0

    def test_memory_freed_with_an_error_but_given_out_anew_is_not_counted_twice(
        self, program: Program
    ) -> None:
        # GIVEN a free that returns the error of an earlier kernel launch, though it freed
        program.malloc(A, 100, WEIGHTS)
        program.free(A, thread=1)
        program.malloc(A, 100, CACHE)

        # WHEN its error is told
        program.last_free_fails(thread=1)

        # THEN the address belongs to who got it since
        assert program.in_use == 100
        assert program.stack(CACHE).inuse_bytes == 100
        assert program.counted[Count.FAILED_FREES_NOT_RESTORED] == 1

    def test_nor_if_it_was_freed_again_meanwhile(self, program: Program) -> None:
        program.malloc(A, 100, WEIGHTS)
        program.free(A, thread=1)
        program.malloc(A, 100, CACHE)
        program.free(A, thread=2)
        program.last_free_fails(thread=1)

        assert program.in_use == 0

    def test_a_failing_free_of_null_brings_nothing_back(self, program: Program) -> None:
        # cudaFree(0) is how programs initialise CUDA; without a GPU it fails
        program.malloc(A, 100)
        program.free(A)
        program.free(0)
        program.last_free_fails()

        assert program.in_use == 0

    def test_a_failure_whose_free_was_not_seen_is_told(self, program: Program) -> None:
        program.malloc(A, 100)
        program.last_free_fails()

        assert program.in_use == 100
        assert program.counted == {
            Count.FAILED_FREES: 1,
            Count.FAILED_FREES_UNMATCHED: 1,
        }

    def test_an_address_given_out_again_ends_what_was_there(self, program: Program) -> None:
        # A static cudart's cudaDeviceReset reaches no driver call: its frees are never seen
        program.malloc(A, 100, WEIGHTS)
        program.malloc(A, 60, CACHE)

        assert program.in_use == 60
        assert program.peak == 100
        assert program.stack(WEIGHTS).inuse_bytes == 0
        assert program.counted == {Count.REPLACED: 1}


class TestImports:
    def test_memory_opened_by_ipc_is_a_reference_and_never_counted(self, ledger: Ledger) -> None:
        # GIVEN a trainer that shares a tensor with a worker
        trainer, worker = Program(ledger, pid=1), Program(ledger, pid=2)
        trainer.malloc(A, 100)

        # WHEN the worker opens it twice and closes it twice
        worker.open_ipc(A)
        worker.open_ipc(A)
        worker.free(A)
        worker.free(A)

        # THEN it was counted once, for its owner, and no close was unknown
        assert ledger.totals().gpu_in_use == 100
        assert worker.in_use == 0
        assert worker.counted == {}

    def test_one_close_more_than_opens_is_unknown(self, program: Program) -> None:
        program.open_ipc(A)
        program.free(A)
        program.free(A)

        assert program.counted == {Count.UNKNOWN_FREES: 1}

    def test_a_close_that_fails_leaves_it_open(self, program: Program) -> None:
        program.open_ipc(A)
        program.free(A)
        program.last_free_fails()
        program.free(A)

        assert program.counted == {Count.FAILED_FREES: 1}

    def test_own_memory_may_come_where_a_reference_was(self, program: Program) -> None:
        program.open_ipc(A)
        program.malloc(A, 100)
        program.free(A)

        assert program.peak == 100
        assert program.in_use == 0
        assert program.counted == {}


class TestEnds:
    def test_a_device_reset_ends_what_was_allocated_under_its_context(
        self, program: Program
    ) -> None:
        program.malloc(A, 100, context=0xC0)
        program.malloc(B, 10, context=0xC1)
        program.malloc_host(A, 5)
        program.create(handle=1, size=1000)
        program.reset(context=0xC0)

        assert program.in_use == 10 + 1000  # physical memory belongs to no context
        assert program.known.pinned.in_use == 0
        assert program.peak == 1110

    def test_memory_of_an_unknown_context_stays(self, program: Program) -> None:
        program.malloc(A, 100, context=0)
        program.reset(context=0)

        assert program.in_use == 100

    def test_a_free_that_fails_after_its_context_ended_brings_nothing_back(
        self, program: Program
    ) -> None:
        program.malloc(A, 100)
        program.free(A, thread=1)
        program.reset()
        program.last_free_fails(thread=1)

        assert program.in_use == 0

    def test_a_process_that_exits_holds_nothing_and_its_peak_stays(self, program: Program) -> None:
        program.malloc(A, 100, WEIGHTS)
        program.malloc_host(B, 7, CACHE)
        program.ends("exit")

        assert program.in_use == program.known.pinned.in_use == 0
        assert program.stack(WEIGHTS)[1:] == (1, 100, 0, 0, 100)
        assert program.known.pinned.peak == 7
        assert program.known.ended_ns == Program.clock
        assert program.known.end_reason == "exit"
        assert program.ledger.totals()[:4] == (0, 0, 0, 2)

    def test_a_reused_pid_is_another_process(self, ledger: Ledger) -> None:
        first = Program(ledger, pid=9, start_ns=1000)
        first.malloc(A, 100)
        second = Program(ledger, pid=9, start_ns=2000)
        second.malloc(A, 30)
        first.ends("exit")

        assert (first.in_use, second.in_use) == (0, 30)
        assert second.peak == 30

    def test_exec_ends_the_memory_of_the_program_it_replaces(self, ledger: Ledger) -> None:
        before = Program(ledger, pid=9, image=0)
        before.malloc(A, 100)
        before.ends("exec")
        after = Program(ledger, pid=9, image=1)
        after.malloc(A, 30)

        assert (before.in_use, after.in_use) == (0, 30)
        assert before.known.end_reason == "exec"
        assert after.counted == {}

    def test_what_a_worker_thread_freed_and_allocated_outlives_it(self, program: Program) -> None:
        program.malloc(A, 100)
        program.malloc(B, 10)
        program.free(B, thread=99)  # the last that is heard of thread 99

        assert program.in_use == 100

    def test_events_that_come_after_the_end_are_counted_and_change_nothing(
        self, program: Program
    ) -> None:
        program.malloc(A, 100)
        program.ends()
        program.malloc(B, 10)
        program.ends()

        assert program.in_use == 0
        assert program.known.gpu.alloc_count == 1
        assert program.counted == {Count.AFTER_END: 2}

    def test_a_process_that_did_nothing_leaves_no_record(self, program: Program) -> None:
        program.ends()

        assert program.ledger.snapshot().processes == ()


class TestForgetting:
    def test_an_ended_process_can_be_published_and_forgotten(self, ledger: Ledger) -> None:
        program = Program(ledger)
        program.malloc(A, 100, WEIGHTS)
        program.malloc_fails(1000)
        program.free(B)
        program.ends()

        forgotten = ledger.forget(program.id)

        assert forgotten.process.gpu.peak == 100
        assert [a.key.stack for a in forgotten.aggregates] == [WEIGHTS]
        assert [f.requested for f in forgotten.failures] == [1000]
        snapshot = ledger.snapshot()
        assert (snapshot.processes, snapshot.aggregates, snapshot.failures) == ((), (), ())

    def test_counters_and_totals_go_on_over_what_was_forgotten(self, ledger: Ledger) -> None:
        program = Program(ledger)
        program.malloc(A, 100)
        program.malloc_fails(1000)
        program.free(B)
        program.ends()
        ledger.forget(program.id)

        assert ledger.snapshot().counters[Count.UNKNOWN_FREES] == 1
        assert ledger.totals().alloc_count == 1
        assert ledger.totals().failures == 1

    def test_a_running_process_is_not_forgotten(self, ledger: Ledger) -> None:
        program = Program(ledger)
        program.malloc(A, 100)

        with pytest.raises(KeyError):
            ledger.forget(program.id)
        with pytest.raises(KeyError):
            ledger.forget(ProcessId(404, 404))
        assert program.in_use == 100


class TestLimits:
    def test_stacks_beyond_the_limit_share_one_row_for_each_call_and_kind(self) -> None:
        program = Program(Ledger(Limits(aggregates=1)))
        program.malloc(A, 100, stack=1)
        program.malloc(B, 10, stack=2)
        program.malloc(C, 1, stack=3)

        overflow = program.stack(OVERFLOW_STACK)
        assert overflow.inuse_bytes == 11
        assert overflow.key.device == UNKNOWN_DEVICE
        assert program.stack(1).inuse_bytes == 100
        assert program.counted == {Count.STACKS_MERGED: 2}

    def test_allocations_that_cannot_be_followed_are_told(self) -> None:
        program = Program(Ledger(Limits(live=1)))
        program.malloc(A, 100)
        program.malloc(B, 10)
        program.free(B)

        assert program.in_use == 100
        assert program.known.gpu.alloc_bytes == 110
        assert program.counted == {Count.UNTRACKED: 1, Count.UNKNOWN_FREES: 1}

    def test_an_address_given_out_anew_is_not_brought_back_even_if_it_is_not_followed(self) -> None:
        program = Program(Ledger(Limits(live=1)))
        program.malloc(A, 100)
        program.free(A, thread=1)
        program.malloc(B, 10)
        program.malloc(A, 1)  # not followed: B fills the table
        program.last_free_fails(thread=1)

        assert program.in_use == 10

    def test_of_too_many_threads_the_first_can_no_longer_take_a_free_back(self) -> None:
        program = Program(Ledger(Limits(threads=2)))
        for thread, address in enumerate((A, B, C)):
            program.malloc(address, 100)
            program.free(address, thread=thread)
        program.last_free_fails(thread=0)
        program.last_free_fails(thread=2)

        assert program.in_use == 100
        assert program.counted[Count.FAILED_FREES_UNMATCHED] == 1

    def test_a_limit_is_not_negative(self) -> None:
        with pytest.raises(ValueError, match="aggregates"):
            Limits(aggregates=-1)


def test_a_snapshot_does_not_change_with_what_comes_after(program: Program) -> None:
    program.malloc(A, 100, WEIGHTS)
    program.free(B)
    snapshot = program.ledger.snapshot()
    before = (snapshot.processes, snapshot.aggregates, dict(snapshot.counters))
    program.free(B)
    program.free(A)
    program.malloc_fails(5)

    assert (snapshot.processes, snapshot.aggregates, dict(snapshot.counters)) == before
    assert snapshot.processes[0].counters[Count.UNKNOWN_FREES] == 1
    assert snapshot.events["FreeEntered"] == 1
    with pytest.raises(TypeError):
        snapshot.counters[Count.UNKNOWN_FREES] = 0


def test_the_example_in_the_documentation_runs() -> None:
    results = doctest.testmod(ledger_module)

    assert (results.failed, results.attempted) == (0, 4)
