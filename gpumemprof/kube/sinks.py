"""Where the objects go that the API sends: pods into the index, the ConfigMap into the switch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from gpumemprof.errors import RemoteDataError
from gpumemprof.kube.events import ConfigMapRef
from gpumemprof.kube.json_object import JsonObject, mapping_in, text_in
from gpumemprof.kube.pod_json import SeenPod, pod_of, uid_of
from gpumemprof.kube.pods import PodIndex
from gpumemprof.kube.switch import OFF, Problem, Switch

log = logging.getLogger(__name__)


class ConfigMap(NamedTuple):
    """One ConfigMap. ``data``: as its author wrote it."""

    ref: ConfigMapRef
    data: Mapping[str, str]


class PodSink:
    """Pods, on their way from the API into the index."""

    def __init__(self, index: PodIndex, changed: Callable[[], None]) -> None:
        self._index = index
        self._changed = changed

    def convert(self, json: JsonObject) -> SeenPod:
        """Raises RemoteDataError."""
        return pod_of(json)

    def replace(self, objects: Iterable[SeenPod]) -> None:
        """All pods of the node."""
        self._index.replace(objects)
        self._changed()

    def put(self, value: SeenPod) -> None:
        """A new or changed pod."""
        before = self._index.version
        self._index.put(value)
        if self._index.version != before:
            self._changed()

    def ended(self, uid: str) -> None:
        """A deleted pod."""
        self._index.ended(uid)

    def refused(self, uid: str) -> None:
        """A pod that cannot be used."""
        log.warning("pod with uid %s cannot be used: its processes are not profiled", uid or "?")
        self._index.forget(uid)
        self._changed()


class SwitchSink:
    """The ConfigMap, on its way from the API into the switch."""

    def __init__(
        self,
        name: str,
        changed: Callable[[], None],
        report: Callable[[ConfigMapRef, Problem], None],
    ) -> None:
        self.switch = OFF
        """What holds now. Nothing is on until the ConfigMap was read, and while there is none."""
        self.problems: tuple[Problem, ...] = ()
        self.invalid = 0
        """Settings that could not be used, each counted once for as long as it stands."""
        self._name = name
        self._changed = changed
        self._report = report
        self._previous: Switch | None = None

    def convert(self, json: JsonObject) -> ConfigMap:
        """Raises RemoteDataError."""
        metadata, data = mapping_in(json, "metadata"), mapping_in(json, "data")
        if metadata.get("name") != self._name:
            raise RemoteDataError("not the ConfigMap that was asked for")
        if not all(isinstance(value, str) for value in data.values()):
            raise RemoteDataError("a ConfigMap's data are not texts")
        namespace, version = (text_in(metadata, key) for key in ("namespace", "resourceVersion"))
        return ConfigMap(ConfigMapRef(namespace, self._name, uid_of(json), version), data)

    def replace(self, objects: Iterable[ConfigMap]) -> None:
        """The ConfigMap, or none."""
        found = list(objects)
        if found:
            self.put(found[0])
        else:
            self._remove()

    def put(self, value: ConfigMap) -> None:
        """The new or changed ConfigMap."""
        switch, problems = Switch.parse(value.data, self._previous)
        for problem in problems:
            if problem not in self.problems:
                self.invalid += 1
                log.warning("ConfigMap %s: %s; the last good setting is kept", self._name, problem)
                self._report(value.ref, problem)
        self.problems = problems
        self._previous = switch
        self._set(switch)

    def ended(self, uid: str) -> None:
        """The ConfigMap was deleted."""
        self._remove()

    def refused(self, uid: str) -> None:
        """It became something that cannot be used at all, so that nobody knows what is on."""
        self.invalid += 1
        log.warning("ConfigMap %s cannot be used: nothing is profiled", self._name)
        self._previous, self.problems = None, ()
        self._set(OFF)

    def _remove(self) -> None:
        if self._previous is not None:
            log.warning("ConfigMap %s is gone: nothing is profiled", self._name)
        self._previous, self.problems = None, ()
        self._set(OFF)

    def _set(self, switch: Switch) -> None:
        if switch != self.switch:
            self.switch = switch
            self._changed()
