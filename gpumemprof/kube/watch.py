"""This node's pods and the switch, kept up to date from the Kubernetes API."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

from gpumemprof.errors import UsageError
from gpumemprof.kube.api import Api, Connect, in_cluster
from gpumemprof.kube.events import EventReporter
from gpumemprof.kube.list_watch import DEFAULT_TIMING, ListWatch, Timing, WatchState
from gpumemprof.kube.pods import PodIndex
from gpumemprof.kube.sinks import PodSink, SwitchSink
from gpumemprof.kube.switch import Problem, Switch

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")

STOP_SECONDS = 1.0
"""How long ``stop`` waits: a thread that is waiting for the server to answer ends on its own."""


class ClusterWatch:
    """What the agent knows from the API. It keeps what it knew while the API is away.

    ``configmap`` is in ``namespace``, that of the release. ``on_change`` is called, in threads of
    ours, after pods or the switch changed; it has to return soon, and may be called often.
    """

    def __init__(
        self,
        node: str,
        namespace: str,
        configmap: str,
        on_change: Callable[[], None],
        connect: Connect = in_cluster,
        timing: Timing = DEFAULT_TIMING,
    ) -> None:
        """Raises UsageError for what cannot be a name."""
        names = {"node": node, "namespace": namespace, "ConfigMap": configmap}
        for what, name in names.items():
            # With no node name the selector would select the pods that have no node yet.
            if not _NAME.fullmatch(name):
                raise UsageError(f"{name!r} cannot be the name of a {what}")
        self.pods = PodIndex()
        self._on_change = on_change
        self._stopped = False
        self._reporter = EventReporter(Api(connect), node)
        self._switch = SwitchSink(configmap, self._changed, self._reporter.report)
        self._loops: dict[str, ListWatch[Any]] = {
            "pods": ListWatch(
                "pods",
                Api(connect),
                "/api/v1/pods",
                f"spec.nodeName={node}",
                PodSink(self.pods, self._changed),
                timing,
            ),
            "switch": ListWatch(
                "switch",
                Api(connect),
                f"/api/v1/namespaces/{namespace}/configmaps",
                f"metadata.name={configmap}",
                self._switch,
                timing,
            ),
        }
        runs = {"events": self._reporter.run} | {n: loop.run for n, loop in self._loops.items()}
        self._threads = [
            threading.Thread(target=run, name=f"kube-{name}", daemon=True)
            for name, run in runs.items()
        ]

    @property
    def switch(self) -> Switch:
        """Which pods are profiled."""
        return self._switch.switch

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Settings of the ConfigMap, as it is now, that cannot be used."""
        return self._switch.problems

    @property
    def synced(self) -> bool:
        """Whether both pods and the switch were read at least once."""
        return all(loop.state.listed for loop in self._loops.values())

    @property
    def states(self) -> Mapping[str, WatchState]:
        """Of each watch (``pods``, ``switch``)."""
        return {name: loop.state for name, loop in self._loops.items()}

    def status(self) -> Mapping[str, bool]:
        """Watch → whether it is up to date."""
        return {name: state.up_to_date for name, state in self.states.items()}

    def counters(self) -> Mapping[str, int]:
        """Counts since the start. ``<watch>_lists``, ``_watches``, ``_events``, ``_bookmarks``,
        ``_expired``, ``_errors``, ``_refused`` (see WatchState); ``pods_beyond_limit``,
        ``switch_invalid``, ``events_created``, ``events_existed``, ``events_failed``,
        ``events_suppressed``."""
        names = ("lists", "watches", "events", "bookmarks", "expired", "errors", "refused")
        counts = {
            f"{watch}_{name}": int(getattr(state, name))
            for watch, state in self.states.items()
            for name in names
        }
        return counts | {
            "pods_beyond_limit": self.pods.refused,
            "switch_invalid": self._switch.invalid,
            "events_created": self._reporter.created,
            "events_existed": self._reporter.existed,
            "events_failed": self._reporter.failed,
            "events_suppressed": self._reporter.suppressed,
        }

    def start(self) -> None:
        """Begin; returns at once."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End: ``on_change`` is not called any more. Returns within about a second."""
        self._stopped = True
        self._reporter.stop()
        for loop in self._loops.values():
            loop.stop()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(STOP_SECONDS / len(self._threads))

    def _changed(self) -> None:
        if not self._stopped:
            self._on_change()
