"""What numbers name, and that nothing is kept of what can no longer come back."""

from __future__ import annotations

from collections import Counter

from gpumemprof.ledger.names import NameTable, Reference


def test_nothing_is_kept_of_a_number_whose_last_drop_succeeded() -> None:
    table: NameTable[Reference] = NameTable(limit=10, counts=Counter())
    opened = Reference()
    table.issue(5, opened, time_ns=1)
    table.drop(5)
    assert table.dropped == {5: opened}

    table.settle(5, opened)

    assert table.live == table.dropped == {}


def test_nothing_is_kept_after_a_drop_that_failed_and_one_that_succeeded() -> None:
    table: NameTable[Reference] = NameTable(limit=10, counts=Counter())
    opened = Reference()
    table.issue(5, opened, time_ns=1)
    table.drop(5)
    assert table.undo(5, opened, time_ns=2)
    assert table.live == {5: opened}
    table.drop(5)

    table.settle(5, opened)

    assert table.live == table.dropped == {}


def test_while_one_of_two_drops_can_fail_the_number_is_remembered() -> None:
    table: NameTable[Reference] = NameTable(limit=10, counts=Counter())
    opened = Reference()
    table.issue(5, opened, time_ns=1)
    table.share(5, opened, time_ns=2)
    table.drop(5)
    table.drop(5)

    table.settle(5, opened)

    assert table.undo(5, opened, time_ns=3)
    assert table.live == {5: opened}
    assert table.dropped == {}
