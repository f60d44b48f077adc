"""Tells users what is wrong with their ConfigMap where they look: ``kubectl describe configmap``.

All agents of a cluster see the same mistake. The event's name is made from what it says, so that
the first one creates it, and the others are told that it exists.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import queue
import random
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, NamedTuple

from gpumemprof.kube.api import Api, ApiError
from gpumemprof.kube.switch import Problem

log = logging.getLogger(__name__)

REASON = "InvalidSetting"
COMPONENT = "gpumemprof"
REPEAT_SECONDS = 3600.0
"""The API server keeps events for an hour: after that the same may be told again."""
MOST_PER_MINUTE = 10
MAX_REMEMBERED = 1000
_EXISTS = 409
_MAX_MESSAGE = 1024


class ConfigMapRef(NamedTuple):
    """The object that events are about."""

    namespace: str
    name: str
    uid: str
    resource_version: str = ""


def event_of(about: ConfigMapRef, problem: Problem, node: str, now: datetime) -> dict[str, Any]:
    """A core/v1 Event. Equal problems of one ConfigMap make equal names, on all nodes."""
    told = f"{problem}"
    digest = hashlib.sha256(f"{about.uid}\0{told}".encode()).hexdigest()[:16]
    at = now.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{about.name[:200]}.{digest}", "namespace": about.namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "namespace": about.namespace,
            "name": about.name,
            "uid": about.uid,
            "resourceVersion": about.resource_version,
        },
        "type": "Warning",
        "reason": REASON,
        "message": f"{told}. The last good setting is kept."[:_MAX_MESSAGE],
        "source": {"component": COMPONENT, "host": node},
        "reportingComponent": COMPONENT,
        "reportingInstance": node,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }


class EventReporter:
    """Creates events, in a thread of its own. What fails is counted and let go."""

    def __init__(
        self,
        api: Api,
        node: str,
        spread: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``spread``: seconds within which the agents of a cluster report, each at random."""
        self.created = self.existed = self.failed = self.suppressed = 0
        self._api = api
        self._node = node
        self._spread = spread
        self._clock = clock
        self._told: dict[tuple[str, Problem], float] = {}
        self._recent: list[float] = []
        self._queue: queue.Queue[tuple[ConfigMapRef, Problem] | None] = queue.Queue(MOST_PER_MINUTE)
        self._stopping = threading.Event()

    def report(self, about: ConfigMapRef, problem: Problem) -> None:
        """Never blocks and never raises. The same is told once an hour."""
        now = self._clock()
        key = (about.uid, problem)
        if now - self._told.get(key, -REPEAT_SECONDS) < REPEAT_SECONDS:
            return
        self._recent = [at for at in self._recent if now - at < 60]
        if len(self._recent) >= MOST_PER_MINUTE:
            self.suppressed += 1
            return
        try:
            self._queue.put_nowait((about, problem))
        except queue.Full:
            self.suppressed += 1
            return
        self._recent.append(now)
        self._told[key] = now
        if len(self._told) > MAX_REMEMBERED:
            del self._told[next(iter(self._told))]

    def run(self) -> None:
        """Until stopped."""
        while (reported := self._queue.get()) is not None:
            if self._stopping.wait(random.uniform(0, self._spread)):  # noqa: S311
                break
            self._create(*reported)
        self._api.reset()

    def stop(self) -> None:
        """From another thread: what is not reported yet is not reported."""
        self._stopping.set()
        with contextlib.suppress(queue.Full):  # then run() is not waiting, and sees the above
            self._queue.put_nowait(None)

    def _create(self, about: ConfigMapRef, problem: Problem) -> None:
        event = event_of(about, problem, self._node, datetime.now(timezone.utc))
        try:
            self._api.create(f"/api/v1/namespaces/{about.namespace}/events", event)
        except ApiError as error:
            if error.status == _EXISTS:
                self.existed += 1
                return
            self.failed += 1
            self._api.reset()
            log.warning("could not report an event: %s", error)
        except Exception:
            self.failed += 1
            log.exception("could not report an event")
        else:
            self.created += 1
