"""Pods and their containers, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class ContainerRef(NamedTuple):
    """What the control group of a process tells of its container: the runtime's id (64 hex digits
    with the usual runtimes), and the pod's uid with dashes, empty where the path has none."""

    id: str
    pod_uid: str = ""


class Workload(NamedTuple):
    """What runs a pod: a Deployment, StatefulSet, Job, CronJob, RayCluster, or the pod itself."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of this node. ``containers``: runtime id → container name, of all its containers,
    init and ephemeral ones included, as far as the kubelet told their ids."""

    uid: str
    namespace: str
    name: str
    workload: Workload
    labels: Mapping[str, str] = field(default_factory=dict)
    containers: Mapping[str, str] = field(default_factory=dict)
