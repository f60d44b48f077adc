"""The objects that the test's users make."""

from __future__ import annotations

from typing import Any

from tests.cluster.cluster import DRIVER

IMAGE = "localhost/gpumemprof-test-workload:latest"
# As NVIDIA's container toolkit does it: the node's one driver library in every GPU container.
_DRIVER_VOLUME = {"name": "driver", "hostPath": {"path": str(DRIVER), "type": "File"}}
_DRIVER_MOUNT = {
    "name": "driver",
    "mountPath": "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "readOnly": True,
}


def namespace(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def container(name: str, *command: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": list(command),
        "volumeMounts": [_DRIVER_MOUNT],
        **more,
    }


def work(name: str, *allocations: str, **more: Any) -> dict[str, Any]:
    """A container that runs work.py with these arguments."""
    return container(name, "python3", "/srv/work.py", *allocations, **more)


def _pod_spec(*containers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "containers": list(containers),
        "volumes": [_DRIVER_VOLUME],
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        **more,
    }


def pod(namespace: str, name: str, *containers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name, "labels": {"app": name}},
        "spec": _pod_spec(*containers, **more),
    }


def deployment(namespace: str, name: str, *containers: dict[str, Any]) -> dict[str, Any]:
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": _pod_spec(*containers)},
        },
    }


def job(namespace: str, name: str, *containers: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {
            "backoffLimit": 0,
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": _pod_spec(*containers, restartPolicy="Never"),
            },
        },
    }
