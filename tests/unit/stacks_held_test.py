"""How much the stacks of processes that come and go hold: no more after months than after hours."""

from __future__ import annotations

import gc
import os
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import elf_builder
import pytest
from elf_builder import TEXT_OFFSET, TEXT_VADDR, Symbol

from gpumemprof.probe.events import StackEvent
from gpumemprof.process.identity import ProcessId
from gpumemprof.process.maps import Mapping, Maps
from gpumemprof.process.trust import TENANTS, Trust
from gpumemprof.stack.frames import Frame
from gpumemprof.stack.holding import Budget, Holding
from gpumemprof.stack.resolver import StackResolver

SP = 0x7FFF00000000
START = 0x10000
FUNCTIONS = [Symbol(f"function_{n}", TEXT_VADDR + 16 * n, 16) for n in range(200)]
# The tests look at this process's files through its own pid, under any start time.
PATIENT = replace(TENANTS, patience=None)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program"
    path.write_bytes(elf_builder.build(FUNCTIONS))
    return path


def maps_of(path: Path, start: int = START) -> Maps:
    status = path.stat()
    mapping = Mapping(
        start, start + 0x1000, TEXT_OFFSET, status.st_dev, status.st_ino, str(path), "r-xp", False
    )
    return Maps((mapping,))


def process(number: int) -> ProcessId:
    return ProcessId(os.getpid(), number)


def stack_at(place: int, caller: int) -> StackEvent:
    """Two frames: ``place`` called by ``caller``, of which nobody knows who called it."""
    registers = (place, SP, 0, 0, 0, 0, 0, 0)
    window = caller.to_bytes(8, "little") + bytes(8)
    return StackEvent(1, 1, os.getpid(), 1, 0, 1, registers, 0, 0, b"", window, False)


def stacks_of(count: int) -> Iterator[StackEvent]:
    """Different stacks of one program."""
    for number in range(count):
        callee, caller = divmod(number, 100)
        yield stack_at(START + 16 * callee, START + 0x640 + 16 * caller + 8)


def names(resolver: StackResolver, number: int) -> list[str]:
    return [frame.name for frame in resolver.resolve(number)]


def run(resolver: StackResolver, identity: ProcessId, maps: Maps, count: int = 5) -> list[int]:
    resolver.see(identity, maps)
    return [resolver.intern(event, identity) for event in stacks_of(count)]


def entries(thing: object, seen: set[int]) -> int:
    """Entries of every container that can be reached from an object of ours."""
    if id(thing) in seen or isinstance(thing, (str, bytes, int, type)):
        return 0
    seen.add(id(thing))
    total = len(thing) if hasattr(thing, "__len__") else 0
    inside = [getattr(thing, name, None) for name in getattr(type(thing), "__slots__", ())]
    inside += list(getattr(thing, "__dict__", {}).values())
    if isinstance(thing, dict):
        inside += [*thing.keys(), *thing.values()]
    elif isinstance(thing, (list, tuple, set, frozenset)):
        inside += thing
    return total + sum(
        entries(one, seen)
        for one in inside
        if type(one).__module__.startswith(("gpumemprof", "builtins", "collections"))
        and type(one).__name__ not in {"function", "method", "module"}
    )


# Dropping


def test_the_stacks_of_an_ended_process_stay_until_they_are_dropped(program: Path) -> None:
    resolver = StackResolver()
    numbers = run(resolver, process(1), maps_of(program))
    resolver.forget(process(1))
    assert names(resolver, numbers[0])[:2] == ["function_0", "function_100"]
    resolver.drop(process(1))
    for number in numbers:
        with pytest.raises(KeyError):
            resolver.resolve(number)
    assert resolver.held == 1  # the stack of nothing


def test_dropping_one_process_leaves_the_stacks_of_others(program: Path) -> None:
    resolver = StackResolver()
    first = run(resolver, process(1), maps_of(program))
    second = run(resolver, process(2), maps_of(program))
    assert set(first).isdisjoint(second)
    resolver.drop(process(1))
    assert names(resolver, second[1])[:2] == ["function_0", "function_101"]


def test_dropping_what_is_not_known_does_nothing() -> None:
    StackResolver().drop(process(9))


def test_a_process_that_was_dropped_while_it_runs_begins_anew(program: Path) -> None:
    resolver = StackResolver()
    first = run(resolver, process(1), maps_of(program))
    resolver.drop(process(1))
    second = run(resolver, process(1), maps_of(program))
    assert set(first).isdisjoint(second)
    assert names(resolver, second[0])[:2] == ["function_0", "function_100"]


def test_of_a_process_that_goes_on_unused_stacks_can_be_let_go(program: Path) -> None:
    resolver = StackResolver()
    numbers = run(resolver, process(1), maps_of(program), 50)
    resolver.resolve(numbers[3])
    resolver.keep_only(process(1), {numbers[3], numbers[4]})
    assert resolver.held == 1 + 2
    assert names(resolver, numbers[4])[1] == "function_104"
    again = run(resolver, process(1), maps_of(program), 50)
    assert again[3:5] == numbers[3:5]
    assert set(again[:3]).isdisjoint(numbers)
    assert names(resolver, again[0])[1] == "function_100"


# Months


def test_2000_short_processes_leave_nothing_behind(program: Path) -> None:
    resolver = StackResolver(trust=PATIENT)
    sizes, memory = [], []
    maps = maps_of(program)
    tracemalloc.start()
    for number in range(1, 2001):
        numbers = run(resolver, process(number), maps)
        resolver.resolve_all(numbers)
        resolver.forget(process(number))
        resolver.drop(process(number))
        if number % 500 == 0:
            gc.collect()
            sizes.append(entries(resolver, set()))
            memory.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert resolver.held == 1
    assert max(sizes) == min(sizes)
    assert memory[-1] < memory[0] + (16 << 10), "less than 11 bytes a process"
    resolver.close()


def test_ever_new_programs_leave_only_so_many_files(tmp_path: Path) -> None:
    resolver = StackResolver(trust=PATIENT)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(1, 601):
        path = tmp_path / "new"
        path.write_bytes(elf_builder.build(FUNCTIONS[:2], build_id=b"%8d" % number))
        path.rename(tmp_path / "program")
        numbers = run(resolver, process(number), maps_of(tmp_path / "program"), 2)
        assert names(resolver, numbers[0])[0] == "function_0"
        resolver.drop(process(number))
    assert len(list(Path("/proc/self/fd").iterdir())) - before <= 256 + 8
    resolver.close()


# Bounds


@pytest.mark.parametrize(
    "trust",
    [replace(PATIENT, stacks_per_process=10), replace(PATIENT, stacks=11)],
    ids=["of one process", "of all"],
)
def test_stacks_beyond_the_limit_are_told_as_one(program: Path, trust: Trust) -> None:
    resolver = StackResolver(trust=trust)
    numbers = run(resolver, process(1), maps_of(program), 30)
    assert len(set(numbers)) == 11
    assert names(resolver, numbers[-1]) == ["[too many different stacks]"]
    assert resolver.counters()["stacks_full"] == 20
    assert names(resolver, numbers[9])[0] == "function_0", "what is held keeps its names"
    resolver.drop(process(1))
    assert len(set(run(resolver, process(2), maps_of(program), 5))) == 5


def test_a_process_with_huge_names_is_bounded_in_bytes(tmp_path: Path) -> None:
    path = tmp_path / "program"
    path.write_bytes(elf_builder.build([s._replace(name=s.name + "x" * 900) for s in FUNCTIONS]))
    resolver = StackResolver(trust=replace(PATIENT, bytes_per_process=20_000))
    for event in stacks_of(200):
        resolver.see(process(1), maps_of(path))
        resolver.resolve(resolver.intern(event, process(1)))
    assert resolver.counters()["stacks_full"] > 0
    assert resolver.held < 50


def test_equal_frames_of_a_process_are_one_object() -> None:
    holding = Holding(PATIENT)
    first, second = holding.shared([Frame("f")]), holding.shared([Frame("f"), Frame("g")])
    assert first[0] is second[0]


# Work


def test_a_budget_is_spent_and_comes_back() -> None:
    clock = SimpleNamespace(now=0.0)
    budget = Budget(0.1, 5.0, clock=lambda: clock.now)
    assert not budget.exhausted
    with budget:
        clock.now += 6
    assert budget.exhausted
    clock.now += 10
    assert not budget.exhausted
    clock.now += 1e9
    assert not budget.exhausted
    with budget:
        clock.now += 6
    assert budget.exhausted, "what was not used does not add up"


def test_a_process_whose_stacks_take_too_long_is_throttled_and_told(program: Path) -> None:
    resolver = StackResolver(trust=replace(PATIENT, share=0.0, burst=0.0))
    numbers = run(resolver, process(1), maps_of(program), 5)
    assert len(set(numbers)) == 1
    assert names(resolver, numbers[0]) == ["[stack not taken: those of the process take too long]"]
    assert resolver.counters()["stacks_throttled"] == 5


def test_processes_that_are_trusted_have_no_limit_of_work(program: Path) -> None:
    resolver = StackResolver()
    run(resolver, process(1), maps_of(program), 500)
    assert resolver.counters()["stacks_throttled"] == 0
