"""Whose a process is, and whether it is to be recorded: from its control group and the cluster."""

from __future__ import annotations

import enum
from typing import NamedTuple, Protocol

from gpumemprof.export.model import Owner
from gpumemprof.kube.model import ContainerRef, Pod

NAME_SECONDS = 20.0
"""The kubelet tells a container's id up to seconds after it started; a process whose container has
no name by then is told without one."""
UNKNOWN_SECONDS = 60.0
"""A process in a container that no pod of this node has by then, with an API that answers, is none
of Kubernetes's."""


class State(enum.Enum):
    """Of a process that uses CUDA."""

    ON = "on"
    """It is recorded, and what is recorded is published."""
    OFF = "off"
    """Nothing of it is recorded."""
    HELD = "held"
    """It is recorded, and nothing is published, until its pod is known."""


class Placement(NamedTuple):
    """``owner`` is there when the state is ON."""

    state: State
    owner: Owner | None = None


HELD, OFF = Placement(State.HELD), Placement(State.OFF)


class Cluster(Protocol):
    """What the agent asks of the cluster."""

    @property
    def ready(self) -> bool:
        """Whether pods and switch were read at least once."""
        ...

    @property
    def up_to_date(self) -> bool:
        """Whether pods and switch are as the API has them now, as far as is known."""
        ...

    def find(self, ref: ContainerRef) -> tuple[Pod, str] | None:
        """The pod and the container's name, "" if that is not told yet."""
        ...

    def allows(self, pod: Pod | None) -> bool:
        """Whether the switch is on for a pod; None: for processes of no pod."""
        ...

    def is_off(self, owner: Owner) -> bool:
        """Whether nothing is to be kept of a container whose pod may be gone."""
        ...


class NoCluster:
    """A machine without Kubernetes: everything is recorded."""

    ready = up_to_date = True

    def find(self, ref: ContainerRef) -> tuple[Pod, str] | None:
        """There are no pods."""
        return None

    def allows(self, pod: Pod | None) -> bool:
        """Everything."""
        return True

    def is_off(self, owner: Owner) -> bool:
        """Nothing is."""
        return False


def place(
    cluster: Cluster, node: str, ref: ContainerRef | None, program: str, waited: float
) -> Placement:
    """``ref``: the container a process is in, None outside of any. ``program``: what it runs, the
    workload's name where there is no pod. ``waited``: seconds since the
    process was first seen."""
    if ref is None:
        return _of_host(cluster, node, "", program)
    found = cluster.find(ref)
    if found is None:
        patient = isinstance(cluster, NoCluster) or (
            waited >= UNKNOWN_SECONDS and cluster.up_to_date and ref.id and not ref.pod_uid
        )
        return _of_host(cluster, node, ref.id[:12], program) if patient else HELD
    pod, container = found
    if not cluster.allows(pod):
        return _not_allowed(cluster)
    if not container and waited < NAME_SECONDS:
        return HELD
    owner = Owner(pod.namespace, pod.name, container, pod.workload.name, node, pod.uid)
    return Placement(State.ON, owner)


def _of_host(cluster: Cluster, node: str, container: str, program: str) -> Placement:
    if not cluster.allows(None):
        return _not_allowed(cluster)
    return Placement(State.ON, Owner("", "", container, program or "unknown", node))


def _not_allowed(cluster: Cluster) -> Placement:
    # Until the switch was read nothing is allowed: that is no answer yet.
    return OFF if cluster.ready else HELD
