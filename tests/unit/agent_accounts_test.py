"""Gauges of containers, against a ledger that is fed with events."""

from __future__ import annotations

from gpumemprof.agent.accounts import Accounts
from gpumemprof.export.model import FailureKey, MemoryKey, MemoryUse, Owner
from gpumemprof.ledger.events import (
    AddressSpace,
    Allocated,
    AllocationFailed,
    FreeEntered,
    FreeFailed,
    LedgerEvent,
    MemoryKind,
    ProcessEnded,
)
from gpumemprof.ledger.ledger import Ledger
from gpumemprof.process.identity import ProcessId

MIB = 1 << 20
FIRST, SECOND = ProcessId(1, 10), ProcessId(2, 20)
OWNER = Owner("ml", "pod", "main", "trainer", "node-a", "uid")
GPU = {0: ("3", "GPU-aaa"), 1: ("4", "GPU-bbb")}


class Node:
    """A ledger with accounts behind it."""

    def __init__(self) -> None:
        self.gpus = dict(GPU)
        self.accounts = Accounts(lambda _, device: self.gpus.get(device, ("", "")))
        self.ledger = Ledger(on_change=self.accounts.changed)
        self.time = 0

    def tell(self, event: type[LedgerEvent], process: ProcessId, **more: object) -> None:
        self.time += 1
        self.ledger.apply(event(process=process, time_ns=self.time, **more))  # type: ignore[arg-type]

    def allocate(
        self,
        address: int,
        size: int,
        process: ProcessId = FIRST,
        device: int = 0,
        kind: MemoryKind = MemoryKind.DEVICE,
    ) -> None:
        space = AddressSpace.DEVICE if kind.on_gpu else AddressSpace.HOST
        self.tell(
            Allocated, process, call="cudaMalloc", kind=kind, space=space, device=device,
            context=1, address=address, size=size, stack=1,
        )  # fmt: skip

    def free(self, address: int, process: ProcessId = FIRST) -> None:
        self.tell(
            FreeEntered, process, thread=1, call="cudaFree", space=AddressSpace.DEVICE,
            address=address,
        )  # fmt: skip

    def use(self, kind: str = "device", device: int = 0) -> MemoryUse:
        gpu = self.gpus.get(device, ("", "")) if kind != "pinned_host" else ("", "")
        return self.accounts.view(self.ledger.snapshot)[0][MemoryKey(OWNER, kind, *gpu)]


def test_a_container_holds_what_its_processes_hold_and_its_peak_is_theirs_together() -> None:
    node = Node()
    node.accounts.assign(FIRST, OWNER)
    node.accounts.assign(SECOND, OWNER)

    node.allocate(0x1000, 5 * MIB)
    node.free(0x1000)
    node.allocate(0x2000, 2 * MIB)
    node.allocate(0x2000, 2 * MIB, SECOND)

    # 5 MiB at one time, 4 MiB at another: not the 7 MiB that the peaks of both add up to.
    assert node.use() == MemoryUse(4 * MIB, 5 * MIB, 9 * MIB, 5 * MIB, 3, 1)


def test_what_was_held_before_the_owner_was_known_is_the_owners() -> None:
    node = Node()
    node.allocate(0x1000, 5 * MIB)
    node.free(0x1000)
    node.allocate(0x2000, MIB)
    node.accounts.assign(FIRST, OWNER)

    assert node.use() == MemoryUse(MIB, 5 * MIB, 6 * MIB, 5 * MIB, 2, 1)


def test_gpus_and_kinds_are_told_apart_and_host_memory_has_no_gpu() -> None:
    node = Node()
    node.accounts.assign(FIRST, OWNER)
    node.allocate(0x1000, MIB, device=0)
    node.allocate(0x2000, 2 * MIB, device=1)
    node.allocate(0x3000, 4 * MIB, kind=MemoryKind.PINNED_HOST)

    assert node.use(device=0).in_use == MIB
    assert node.use(device=1).in_use == 2 * MIB
    assert node.use("pinned_host").in_use == 4 * MIB


def test_memory_whose_gpu_becomes_known_later_is_moved_there() -> None:
    """The driver tells of a process seconds after its first allocation; frees come after that."""
    node = Node()
    node.gpus.clear()
    node.accounts.assign(FIRST, OWNER)
    node.allocate(0x1000, 5 * MIB)
    node.allocate(0x2000, 2 * MIB)
    assert node.use() == MemoryUse(7 * MIB, 7 * MIB, 7 * MIB, 0, 2, 0)

    node.gpus.update(GPU)
    node.free(0x1000)

    memory, _ = node.accounts.view(node.ledger.snapshot)
    assert memory == {
        MemoryKey(OWNER, "device", *GPU[0]): MemoryUse(2 * MIB, 7 * MIB, 7 * MIB, 5 * MIB, 2, 1)
    }


def test_what_another_process_holds_on_an_unknown_gpu_stays_there() -> None:
    node = Node()
    node.gpus.clear()
    node.accounts.assign(FIRST, OWNER)
    node.accounts.assign(SECOND, OWNER)
    node.allocate(0x1000, 5 * MIB, device=0)
    node.allocate(0x1000, 3 * MIB, SECOND, device=1)

    node.gpus[0] = GPU[0]

    memory, _ = node.accounts.view(node.ledger.snapshot)
    assert memory[MemoryKey(OWNER, "device", *GPU[0])].in_use == 5 * MIB
    assert memory[MemoryKey(OWNER, "device", "", "")].in_use == 3 * MIB


def test_a_process_that_ended_on_a_gpu_that_was_not_known_leaves_nothing_in_use() -> None:
    node = Node()
    node.gpus.clear()
    node.accounts.assign(FIRST, OWNER)
    node.allocate(0x1000, 5 * MIB)
    node.gpus.update(GPU)
    node.tell(ProcessEnded, FIRST, reason="exit")
    node.accounts.forget(FIRST, node.ledger.snapshot([FIRST]))

    assert node.accounts.view(node.ledger.snapshot)[0] == {
        MemoryKey(OWNER, "device", *GPU[0]): MemoryUse(0, 5 * MIB, 5 * MIB, 5 * MIB, 1, 1)
    }


def test_counters_go_on_after_a_process_ended_and_was_forgotten() -> None:
    node = Node()
    node.accounts.assign(FIRST, OWNER)
    node.allocate(0x1000, 5 * MIB)
    node.tell(ProcessEnded, FIRST, reason="exit")
    ended = node.use()
    assert ended == MemoryUse(0, 5 * MIB, 5 * MIB, 5 * MIB, 1, 1)

    node.accounts.forget(FIRST, node.ledger.snapshot([FIRST]))
    node.ledger.forget(FIRST)
    assert node.use() == ended

    node.accounts.assign(SECOND, OWNER)
    node.allocate(0x1000, MIB, SECOND)
    assert node.use() == MemoryUse(MIB, 5 * MIB, 6 * MIB, 5 * MIB, 2, 1)


def test_a_counter_does_not_decrease_when_a_free_fails() -> None:
    """Prometheus takes a decrease for a restart, and would count everything again."""
    node = Node()
    node.accounts.assign(FIRST, OWNER)
    node.allocate(0x1000, MIB)
    node.free(0x1000)
    assert node.use().freed_bytes == MIB

    node.tell(FreeFailed, FIRST, thread=1, call="cudaFree", error=700)

    assert node.use() == MemoryUse(MIB, MIB, MIB, MIB, 1, 1)


def test_failures_are_counted_by_error() -> None:
    node = Node()
    node.accounts.assign(FIRST, OWNER)
    for error in (2, 2, 46):
        node.tell(
            AllocationFailed, FIRST, call="cudaMalloc", kind=MemoryKind.DEVICE, device=0,
            requested=MIB, error=error, stack=1,
        )  # fmt: skip

    _, failures = node.accounts.view(node.ledger.snapshot)

    where = MemoryKey(OWNER, "device", *GPU[0])
    assert failures == {FailureKey(where, 2): 2, FailureKey(where, 46): 1}


def test_a_program_that_makes_up_errors_for_months_takes_bounded_room() -> None:
    node = Node()
    for run in range(100):
        process = ProcessId(run, run)
        node.accounts.assign(process, OWNER)
        for error in range(10):
            node.tell(
                AllocationFailed, process, call="cudaMalloc", kind=MemoryKind.DEVICE, device=0,
                requested=MIB, error=10 * run + error, stack=1,
            )  # fmt: skip
        node.tell(ProcessEnded, process, reason="exit")
        node.accounts.forget(process, node.ledger.snapshot([process]))

    _, failures = node.accounts.view(node.ledger.snapshot)

    assert sum(failures.values()) == 1000
    assert len(failures) <= 260


def test_nothing_is_told_of_a_process_without_owner_or_of_a_closed_container() -> None:
    node = Node()
    node.allocate(0x1000, MIB)
    assert node.accounts.view(node.ledger.snapshot) == ({}, {})

    node.accounts.assign(FIRST, OWNER)
    node.accounts.forget(FIRST, None)
    node.accounts.close(OWNER)
    node.free(0x1000)

    assert node.accounts.view(node.ledger.snapshot) == ({}, {})
    assert not node.accounts.owners
