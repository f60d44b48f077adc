"""Whose a process is, and whether it is recorded."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from gpumemprof.agent.placing import NAME_SECONDS, UNKNOWN_SECONDS, NoCluster, State, place
from gpumemprof.export.model import Owner
from gpumemprof.kube.model import ContainerRef, Pod, Workload
from gpumemprof.kube.pod_json import SeenPod
from gpumemprof.kube.pods import PodIndex
from gpumemprof.kube.switch import Switch

UID = "0a1b2c3d-1111-2222-3333-444455556666"
ID = "a" * 64


@dataclass
class Cluster:
    """The real index and switch, without an API behind them."""

    switch: Switch
    up_to_date: bool = True
    ready: bool = True
    index: PodIndex = field(default_factory=PodIndex)

    def find(self, ref: ContainerRef) -> tuple[Pod, str] | None:
        found = self.index.find(ref)
        return None if found is None else (found.pod, found.container)

    def allows(self, pod: Pod | None) -> bool:
        return self.switch.allows(pod)

    def is_off(self, owner: Owner) -> bool:
        raise AssertionError("is not asked for by place()")


def cluster(pods: bool = True, up_to_date: bool = True, **settings: str) -> Cluster:
    switch, problems = Switch.parse(settings)
    assert not problems
    made = Cluster(switch, up_to_date)
    if pods:
        pod = Pod(UID, "ml", "trainer-1", Workload("Job", "trainer"), {}, {ID: "main"})
        made.index.put(SeenPod(pod))
    return made


IN_POD = ContainerRef(ID, UID)


def test_a_process_of_a_pod_that_is_on_belongs_to_its_container() -> None:
    placement = place(cluster(ml="on"), "node-a", IN_POD, "python", 0)

    assert placement == (State.ON, Owner("ml", "trainer-1", "main", "trainer", "node-a", UID))


@pytest.mark.parametrize("settings", [{}, {"ml": "off"}, {"ml": "off", "_default": "on"}])
def test_a_process_of_a_pod_that_is_not_on_is_off(settings: dict[str, str]) -> None:
    assert place(cluster(**settings), "node-a", IN_POD, "python", 0).state is State.OFF


@pytest.mark.parametrize("waited", [0, 10_000])
def test_a_process_whose_pod_is_not_known_is_held_however_long_that_takes(waited: float) -> None:
    made = cluster(pods=False, _default="on")

    assert place(made, "node-a", IN_POD, "python", waited).state is State.HELD


@pytest.mark.parametrize("ref", [None, IN_POD], ids=["host", "pod"])
def test_until_the_switch_was_read_a_process_is_held(ref: ContainerRef | None) -> None:
    """Its first allocations are told if it turns out to be on."""
    made = cluster()
    made.ready = made.up_to_date = False
    assert place(made, "n", ref, "python", 9).state is State.HELD
    made.ready = True
    assert place(made, "n", ref, "python", 9).state is State.OFF


def test_what_was_off_when_the_api_was_last_seen_is_off_while_it_is_away() -> None:
    made = cluster(up_to_date=False)
    assert place(made, "n", None, "python", 9).state is State.OFF
    assert place(made, "n", IN_POD, "python", 9).state is State.OFF


def test_a_process_of_the_host_belongs_to_its_program() -> None:
    placement = place(cluster(_host="on"), "node-a", None, "python3", 0)

    assert placement == (State.ON, Owner("", "", "", "python3", "node-a"))


def test_a_container_whose_name_is_not_told_is_waited_for_but_not_for_ever() -> None:
    made, other = cluster(ml="on"), ContainerRef("b" * 64, UID)

    assert place(made, "n", other, "python", NAME_SECONDS - 1).state is State.HELD
    late = place(made, "n", other, "python", NAME_SECONDS)
    assert late.state is State.ON
    assert late.owner is not None and late.owner.container == ""


def test_off_needs_no_container_name() -> None:
    assert place(cluster(ml="off"), "n", ContainerRef("b" * 64, UID), "p", 0).state is State.OFF


def test_a_container_outside_of_kubernetes_is_the_hosts_once_no_pod_claims_it() -> None:
    made, docker = cluster(_host="on"), ContainerRef("c" * 64)

    assert place(made, "n", docker, "python", UNKNOWN_SECONDS - 1).state is State.HELD
    late = place(made, "n", docker, "python", UNKNOWN_SECONDS)
    assert late.owner == Owner("", "", "c" * 12, "python", "n")


def test_a_process_that_ended_before_it_was_asked_is_nobodys() -> None:
    """Not the host's: it may be of a namespace that is off."""
    made = cluster(_host="on", _default="on")

    assert place(made, "n", ContainerRef(""), "python", 10_000).state is State.HELD


def test_without_kubernetes_everything_is_recorded() -> None:
    assert place(NoCluster(), "n", None, "python", 0).owner == Owner("", "", "", "python", "n")
    in_container = place(NoCluster(), "n", ContainerRef("c" * 64), "python", 0)
    assert in_container.owner == Owner("", "", "c" * 12, "python", "n")
