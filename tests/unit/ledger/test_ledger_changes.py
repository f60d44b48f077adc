"""Whoever asks is told of each change of what is held."""

from __future__ import annotations

from ledger_program import Program

from gpumemprof.ledger.events import AddressSpace, MemoryKind
from gpumemprof.ledger.ledger import Ledger
from gpumemprof.process.identity import ProcessId

DEVICE, PINNED = MemoryKind.DEVICE, MemoryKind.PINNED_HOST
Change = tuple[MemoryKind, int, int, int]


class Told:
    """A ledger and what it told: kind, device, bytes, allocations."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.ledger = Ledger(on_change=self._change)
        self.program = Program(self.ledger)

    def _change(
        self, process: ProcessId, kind: MemoryKind, device: int, size: int, count: int, time_ns: int
    ) -> None:
        assert process == self.program.id
        assert time_ns == Program.clock
        self.changes.append((kind, device, size, count))

    def since(self) -> list[Change]:
        changes, self.changes = self.changes, []
        return changes


def test_an_allocation_and_its_free_are_told_with_their_device() -> None:
    told = Told()
    told.program.malloc(0x1000, 64, device=1)
    told.program.free(0x1000)
    assert told.changes == [(DEVICE, 1, 64, 1), (DEVICE, 1, -64, -1)]


def test_a_free_that_fails_is_told_and_taken_back() -> None:
    told = Told()
    told.program.malloc(0x1000, 64)
    told.since()
    told.program.free(0x1000)
    told.program.last_free_fails()
    assert told.changes == [(DEVICE, 0, -64, -1), (DEVICE, 0, 64, 1)]


def test_a_free_of_nothing_known_and_a_failed_allocation_are_no_change() -> None:
    told = Told()
    told.program.free(0x1000)
    told.program.malloc_fails(1 << 40)
    told.program.memory_info(1, 2)
    assert told.changes == []


def test_an_address_that_is_given_out_anew_ends_what_it_named() -> None:
    told = Told()
    told.program.malloc(0x1000, 64)
    told.program.malloc(0x1000, 32)
    assert told.changes[1:] == [(DEVICE, 0, -64, -1), (DEVICE, 0, 32, 1)]


def test_physical_memory_is_told_until_it_is_released_and_unmapped() -> None:
    told = Told()
    told.program.create(7, 64)
    told.program.map(7, 0x10000, 64)
    told.program.release(7)
    assert told.since() == [(DEVICE, 0, 64, 1)]
    told.program.unmap(0x10000, 64)
    assert told.changes == [(DEVICE, 0, -64, -1)]


def test_the_end_of_a_context_takes_what_was_under_it() -> None:
    told = Told()
    told.program.malloc(0x1000, 64, context=0xA)
    told.program.malloc(0x2000, 32, context=0xB)
    told.since()
    told.program.reset(0xA)
    assert told.changes == [(DEVICE, 0, -64, -1)]


def test_the_end_of_a_process_is_told_once_for_each_kind_and_device() -> None:
    told = Told()
    for stack in (1, 2, 3):
        told.program.malloc(0x1000 * stack, 64, stack=stack, device=stack // 3)
    told.program.malloc_host(0x1000, 16)
    told.program.malloc(0x9000, 8, space=AddressSpace.ARRAY, kind=MemoryKind.ARRAY)
    told.program.free(0x9000, space=AddressSpace.ARRAY)
    told.since()
    told.program.ends()
    told.program.free(0x1000)
    assert told.changes == [(DEVICE, 0, -128, -2), (DEVICE, 1, -64, -1), (PINNED, 0, -16, -1)]
