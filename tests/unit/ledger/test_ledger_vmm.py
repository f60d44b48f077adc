"""What a user is told about memory of cuMemCreate: PyTorch's expandable segments, vLLM, NCCL."""

from __future__ import annotations

import pytest
from ledger_program import Program

from gpumemprof.ledger.ledger import Ledger
from gpumemprof.ledger.model import Count, Limits

MiB = 1 << 20
PAGE = 20 * MiB
BASE = 0x7F00_0000_0000


@pytest.fixture
def program() -> Program:
    return Program(Ledger())


def test_an_expandable_segment_is_charged_where_it_was_created(program: Program) -> None:
    # GIVEN a segment that grew by three pages, each created and mapped
    for page in range(3):
        program.create(handle=page + 1, size=PAGE, stack=7)
        program.map(page + 1, BASE + page * PAGE, PAGE)
    assert program.in_use == 3 * PAGE

    # WHEN its last page is unmapped and released
    program.unmap(BASE + 2 * PAGE, PAGE)
    program.release(3)

    # THEN two are left
    assert program.in_use == 2 * PAGE
    assert program.stack(7)[1:] == (3, 3 * PAGE, 2, 2 * PAGE, 3 * PAGE)
    assert program.counted == {}


def test_vllm_sleep_that_unmaps_without_releasing_frees_nothing(program: Program) -> None:
    program.create(handle=1, size=PAGE)
    program.map(1, BASE, PAGE)
    program.unmap(BASE, PAGE)
    assert program.in_use == PAGE

    program.release(1)
    assert program.in_use == 0


def test_memory_released_while_mapped_lives_until_it_is_unmapped(program: Program) -> None:
    program.create(handle=1, size=PAGE)
    program.map(1, BASE, PAGE)
    program.release(1)
    assert program.in_use == PAGE

    program.unmap(BASE, PAGE)
    assert program.in_use == 0


def test_memory_mapped_twice_is_counted_once_and_lives_until_both_are_unmapped(
    program: Program,
) -> None:
    program.create(handle=1, size=PAGE)
    program.map(1, BASE, PAGE)
    program.map(1, BASE + PAGE, PAGE)
    program.release(1)
    assert program.in_use == PAGE

    program.unmap(BASE, PAGE)
    assert program.in_use == PAGE

    program.unmap(BASE + PAGE, PAGE)
    assert program.in_use == 0


def test_a_retained_handle_is_to_be_released_once_more(program: Program) -> None:
    program.create(handle=1, size=PAGE)
    program.map(1, BASE, PAGE)
    program.retain(1, BASE + 5)
    program.unmap(BASE, PAGE)
    program.release(1)
    assert program.in_use == PAGE

    program.release(1)
    assert program.in_use == 0
    assert program.counted == {}


def test_a_handle_is_retained_after_it_was_released_through_its_mapping(program: Program) -> None:
    program.create(handle=1, size=PAGE)
    program.map(1, BASE, PAGE)
    program.release(1)
    program.retain(1, BASE)
    program.unmap(BASE, PAGE)
    assert program.in_use == PAGE

    program.release(1)
    assert program.in_use == 0
    assert program.counted == {}


def test_the_address_tells_whose_reference_a_retained_handle_is(program: Program) -> None:
    # GIVEN memory that lives only by its mapping, and whose handle names other memory by now
    program.create(handle=1, size=10)
    program.map(1, BASE, PAGE)
    program.release(1)
    program.create(handle=1, size=5)

    # WHEN the driver gives that handle for the mapping
    program.retain(1, BASE)
    program.unmap(BASE, PAGE)

    # THEN the other memory's release was missed, and the retained one lives
    assert program.in_use == 10
    assert program.counted == {Count.REPLACED: 1}


def test_one_unmap_may_cover_several_mappings(program: Program) -> None:
    for page in range(3):
        program.create(handle=page + 1, size=PAGE)
        program.map(page + 1, BASE + page * PAGE, PAGE)
        program.release(page + 1)

    program.unmap(BASE, 2 * PAGE)

    assert program.in_use == PAGE
    assert program.counted == {}


def test_a_part_of_a_mapping_is_not_unmapped_and_told_as_unknown(program: Program) -> None:
    program.create(handle=1, size=PAGE)
    program.map(1, BASE, PAGE)
    program.release(1)
    program.unmap(BASE, PAGE // 2)
    program.unmap(BASE + PAGE // 2, PAGE)

    assert program.in_use == PAGE
    assert program.counted == {Count.UNKNOWN_UNMAPS: 2}


def test_handles_are_reused_after_their_memory_is_gone(program: Program) -> None:
    for _ in range(3):
        program.create(handle=1, size=PAGE)
        program.map(1, BASE, PAGE)
        program.unmap(BASE, PAGE)
        program.release(1)

    assert program.in_use == 0
    assert program.peak == PAGE
    assert program.known.gpu.alloc_count == 3
    assert program.counted == {}


def test_a_handle_given_out_again_ends_the_references_whose_release_was_missed(
    program: Program,
) -> None:
    program.create(handle=1, size=10)
    program.retain(1, BASE)
    program.create(handle=1, size=7)

    assert program.in_use == 7
    assert program.peak == 10
    assert program.counted == {Count.REPLACED: 1}


def test_a_range_mapped_again_ends_the_mappings_whose_unmapping_was_missed(
    program: Program,
) -> None:
    program.create(handle=1, size=10)
    program.map(1, BASE, PAGE)
    program.release(1)
    program.create(handle=2, size=7)
    program.map(2, BASE + PAGE - 1, PAGE)

    assert program.in_use == 7
    assert program.counted == {Count.REPLACED: 1}


class TestFailedCalls:
    def test_a_release_that_fails_is_put_back(self, program: Program) -> None:
        program.create(handle=1, size=PAGE)
        program.release(1)
        program.last_free_fails()
        assert program.in_use == PAGE

        program.release(1)
        assert program.in_use == 0
        assert program.counted == {Count.FAILED_FREES: 1}

    def test_of_two_releases_in_flight_each_is_put_back_if_it_fails(self, program: Program) -> None:
        program.create(handle=1, size=PAGE)
        program.retain(1, BASE)
        program.release(1, thread=1)
        program.release(1, thread=2)
        assert program.in_use == 0
        program.free(0, thread=1)  # the first release has succeeded
        program.last_free_fails(thread=2)
        assert program.in_use == PAGE

        program.release(1)
        assert program.in_use == 0

    def test_a_handle_retained_while_its_release_fails_keeps_both_references(
        self, program: Program
    ) -> None:
        program.create(handle=1, size=PAGE)
        program.map(1, BASE, PAGE)
        program.release(1, thread=1)
        program.retain(1, BASE)
        program.last_free_fails(thread=1)
        program.unmap(BASE, PAGE)
        program.release(1)
        assert program.in_use == PAGE

        program.release(1)
        assert program.in_use == 0

    def test_a_release_with_an_error_whose_handle_was_given_out_anew_is_not_put_back(
        self, program: Program
    ) -> None:
        program.create(handle=1, size=10)
        program.release(1, thread=1)
        program.create(handle=1, size=7)
        program.last_free_fails(thread=1)

        assert program.in_use == 7
        assert program.counted[Count.FAILED_FREES_NOT_RESTORED] == 1

    def test_an_unmap_that_fails_puts_all_its_mappings_back(self, program: Program) -> None:
        for page in range(2):
            program.create(handle=page + 1, size=PAGE)
            program.map(page + 1, BASE + page * PAGE, PAGE)
            program.release(page + 1)
        program.unmap(BASE, 2 * PAGE)
        assert program.in_use == 0
        program.last_free_fails()
        assert program.in_use == 2 * PAGE

        program.unmap(BASE, PAGE)
        assert program.in_use == PAGE

    def test_a_mapping_made_anew_meanwhile_stays_in_the_place_of_the_old(
        self, program: Program
    ) -> None:
        # GIVEN two pages whose unmapping is in flight
        for page in range(2):
            program.create(handle=page + 1, size=PAGE)
            program.map(page + 1, BASE + page * PAGE, PAGE)
            program.release(page + 1)
        program.unmap(BASE, 2 * PAGE, thread=1)

        # WHEN one of them is mapped anew, and then the unmapping is told to have failed
        program.create(handle=3, size=5)
        program.map(3, BASE, PAGE)
        program.last_free_fails(thread=1)

        # THEN the other is back
        assert program.in_use == PAGE + 5
        assert program.counted[Count.FAILED_FREES_NOT_RESTORED] == 1

    def test_unmappings_of_several_threads_are_told_apart(self, program: Program) -> None:
        for page in range(3):
            program.create(handle=page + 1, size=page + 1)
            program.map(page + 1, BASE + page * PAGE, PAGE)
            program.release(page + 1)
        # GIVEN thread 2 unmaps the page in the middle, and thread 1 the other two at once
        program.unmap(BASE + PAGE, PAGE, thread=2)
        program.unmap(BASE, 3 * PAGE, thread=1)
        assert program.in_use == 0

        # WHEN both fail
        program.last_free_fails(thread=1)
        assert program.in_use == 1 + 3
        program.last_free_fails(thread=2)

        # THEN all is back
        assert program.in_use == 1 + 2 + 3


class TestUnknownMemory:
    def test_handles_from_before_attach_are_told_and_never_negative(self, program: Program) -> None:
        program.map(9, BASE, PAGE)
        program.retain(8, BASE + PAGE)
        program.unmap(BASE + PAGE, PAGE)
        program.release(9)

        assert program.in_use == 0
        assert program.counted == {
            Count.UNKNOWN_MAPS: 1,
            Count.UNKNOWN_RETAINS: 1,
            Count.UNKNOWN_UNMAPS: 1,
            Count.UNKNOWN_RELEASES: 1,
        }

    def test_the_unmapping_of_a_mapping_seen_is_known_whatever_its_handle(
        self, program: Program
    ) -> None:
        program.map(9, BASE, PAGE)
        program.unmap(BASE, PAGE)

        assert program.counted == {Count.UNKNOWN_MAPS: 1}

    def test_an_imported_handle_is_never_counted_and_all_its_calls_are_expected(
        self, program: Program
    ) -> None:
        program.import_handle(5)
        program.map(5, BASE, PAGE)
        program.release(5)
        program.unmap(BASE, PAGE)

        assert program.peak == 0
        assert program.counted == {}

    def test_own_memory_imported_again_is_one_more_reference(self, program: Program) -> None:
        program.create(handle=5, size=PAGE)
        program.import_handle(5)
        program.release(5)
        assert program.in_use == PAGE

        program.release(5)
        assert program.in_use == 0

    def test_a_release_more_than_was_obtained_is_unknown(self, program: Program) -> None:
        program.create(handle=5, size=PAGE)
        program.release(5)
        program.release(5)

        assert program.in_use == 0
        assert program.counted == {Count.UNKNOWN_RELEASES: 1}


def test_mappings_that_cannot_be_followed_are_told() -> None:
    program = Program(Ledger(Limits(live=1)))
    program.create(handle=1, size=PAGE)
    program.map(1, BASE, PAGE)
    program.map(1, BASE + PAGE, PAGE)

    assert program.in_use == PAGE
    assert program.counted == {Count.UNTRACKED: 1}
