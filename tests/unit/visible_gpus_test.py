"""On which GPU of the node a process's memory is: what is sure is told, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumemprof.errors import RemoteDataError
from gpumemprof.process.gpu import Gpu, Nvml
from gpumemprof.process.gpu_locator import (
    REFRESH_SECONDS,
    SOONEST_SECONDS,
    GpuLocator,
    read_variables,
)
from gpumemprof.process.identity import ProcessId
from gpumemprof.process.visible_gpus import VARIABLES, GpuFacts, gpu_of

# Minors need not follow PCI order.
NODE = [
    Gpu(0, "GPU-aa00", "H200", 141, 0, minor=3),
    Gpu(1, "GPU-aa11", "H200", 141, 0, minor=0),
    Gpu(2, "GPU-bb22", "H200", 141, 0, minor=1),
    Gpu(3, "GPU-cc33", "H200", 141, 0, minor=2),
]
MIXED = [replace(NODE[0], name="A2"), *NODE[1:]]
DIVIDED = [replace(NODE[0], mig=True), *NODE[1:]]
ALL = frozenset({0, 1, 2, 3})
UNKNOWN = None


class Case(NamedTuple):
    """``used``: GPUs by NVML; ``nodes``: /dev/nvidiaN in the container; ``expected``: an index."""

    what: str
    ordinal: int
    expected: int | None
    used: set[int] = set()  # noqa: RUF012 - never changed
    nodes: set[int] | None = set(ALL)  # noqa: RUF012
    visible: str | None = None
    order: str | None = None
    container: str | None = None
    ordinals: set[int] = set()  # noqa: RUF012
    node: list[Gpu] = NODE


CASES = [
    Case("the driver says the one it is on", 0, 2, used={2}),
    Case("the driver is right whatever the variables were", 0, 2, used={2}, visible="0"),
    Case("of memory whose device is unknown too", -1, 2, used={2}),
    Case("but not if it uses two of its devices", 1, UNKNOWN, used={2}, ordinals={0, 1}),
    Case("the container has one", 0, 1, nodes={0}),
    Case("the container has one, by its minor number", 0, 0, nodes={3}),
    Case("the container has one, and the driver another", 0, UNKNOWN, used={1, 2}, nodes={3}),
    Case("two, as the driver confirms", 0, 1, used={1, 3}, nodes={0, 2}, ordinals={0, 1}),
    Case("two, the second", 1, 3, used={1, 3}, nodes={0, 2}, ordinals={0, 1}),
    Case("several, and the driver has not seen it yet", 0, UNKNOWN, nodes={0, 2}),
    Case("several, and which is not known", -1, UNKNOWN, used={1, 3}, nodes={0, 2}),
    Case("on all that it sees, and allocates on one", 1, 3, used={1, 3}, nodes={0, 2}),
    Case("on two of four, and allocates on one", 1, UNKNOWN, used={1, 2}),
    Case("picked", 1, 0, used={0, 3}, visible="3,0", ordinals={0, 1}),
    Case("picked by UUID", 0, 3, used={0, 3}, visible="GPU-cc33,GPU-aa00", ordinals={0, 1}),
    Case("picked by its beginning", 1, 2, used={0, 2}, visible="GPU-aa00,GPU-b", ordinals={0, 1}),
    Case("by a beginning of two", 0, UNKNOWN, used={0, 1}, visible="GPU-aa,1", ordinals={0, 1}),
    Case("what the driver contradicts", 0, UNKNOWN, used={1, 2}, visible="3,0", ordinals={0, 1}),
    Case("one twice", 0, UNKNOWN, used={0, 1}, visible="0,0,1", ordinals={0, 1}),
    Case("a list ends at -1", 1, 2, used={1, 2}, visible="1,2,-1,3", ordinals={0, 1}),
    Case("so there is no third", 2, UNKNOWN, used={1, 2}, visible="1,2,-1,3", ordinals={0, 1}),
    Case("a list ends at what is no device", 0, 1, used={1, 2}, visible="1,2,9", ordinals={0, 1}),
    Case("blanks", 1, 2, used={1, 2}, visible=" 1 , 2 ", ordinals={0, 1}),
    Case("nonsense", 0, UNKNOWN, used={1, 2}, visible="1;2", ordinals={0, 1}),
    Case("an instance", 0, UNKNOWN, used={1, 2}, visible="MIG-1,2", ordinals={0, 1}),
    Case("a divided one", 0, UNKNOWN, used={0}, node=DIVIDED),
    Case("a divided one alone", 0, UNKNOWN, nodes={3}, node=DIVIDED),
    Case("one that is not divided beside it", 0, 1, used={1}, node=DIVIDED),
    Case("unlike ones, by speed", 0, UNKNOWN, used={0, 1}, ordinals={0, 1}, node=MIXED),
    Case(
        "unlike ones, by address", 0, 0,
        used={0, 1}, ordinals={0, 1}, node=MIXED, nodes={0, 3}, order="PCI_BUS_ID",
    ),
    Case("like ones, by speed", 0, 0, used={0, 1}, ordinals={0, 1}, order="FASTEST_FIRST"),
    Case("no device nodes to see, but a list", 0, 2, nodes=None, container="GPU-bb22"),
    Case("a list of all", 1, 1, used={0, 1}, nodes=None, container="all", ordinals={0, 1}),
    Case("no list", 0, UNKNOWN, nodes=None),
    Case("a list of none", 0, UNKNOWN, nodes=None, container="void"),
    Case("one GPU in the node", 7, 0, nodes=None, node=NODE[:1]),
    Case("one divided GPU in the node", 0, UNKNOWN, nodes=None, node=DIVIDED[:1]),
    Case("no GPU in the node", 0, UNKNOWN, node=[]),
    Case("one that the node does not have", 0, UNKNOWN, used={9}),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_the_gpu_of_an_ordinal_is_told_only_if_sure(case: Case) -> None:
    values = zip(VARIABLES, (case.visible, case.order, case.container), strict=True)
    facts = GpuFacts(
        frozenset(case.used),
        frozenset(case.ordinals),
        None if case.nodes is None else frozenset(case.nodes),
        {name: value for name, value in values if value is not None},
    )
    found = gpu_of(case.ordinal, case.node, facts)
    assert (found.index if found else None) == case.expected


def test_variables_that_cannot_be_read_leave_several_gpus_unknown() -> None:
    facts = GpuFacts(frozenset({0, 1}), frozenset({0, 1}), ALL, None)
    assert gpu_of(0, NODE, facts) is None
    assert gpu_of(0, NODE, replace(facts, variables={})) == NODE[0]


@given(
    st.integers(-1, 300),
    st.frozensets(st.integers(0, 4)),
    st.frozensets(st.integers(0, 4)),
    st.none() | st.frozensets(st.integers(0, 4)),
    st.dictionaries(st.sampled_from(VARIABLES), st.text("0123,-GPUabcMIall ", max_size=12)),
)
def test_any_facts_give_a_gpu_that_the_driver_does_not_deny(
    ordinal: int,
    used: frozenset[int],
    ordinals: frozenset[int],
    nodes: frozenset[int] | None,
    variables: dict[str, str],
) -> None:
    found = gpu_of(ordinal, NODE, GpuFacts(used, ordinals, nodes, variables))
    assert found is None or not used or found.index in used


# Gathering


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that picks a GPU; its root is ours."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "1,0", "OTHER": "x"}
    script = "print(flush=True); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", script],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert child.stdout
    child.stdout.readline()
    yield child
    child.communicate(b"\n")


def test_the_variables_of_a_process_are_read(process: subprocess.Popen[bytes]) -> None:
    assert read_variables(process.pid) == {"CUDA_VISIBLE_DEVICES": "1,0"}


@pytest.mark.parametrize(
    "data",
    [b"CUDA_VISIBLE_DEVICES=" + b"0," * 3000, b"CUDA_VISIBLE_DEVICES=\xff", b"x" * (2 << 20)],
)
def test_variables_that_are_no_list_of_devices_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "environ").write_bytes(data)
    with pytest.raises(RemoteDataError):
        read_variables(7, tmp_path)


class Driver(Nvml):
    """NVML of a node with these GPUs; ``used`` is what it says of processes."""

    def __init__(self, gpus: list[Gpu]) -> None:
        self._gpus, self.used, self.asked = gpus, dict[int, frozenset[int]](), 0

    def gpus(self) -> list[Gpu]:
        return self._gpus

    def process_gpus(self) -> dict[int, frozenset[int]]:
        self.asked += 1
        return self.used


def test_a_process_with_the_only_gpu_of_the_node_is_there() -> None:
    assert GpuLocator(Driver(NODE[:1])).locate(ProcessId(1, 1), 0) == ("0", "GPU-aa00")


def test_what_the_driver_says_is_asked_for_again_after_a_while(tmp_path: Path) -> None:
    clock = SimpleNamespace(now=100.0)
    driver = Driver(NODE)
    locator = GpuLocator(driver, proc=tmp_path, clock=lambda: clock.now)
    identity = ProcessId(7, 1)
    assert locator.locate(identity, 0) == ("", "")
    driver.used = {7: frozenset({1})}
    assert locator.locate(identity, 0) == ("", "")
    clock.now += REFRESH_SECONDS
    assert locator.locate(identity, 0) == ("1", "GPU-aa11")
    assert driver.asked == 2


def test_a_context_elsewhere_does_not_make_a_new_ordinal_that_gpu(tmp_path: Path) -> None:
    """A program is on the first GPU by its start alone, and then allocates on the second."""
    clock = SimpleNamespace(now=100.0)
    driver = Driver(NODE)
    locator = GpuLocator(driver, proc=tmp_path, clock=lambda: clock.now)
    driver.used = {7: frozenset({0})}
    locator.locate(ProcessId(1, 1), 0)  # the driver is asked for somebody else
    driver.used = {7: frozenset({0, 1})}
    clock.now += SOONEST_SECONDS / 2
    assert locator.locate(ProcessId(7, 1), 1, {1}) == ("", "")
    clock.now += SOONEST_SECONDS
    assert locator.locate(ProcessId(7, 1), 1, {1}) == ("", "")
    assert driver.asked == 2


def test_a_new_ordinal_is_not_asked_for_again_and_again(tmp_path: Path) -> None:
    clock = SimpleNamespace(now=100.0)
    driver = Driver(NODE)
    locator = GpuLocator(driver, proc=tmp_path, clock=lambda: clock.now)
    for ordinal in range(1000):
        clock.now += SOONEST_SECONDS / 100
        locator.locate(ProcessId(7, 1), ordinal)
    assert driver.asked <= 11


def test_what_was_found_stays_until_the_process_is_forgotten(tmp_path: Path) -> None:
    driver = Driver(NODE)
    clock = SimpleNamespace(now=0.0)
    locator = GpuLocator(driver, proc=tmp_path, clock=lambda: clock.now)
    driver.used = {7: frozenset({2})}
    assert locator.locate(ProcessId(7, 1), 0) == ("2", "GPU-bb22")
    driver.used = {}
    clock.now += REFRESH_SECONDS
    assert locator.locate(ProcessId(7, 1), 0) == ("2", "GPU-bb22")
    locator.forget(ProcessId(7, 1))
    assert locator.locate(ProcessId(7, 1), 0) == ("", "")


def test_a_machine_without_a_driver_has_no_gpus() -> None:
    assert GpuLocator(Driver([])).locate(ProcessId(1, 1), 0) == ("", "")


def test_only_real_device_nodes_count(tmp_path: Path) -> None:
    (tmp_path / "7/root/dev").mkdir(parents=True)
    (tmp_path / "7/root/dev/nvidia0").write_bytes(b"")
    (tmp_path / "7/root/dev/nvidia1").symlink_to("/dev/null")
    (tmp_path / "7/environ").write_bytes(b"")
    locator: Any = GpuLocator(Driver(NODE), proc=tmp_path)
    assert locator._device_nodes(7, [0, 1, 2]) == frozenset()
    assert locator._device_nodes(8, [0, 1, 2]) is None
