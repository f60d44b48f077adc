"""The pods of this node, found by what the control group of a process tells."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from gpumemprof.kube.model import ContainerRef, Pod
from gpumemprof.kube.pod_json import SeenPod

GRACE_SECONDS = 60.0
"""How long a pod stays findable after it ended: the last data of its processes need its labels."""
MAX_PODS = 2048
"""Pods of one node. The kubelet runs some hundred at most; anyone who may create pods can name a
node in as many as they like, and it refuses them one by one."""


class Found(NamedTuple):
    """``container``: its name; empty while the kubelet has not told the id of the container, and
    for processes of a pod that are in none of its containers."""

    pod: Pod
    container: str


@dataclass(slots=True)
class _Entry:
    seen: SeenPod
    forget_at: float | None = None
    """Monotonic time; None while it runs."""


class PodIndex:
    """Pods by uid and by container id. Safe to use from several threads."""

    def __init__(
        self, grace: float = GRACE_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._grace = grace
        self._clock = clock
        self._lock = threading.Lock()
        self._by_uid: dict[str, _Entry] = {}
        self._uid_of_container: dict[str, str] = {}
        self._uid_of_static: dict[str, str] = {}
        self._version = 0
        self._refused = 0
        self._look_at = math.inf
        """When the next of the pods that ended is to be forgotten, or earlier."""

    @property
    def version(self) -> int:
        """Changes whenever what ``find`` answers may have changed."""
        with self._lock:
            self._forget_ended()
            return self._version

    @property
    def refused(self) -> int:
        """Times a pod was not taken in because there were ``MAX_PODS`` already."""
        return self._refused

    def __len__(self) -> int:
        with self._lock:
            self._forget_ended()
            return len(self._by_uid)

    def find(self, ref: ContainerRef) -> Found | None:
        """The pod of a container; None while it is not known.

        The uid in the control group was put there by the kubelet and decides, where there is one;
        the container id only tells which of that pod's containers it is.
        """
        with self._lock:
            self._forget_ended()
            uid = ref.pod_uid or self._uid_of_container.get(ref.id, "")
            entry = self._by_uid.get(uid) or self._by_uid.get(self._uid_of_static.get(uid, ""))
            if entry is None:
                return None
            pod = entry.seen.pod
            return Found(pod, pod.containers.get(ref.id, ""))

    def pods(self) -> list[Pod]:
        """All pods that can be found now."""
        with self._lock:
            self._forget_ended()
            return [entry.seen.pod for entry in self._by_uid.values()]

    def put(self, seen: SeenPod) -> None:
        """A pod is new or changed."""
        with self._lock:
            self._forget_ended()
            self._put(seen)

    def ended(self, uid: str) -> None:
        """A pod was deleted: it stays findable for the grace time."""
        with self._lock:
            self._end(uid)

    def forget(self, uid: str) -> None:
        """A pod changed to something that cannot be used: it is unknown at once, so that nothing is
        decided by what it was."""
        with self._lock:
            self._remove(uid)

    def replace(self, pods: Iterable[SeenPod]) -> None:
        """These are all pods that there are now. If the iterable raises, nothing changes."""
        with self._lock:
            known = set(self._by_uid)
        seen: dict[str, SeenPod] = {}
        refused = 0
        for pod in pods:
            if pod.ended and pod.pod.uid not in known:
                continue
            if len(seen) < MAX_PODS or pod.pod.uid in seen:
                seen[pod.pod.uid] = pod
            else:
                refused += 1
        with self._lock:
            self._forget_ended()
            self._refused += refused
            for uid in self._by_uid.keys() - seen.keys():
                self._end(uid)
            for pod in seen.values():
                self._put(pod)

    def _put(self, seen: SeenPod) -> None:
        uid = seen.pod.uid
        old = self._by_uid.get(uid)
        forget_at = old.forget_at if old is not None and seen.ended else None
        if old is not None and old.seen == seen:
            old.forget_at = forget_at
            return
        if old is None:
            if seen.ended:  # before we looked: none of its processes is left
                return
            if len(self._by_uid) >= MAX_PODS:
                self._refused += 1
                return
        self._remove(uid)
        self._by_uid[uid] = _Entry(seen, forget_at)
        for container in seen.pod.containers:
            self._uid_of_container[container] = uid
        if seen.static_hash:
            self._uid_of_static[seen.static_hash] = uid
        self._version += 1
        if seen.ended:
            self._end(uid)

    def _end(self, uid: str) -> None:
        entry = self._by_uid.get(uid)
        if entry is not None and entry.forget_at is None:
            entry.forget_at = self._clock() + self._grace
            self._look_at = min(self._look_at, entry.forget_at)

    def _remove(self, uid: str) -> None:
        entry = self._by_uid.pop(uid, None)
        if entry is None:
            return
        for container in entry.seen.pod.containers:
            if self._uid_of_container.get(container) == uid:
                del self._uid_of_container[container]
        static = entry.seen.static_hash
        if self._uid_of_static.get(static) == uid:
            del self._uid_of_static[static]
        self._version += 1

    def _forget_ended(self) -> None:
        now = self._clock()
        if now < self._look_at:
            return
        ends = {uid: e.forget_at for uid, e in self._by_uid.items() if e.forget_at is not None}
        for uid, forget_at in ends.items():
            if forget_at <= now:
                self._remove(uid)
        self._look_at = min((at for at in ends.values() if at > now), default=math.inf)
