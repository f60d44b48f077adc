"""What numbers name, and that nothing is kept of what can no longer come back."""

from __future__ import annotations

import gc
from collections import Counter

from ledger_program import Program

from gpumemprof.ledger.in_flight import Drop, FreesInFlight
from gpumemprof.ledger.ledger import Ledger
from gpumemprof.ledger.names import Allocation, NameTable, Reference


def test_nothing_is_kept_of_a_number_whose_last_drop_succeeded() -> None:
    table: NameTable[Reference] = NameTable(limit=10, counts=Counter())
    opened = Reference()
    table.issue(5, opened, time_ns=1)
    table.drop(5, 1)
    assert table.dropped == {5: opened}

    table.settle(5, opened)

    assert table.live == table.dropped == {}


def test_nothing_is_kept_after_a_drop_that_failed_and_one_that_succeeded() -> None:
    table: NameTable[Reference] = NameTable(limit=10, counts=Counter())
    opened = Reference()
    table.issue(5, opened, time_ns=1)
    table.drop(5, 1)
    assert table.undo(5, opened, time_ns=2)
    assert table.live == {5: opened}
    table.drop(5, 1)

    table.settle(5, opened)

    assert table.live == table.dropped == {}


def test_while_one_of_two_drops_can_fail_the_number_is_remembered() -> None:
    table: NameTable[Reference] = NameTable(limit=10, counts=Counter())
    opened = Reference()
    table.issue(5, opened, time_ns=1)
    table.share(5, opened, time_ns=2)
    table.drop(5, 1)
    table.drop(5, 1)

    table.settle(5, opened)

    assert table.undo(5, opened, time_ns=3)
    assert table.live == {5: opened}
    assert table.dropped == {}


def test_a_thread_s_next_free_lets_go_of_its_last() -> None:
    table: NameTable[Reference] = NameTable(limit=10, counts=Counter())
    frees = FreesInFlight(limit=10)
    for number in (5, 6):
        opened = Reference()
        table.issue(number, opened, time_ns=1)
        frees.settle(thread=1)
        table.drop(number, 1)
        frees.enter(1, Drop(table, number, opened))

    assert list(table.dropped) == [6]


def test_an_ended_process_keeps_no_entry_of_what_it_held() -> None:
    def allocations() -> int:
        gc.collect()
        return sum(isinstance(thing, Allocation) for thing in gc.get_objects())

    before = allocations()
    program = Program(Ledger())
    for address in range(1, 101):
        program.malloc(address, 10)
    assert allocations() == before + 100
    program.free(1)  # in flight

    program.ends()

    assert allocations() == before
