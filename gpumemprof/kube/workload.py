"""What runs a pod, told from the pod alone: nothing else is read from the API."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime

from gpumemprof.kube.json_object import JsonObject, mapping_in, text_in
from gpumemprof.kube.model import Workload

_HASHES = {
    "pod-template-hash": "Deployment",
    "rollouts-pod-template-hash": "Rollout",  # Argo Rollouts, which also makes ReplicaSets
}
"""Label with the suffix of a ReplicaSet's name → what made the ReplicaSet."""

_PARENTS = (
    ("Job", "jobset.sigs.k8s.io/jobset-name", "JobSet"),
    ("StatefulSet", "leaderworkerset.sigs.k8s.io/name", "LeaderWorkerSet"),
    ("RayCluster", "ray.io/originated-from-cr-name", "RayJob"),
)
"""Owner's kind, label of the pod with the name of that owner's owner, its kind. With RayCluster the
label ``ray.io/originated-from-crd`` tells the kind (RayJob or RayService)."""

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]{0,251}[A-Za-z0-9])?")
"""Owner references are whatever the pod's author wrote: the API server checks no names there."""
_KIND = re.compile(r"[A-Za-z][A-Za-z0-9]{0,62}")

_SCHEDULED = re.compile(r"(?P<cronjob>.+)-(?P<minute>[0-9]{8,9})")
_MINUTES_BEFORE = 366 * 24 * 60
"""How long a run of a CronJob may have waited. It tells ``nightly-29607840`` (a minute number) from
``train-20260101`` (a date, which as a minute number is a day in 2008)."""


def workload_of(metadata: JsonObject) -> Workload:
    """What runs the pod with these ``metadata``: its controller, seen through the ReplicaSet of a
    Deployment and the Job of a CronJob; a pod without one is its own (all that were made from one
    ``generateName`` are one workload)."""
    owner = _controller(metadata)
    name = text_in(metadata, "name")
    if owner is None:
        generated = text_in(metadata, "generateName").rstrip("-.")
        return Workload("Pod", generated or name)
    if owner.kind == "Node":  # the mirror of a static pod: <name in the manifest>-<node>
        return Workload("StaticPod", name.removesuffix(f"-{owner.name}") or name)
    labels = mapping_in(metadata, "labels")
    if owner.kind == "ReplicaSet":
        return _of_replica_set(owner, labels)
    for kind, label, parent_kind in _PARENTS:
        parent = labels.get(label)
        if owner.kind == kind and isinstance(parent, str) and _NAME.fullmatch(parent):
            told = labels.get("ray.io/originated-from-crd")
            told_kind = told if kind == "RayCluster" and isinstance(told, str) else ""
            return Workload(told_kind if _KIND.fullmatch(told_kind) else parent_kind, parent)
    if owner.kind == "Job":
        return _of_job(owner, text_in(metadata, "creationTimestamp"))
    return owner


def _controller(metadata: JsonObject) -> Workload | None:
    """The owner that manages the pod; if none says so, the first."""
    references = metadata.get("ownerReferences")
    if not isinstance(references, list):
        return None
    first = None
    for reference in references[:64]:
        if not isinstance(reference, Mapping):
            continue
        owner = Workload(text_in(reference, "kind"), text_in(reference, "name"))
        if not (_KIND.fullmatch(owner.kind) and _NAME.fullmatch(owner.name)):
            continue
        if reference.get("controller") is True:
            return owner
        first = first or owner
    return first


def _of_replica_set(owner: Workload, labels: JsonObject) -> Workload:
    for label, kind in _HASHES.items():
        suffix = labels.get(label)
        if isinstance(suffix, str) and suffix and owner.name.endswith(f"-{suffix}"):
            name = owner.name[: -len(suffix) - 1]
            if name:
                return Workload(kind, name)
    return owner


def _of_job(owner: Workload, pod_created: str) -> Workload:
    match = _SCHEDULED.fullmatch(owner.name)
    if match is None:
        return owner
    minute = int(match["minute"])
    try:
        created = datetime.fromisoformat(pod_created.replace("Z", "+00:00")).timestamp() / 60
    except (ValueError, OverflowError):
        return owner
    if created - _MINUTES_BEFORE <= minute <= created + 60:
        return Workload("CronJob", match["cronjob"])
    return owner
