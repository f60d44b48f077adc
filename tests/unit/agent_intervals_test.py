"""Every allocation is in exactly one profile that arrives, whatever is dropped on the way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpumemprof.agent.intervals import Carried, Told, boundary, held_only
from gpumemprof.export.model import ContainerProfile, Owner
from gpumemprof.ledger.events import (
    AddressSpace,
    Allocated,
    AllocationFailed,
    FreeEntered,
    MemoryKind,
)
from gpumemprof.ledger.ledger import Ledger
from gpumemprof.ledger.model import LedgerSnapshot
from gpumemprof.process.identity import ProcessId
from gpumemprof.profile.build import build
from gpumemprof.profile.model import Profile
from gpumemprof.stack.frames import Frame

PROCESS = ProcessId(7, 70)
OWNER = Owner("ml", "pod", "main", "trainer", "node-a")
SECOND = 10**9
DEVICE = AddressSpace.DEVICE


def allocated(time_ns: int, size: int, stack: int) -> Allocated:
    return Allocated(
        process=PROCESS, time_ns=time_ns, call="cudaMalloc", kind=MemoryKind.DEVICE,
        space=AddressSpace.DEVICE, device=0, context=1, address=time_ns, size=size, stack=stack,
    )  # fmt: skip


def profile_of(snapshot: LedgerSnapshot) -> Profile:
    return build(
        snapshot, [], lambda number: (Frame(f"f{number}"),),
        started_ns=0, duration_ns=SECOND, completeness={}, about={},
    )  # fmt: skip


intervals = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 3)), max_size=5),
        st.booleans(),
    ),
    max_size=8,
)


@given(intervals)
def test_every_allocation_arrives_once_though_profiles_are_dropped(
    history: list[tuple[list[tuple[int, int]], bool]],
) -> None:
    ledger, told, carried, time_ns = Ledger(), Told(), Carried(), 0
    arrived: dict[str, int] = {}
    for allocations, is_dropped in [*history, ([], False)]:
        for size, stack in allocations:
            time_ns += 1
            ledger.apply(allocated(time_ns, size, stack))
        profile = profile_of(told.rest(ledger.snapshot([PROCESS])))
        profile = carried.add_to(OWNER, profile)
        if is_dropped:
            carried.put(ContainerProfile(OWNER, time_ns, SECOND, profile))
            continue
        for sample in profile.samples:
            name = sample.stack[0].name
            arrived[name] = arrived.get(name, 0) + sample.values.alloc_space

    expected: dict[str, int] = {}
    for size, stack in (each for allocations, _ in history for each in allocations):
        expected[f"f{stack}"] = expected.get(f"f{stack}", 0) + size
    assert {name: size for name, size in arrived.items() if size} == expected


@given(intervals)
def test_every_allocation_is_told_once_though_stacks_are_let_go_of(
    history: list[tuple[list[tuple[int, int]], bool]],
) -> None:
    ledger, told, time_ns, expected, arrived = Ledger(), Told(), 0, 0, 0
    for allocations, is_freed in history:
        for size, stack in allocations:
            time_ns += 1
            expected += size
            ledger.apply(allocated(time_ns, size, stack))
            if is_freed:
                ledger.apply(FreeEntered(PROCESS, 1, time_ns, "cudaFree", DEVICE, time_ns))
        arrived += profile_of(told.rest(ledger.snapshot([PROCESS]))).total.alloc_space
        assert arrived == expected
        told.let_go(ledger.let_go_idle(PROCESS))
        again = profile_of(told.rest(ledger.snapshot([PROCESS])))
        assert again.total.alloc_space == 0


@given(intervals)
def test_what_is_held_is_told_whole_each_time(
    history: list[tuple[list[tuple[int, int]], bool]],
) -> None:
    ledger, told, carried, time_ns, held = Ledger(), Told(), Carried(), 0, 0
    for allocations, is_dropped in history:
        for size, stack in allocations:
            time_ns += 1
            held += size
            ledger.apply(allocated(time_ns, size, stack))
        profile = profile_of(told.rest(ledger.snapshot([PROCESS])))
        profile = carried.add_to(OWNER, profile)
        if is_dropped:
            carried.put(ContainerProfile(OWNER, time_ns, SECOND, profile))
        assert profile.total.inuse_space == profile.total.peak_space == held


def test_a_failure_is_in_one_profile_with_what_was_live_then() -> None:
    ledger, told = Ledger(), Told()
    ledger.apply(allocated(1, 100, stack=1))
    ledger.apply(
        AllocationFailed(
            process=PROCESS,
            time_ns=2,
            call="cudaMalloc",
            kind=MemoryKind.DEVICE,
            device=0,
            requested=999,
            error=2,
            stack=2,
        )
    )

    first = profile_of(told.rest(ledger.snapshot([PROCESS])))
    second = profile_of(told.rest(ledger.snapshot([PROCESS])))

    assert [failure.requested for failure in first.failures] == [999]
    (index, size) = first.failures[0].live[0]
    assert size == 100 and first.samples[index].stack[0].name == "f1"
    assert not second.failures


def test_a_quiet_interval_tells_what_is_held_and_nothing_else() -> None:
    ledger, told = Ledger(), Told()
    ledger.apply(allocated(1, 100, stack=1))

    quiet = held_only(profile_of(told.rest(ledger.snapshot([PROCESS]))))

    assert (quiet.total.alloc_space, quiet.total.inuse_space) == (0, 100)


def test_allocations_that_can_be_told_to_nobody_are_counted() -> None:
    ledger, carried = Ledger(), Carried()
    ledger.apply(allocated(1, 100, stack=1))
    carried.put(ContainerProfile(OWNER, 1, SECOND, profile_of(ledger.snapshot())))

    assert carried.forget(OWNER) == 1
    assert carried.forget(OWNER) == 0


def test_intervals_end_at_whole_multiples_of_the_wall_clock() -> None:
    assert boundary(1_000_000_000 * 47 + 5, 15 * SECOND) == 45 * SECOND
    assert boundary(45 * SECOND, 15 * SECOND) == 45 * SECOND
