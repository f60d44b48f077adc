"""Which container a process is in, from the text of its ``/proc/PID/cgroup``.

The kernel writes one line per hierarchy, ``id:controllers:path``. Paths begin at the control group
root of who reads: whole ones for a reader in the host's cgroup namespace, with leading ``/..`` for
one in a container's own.

Names of control groups can be chosen by a container that may write to them, but only below its own:
so what stands furthest to the left is what the kubelet or the runtime made, and wins.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gpumemprof.errors import ProcessGone
from gpumemprof.kube.model import ContainerRef
from gpumemprof.process import procfs

_MAX_TEXT = 65_536
"""A path has at most 4,096 bytes, and there are at most about 15 hierarchies."""

_POD = re.compile(
    # kubelet's cgroupfs driver: pod<uid>; its systemd driver: kubepods-<qos>-pod<uid>.slice, with
    # the name of --cgroup-root before it, if any. systemd has no "-" in the uid: "_" instead.
    r"(?:[A-Za-z0-9_-]*kubepods(?:-besteffort|-burstable)?-)?pod"
    # The hash of a static pod's manifest stands in the place of its uid.
    r"(?P<uid>[0-9a-f]{8}(?:[_-][0-9a-f]{4}){3}[_-][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?"
)

_CONTAINER = re.compile(
    # <id>, docker-<id>.scope, cri-containerd-<id>.scope, crio-<id>[.scope], libpod-<id>.scope…
    r"(?P<runtime>(?:[a-z][a-z0-9]*-)*)(?P<id>[0-9a-f]{64})(?:\.scope)?"
)
_MONITORS = "conmon-"
"""The runtime's own processes, next to the container they watch."""


def container_of(text: str) -> ContainerRef | None:
    """The container that a process is in; None for one that is in none.

    A process of a pod that is in none of its containers (the runtime's own), or whose runtime names
    them in no known way, has an empty ``id``. The uid of a static pod is the hash that its mirror
    pod has as annotation ``kubernetes.io/config.mirror``: 32 hex digits without dashes.

    >>> container_of("0::/kubepods/pod0a1b2c3d-0000-4000-8000-00000000000f/" + 64 * "e").pod_uid
    '0a1b2c3d-0000-4000-8000-00000000000f'
    """
    without_pod = None
    for line in text[:_MAX_TEXT].splitlines():
        parts = _components(line)
        ref = _in_pod(parts)
        if ref is not None:
            return ref
        without_pod = without_pod or _outside_pods(parts)
    return without_pod


def read_container(pid: int, proc: Path = procfs.PROC) -> ContainerRef | None:
    """The container that process ``pid`` is in, as ``container_of``. Raises ProcessGone."""
    try:
        with (proc / str(pid) / "cgroup").open(errors="replace") as file:
            return container_of(file.read(_MAX_TEXT))
    except OSError:
        raise ProcessGone(f"there is no process {pid}") from None


def _components(line: str) -> list[str]:
    """The names of a path, outermost first. ``a:cri-containerd:b`` is what runc makes of a systemd
    path when it was not told to use systemd: a slice, a prefix and a name."""
    path = line.split(":", 2)[-1].removesuffix(" (deleted)")
    return [part for part in re.split("[/:]", path) if part not in {"", "..", "cri-containerd"}]


def _in_pod(parts: Sequence[str]) -> ContainerRef | None:
    for at, part in enumerate(parts):
        pod = _POD.fullmatch(part)
        if pod is not None:
            below = _container(parts[at + 1]) if at + 1 < len(parts) else ""
            return ContainerRef(below, pod["uid"].replace("_", "-"))
    return None


def _outside_pods(parts: Sequence[str]) -> ContainerRef | None:
    for part in parts:
        container = _container(part)
        if container:
            return ContainerRef(container)
    return None


def _container(part: str) -> str:
    match = _CONTAINER.fullmatch(part)
    if match is None or match["runtime"].endswith(_MONITORS):
        return ""
    return match["id"]
