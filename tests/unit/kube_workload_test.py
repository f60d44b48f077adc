"""Which workload a pod belongs to, told from the pod alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumemprof.kube.model import Workload
from gpumemprof.kube.workload import workload_of


def owned(kind: str, owner_name: str, **metadata: Any) -> dict[str, Any]:
    """Metadata of a pod with a controller."""
    owner = {
        "apiVersion": "any/v1",
        "kind": kind,
        "name": owner_name,
        "uid": "1",
        "controller": True,
    }
    return {
        "name": f"{owner_name}-x7x2k",
        "creationTimestamp": "2026-11-30T20:00:07Z",
        "ownerReferences": [owner],
        **metadata,
    }


@pytest.mark.parametrize(
    ("metadata", "kind", "name"),
    [
        pytest.param(
            owned("ReplicaSet", "vllm-7d9f", labels={"pod-template-hash": "7d9f"}),
            "Deployment",
            "vllm",
            id="Deployment",
        ),
        pytest.param(
            owned("ReplicaSet", "a-7d9f-7d9f", labels={"pod-template-hash": "7d9f"}),
            "Deployment",
            "a-7d9f",
            id="a Deployment whose name ends as its hash",
        ),
        pytest.param(
            owned("ReplicaSet", "canary-66c", labels={"rollouts-pod-template-hash": "66c"}),
            "Rollout",
            "canary",
            id="Argo Rollout",
        ),
        pytest.param(owned("ReplicaSet", "old-style"), "ReplicaSet", "old-style", id="ReplicaSet"),
        pytest.param(
            owned("ReplicaSet", "other", labels={"pod-template-hash": "7d9f"}),
            "ReplicaSet",
            "other",
            id="a ReplicaSet with a hash that is not its own",
        ),
        pytest.param(
            owned("ReplicaSet", "-7d9f", labels={"pod-template-hash": "7d9f"}),
            "Pod",
            "-7d9f-x7x2k",
            id="an owner that cannot be",
        ),
        pytest.param(owned("StatefulSet", "db"), "StatefulSet", "db", id="StatefulSet"),
        pytest.param(owned("DaemonSet", "exporter"), "DaemonSet", "exporter", id="DaemonSet"),
        pytest.param(owned("Job", "train-resnet"), "Job", "train-resnet", id="Job"),
        pytest.param(owned("Job", "eval-29934480"), "CronJob", "eval", id="CronJob"),
        pytest.param(
            owned("Job", "eval-29907360"), "CronJob", "eval", id="a CronJob's run of weeks ago"
        ),
        pytest.param(
            owned("Job", "train-20261130"), "Job", "train-20261130", id="a Job named by date"
        ),
        pytest.param(
            owned("Job", "eval-29934480", creationTimestamp="soon"),
            "Job",
            "eval-29934480",
            id="a Job of unknown time",
        ),
        pytest.param(owned("RayCluster", "ray-a"), "RayCluster", "ray-a", id="RayCluster"),
        pytest.param(
            owned(
                "RayCluster",
                "tune-raycluster-4xk2p",
                labels={
                    "ray.io/originated-from-cr-name": "tune",
                    "ray.io/originated-from-crd": "RayJob",
                },
            ),
            "RayJob",
            "tune",
            id="RayJob",
        ),
        pytest.param(owned("PyTorchJob", "llama"), "PyTorchJob", "llama", id="PyTorchJob"),
        pytest.param(
            owned("Job", "set-w-0", labels={"jobset.sigs.k8s.io/jobset-name": "set"}),
            "JobSet",
            "set",
            id="JobSet",
        ),
        pytest.param(
            owned("StatefulSet", "lws-1", labels={"leaderworkerset.sigs.k8s.io/name": "lws"}),
            "LeaderWorkerSet",
            "lws",
            id="LeaderWorkerSet",
        ),
        pytest.param(
            owned("Node", "node-a", name="etcd-node-a"), "StaticPod", "etcd", id="static pod"
        ),
        pytest.param({"name": "notebook"}, "Pod", "notebook", id="bare pod"),
        pytest.param(
            {"name": "run-x7x2k", "generateName": "run-"}, "Pod", "run", id="generated bare pod"
        ),
    ],
)
def test_workload_of(metadata: dict[str, Any], kind: str, name: str) -> None:
    assert workload_of(metadata) == Workload(kind, name)


def test_the_controller_is_the_owner_that_counts() -> None:
    metadata = owned("Job", "train")
    metadata["ownerReferences"].insert(0, {"kind": "Queue", "name": "gpu", "uid": "2"})
    assert workload_of(metadata) == Workload("Job", "train")
    del metadata["ownerReferences"][1]
    assert workload_of(metadata) == Workload("Queue", "gpu")


@pytest.mark.parametrize("name", ["", "x" * 254, "a\nb", "a b", "<script>", 7, None, ["a"]])
def test_owners_with_impossible_names_are_ignored(name: Any) -> None:
    metadata = owned("Job", "train", name="p")
    metadata["ownerReferences"][0]["name"] = name
    assert workload_of(metadata) == Workload("Pod", "p")


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
KEYS = ("name", "generateName", "labels", "ownerReferences", "creationTimestamp")


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(KEYS, json)))
def test_any_json_is_answered(metadata: dict[str, Any]) -> None:
    found = workload_of(metadata)
    assert isinstance(found.kind, str) and isinstance(found.name, str)
