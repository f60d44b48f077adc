"""A pod as the API server sends it → the few things we keep of it, checked and bounded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeGuard

from gpumemprof.errors import RemoteDataError
from gpumemprof.kube.model import Pod
from gpumemprof.kube.workload import JsonObject, workload_of

MAX_LABELS = 256
"""Labels of one pod. Cutting them could switch a pod on that is off: one with more is refused."""
MAX_CONTAINERS = 512
"""Containers of one pod whose ids are kept; of others only the pod is known."""

_UID = re.compile(r"[0-9A-Za-z-]{1,64}")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_STATUSES = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
_MIRROR = "kubernetes.io/config.mirror"
_MANIFEST_HASH = re.compile(r"[0-9a-f]{32}")


class SeenPod(NamedTuple):
    """A pod, and what only the index needs."""

    pod: Pod
    static_hash: str = ""
    """What stands for the uid of a static pod in its control group; empty for other pods."""
    ended: bool = False
    """All its containers ended, for good."""


def uid_of(json: JsonObject) -> str:
    """The uid of any object; empty if it has none."""
    metadata = json.get("metadata")
    uid = metadata.get("uid") if isinstance(metadata, Mapping) else None
    return uid if isinstance(uid, str) and _UID.fullmatch(uid) else ""


def pod_of(json: JsonObject) -> SeenPod:
    """Raises RemoteDataError when it is not a pod that can be used."""
    metadata = _mapping(json, "metadata")
    uid = uid_of(json)
    namespace, name = metadata.get("namespace"), metadata.get("name")
    if not (uid and _is_name(namespace) and _is_name(name)):
        raise RemoteDataError("a pod has no usable uid, namespace or name")
    labels = _mapping(metadata, "labels")
    if len(labels) > MAX_LABELS:
        raise RemoteDataError(f"pod {namespace}/{name} has more than {MAX_LABELS} labels")
    status = _mapping(json, "status")
    pod = Pod(
        uid,
        namespace,
        name,
        workload_of(metadata),
        {key: value for key, value in labels.items() if isinstance(value, str)},
        dict(_containers(status)),
    )
    mirror = _mapping(metadata, "annotations").get(_MIRROR)
    static = isinstance(mirror, str) and _MANIFEST_HASH.fullmatch(mirror) is not None
    return SeenPod(
        pod,
        str(mirror) if static else "",
        status.get("phase") in {"Succeeded", "Failed"},
    )


def _containers(status: JsonObject) -> Iterator[tuple[str, str]]:
    """(id, name) of each container, and of the one that ran before it was restarted: its processes'
    last data may still be on their way."""
    left = MAX_CONTAINERS
    for kind in _STATUSES:
        statuses = status.get(kind)
        for container in statuses if isinstance(statuses, list) else ():
            if not isinstance(container, Mapping) or left == 0:
                continue
            left -= 1
            name = container.get("name")
            last = _mapping(_mapping(container, "lastState"), "terminated")
            for url in (last.get("containerID"), container.get("containerID")):
                container_id = _id(url)
                if container_id and _is_name(name):
                    yield container_id, name


def _id(url: object) -> str:
    """``containerd://<id>`` → ``<id>``."""
    if not isinstance(url, str) or len(url) > 256:
        return ""
    return url.rpartition("://")[2]


def _is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _mapping(json: JsonObject, key: str) -> JsonObject:
    value = json.get(key)
    return value if isinstance(value, Mapping) else {}
