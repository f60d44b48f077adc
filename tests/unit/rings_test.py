"""Rings of the kernel as they are read: in place, in order, each record once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_side import BUSY, DISCARD, HEADER, PAGE, Ring


@pytest.fixture
def ring() -> Iterator[Ring]:
    made = Ring()
    yield made
    made.close()


def test_records_come_in_order_and_once(ring: Ring) -> None:
    for data in (b"one", b"two", b"three"):
        ring.send(data)
    assert ring.drain() == [b"one", b"two", b"three"]
    assert ring.drain() == []


def test_an_empty_ring_has_no_records(ring: Ring) -> None:
    assert ring.drain() == []
    assert ring.reader.waiting == 0


def test_nothing_behind_a_record_that_is_still_being_written_is_read(ring: Ring) -> None:
    ring.send(b"ready")
    position = ring.send(b"slow", BUSY)
    ring.send(b"behind")
    assert ring.drain() == [b"ready"]
    assert ring.consumed == position
    ring.commit(position)
    assert ring.drain() == [b"slow", b"behind"]


def test_a_discarded_record_is_passed_over(ring: Ring) -> None:
    ring.send(b"one")
    position = ring.send(b"not needed", BUSY)
    ring.send(b"two")
    ring.commit(position, DISCARD)
    assert ring.drain() == [b"one", b"two"]
    assert ring.reader.waiting == 0


def test_a_record_across_the_end_of_the_ring_is_whole() -> None:
    ring = Ring(start=7 * PAGE - 16)
    data = bytes(range(64))
    ring.send(data)
    assert ring.drain() == [data]
    ring.close()


def test_positions_beyond_32_bits_are_positions() -> None:
    ring = Ring(start=(1 << 33) + 8)
    ring.send(b"late")
    assert ring.drain() == [b"late"]
    assert ring.consumed == (1 << 33) + 8 + 16
    ring.close()


def test_space_is_given_back_record_by_record(ring: Ring) -> None:
    ring.send(b"a" * 8)
    ring.send(b"b" * 8)
    room: list[int] = []
    ring.reader.drain(lambda _: room.append(ring.room))
    assert room == [PAGE - 32, PAGE - 16]
    assert ring.room == PAGE


def test_what_arrives_while_records_are_handled_is_read_too(ring: Ring) -> None:
    ring.send(b"first")
    found: list[bytes] = []

    def handle(view: memoryview) -> None:
        found.append(bytes(view))
        if len(found) < 3:
            ring.send(b"another")

    assert ring.reader.drain(handle) == 3
    assert found == [b"first", b"another", b"another"]


def test_a_limit_leaves_the_rest(ring: Ring) -> None:
    for data in (b"1", b"2", b"3"):
        ring.send(data)
    assert ring.drain(limit=2) == [b"1", b"2"]
    assert ring.drain(limit=2) == [b"3"]


def test_the_view_of_a_record_ends_with_the_call(ring: Ring) -> None:
    ring.send(b"gone")
    kept: list[memoryview] = []
    ring.reader.drain(kept.append)
    with pytest.raises(ValueError, match="released"):
        bytes(kept[0])


@given(st.lists(st.lists(st.binary(max_size=900), max_size=6), max_size=12))
def test_any_sequence_of_records_comes_out_as_it_went_in(bursts: list[list[bytes]]) -> None:
    ring = Ring(start=PAGE - 8)
    for burst in bursts:
        sent = []
        for data in burst:
            if HEADER + len(data) + 7 <= ring.room:
                ring.send(data)
                sent.append(data)
        assert ring.drain() == sent
    ring.close()
