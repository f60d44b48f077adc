"""A pod as the API server sends it → the few things we keep of it, checked and bounded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeGuard

from gpumemprof.errors import RemoteDataError
from gpumemprof.kube.json_object import JsonObject, mapping_in, text_in
from gpumemprof.kube.model import Pod
from gpumemprof.kube.workload import workload_of

MAX_LABEL_BYTES = 8192
"""Labels of one pod. Cutting them could switch a pod on that is off: one with more is refused."""
MAX_CONTAINERS = 256
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
    uid = text_in(mapping_in(json, "metadata"), "uid")
    return uid if _UID.fullmatch(uid) else ""


def pod_of(json: JsonObject) -> SeenPod:
    """Raises RemoteDataError when it is not a pod that can be used."""
    metadata = mapping_in(json, "metadata")
    uid = uid_of(json)
    namespace, name = metadata.get("namespace"), metadata.get("name")
    if not (uid and _is_name(namespace) and _is_name(name)):
        raise RemoteDataError("a pod has no usable uid, namespace or name")
    labels = {
        key: value
        for key, value in mapping_in(metadata, "labels").items()
        if isinstance(value, str)
    }
    if sum(len(key) + len(value) for key, value in labels.items()) > MAX_LABEL_BYTES:
        raise RemoteDataError(
            f"pod {namespace}/{name} has more than {MAX_LABEL_BYTES:,} B of labels"
        )
    status = mapping_in(json, "status")
    pod = Pod(
        uid,
        namespace,
        name,
        workload_of(metadata),
        labels,
        dict(_containers(status)),
    )
    mirror = text_in(mapping_in(metadata, "annotations"), _MIRROR)
    return SeenPod(
        pod,
        mirror if _MANIFEST_HASH.fullmatch(mirror) else "",
        text_in(status, "phase") in {"Succeeded", "Failed"},
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
            last = mapping_in(mapping_in(container, "lastState"), "terminated")
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
