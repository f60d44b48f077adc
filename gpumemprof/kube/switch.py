"""The switch: which namespaces are profiled, as a ConfigMap says it.

Its keys are namespaces; their values are ``on``, ``off``, or a label selector, which switches on
the pods it selects. Two more keys: ``_default`` is for all other namespaces, and is ``off`` unless
set; ``_host`` is for processes of no pod, and is as ``_default`` unless set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpumemprof.kube.model import Pod
from gpumemprof.kube.selector import Selector, SelectorError

DEFAULT = "_default"
HOST = "_host"

MAX_KEYS = 10_000
"""Settings of one ConfigMap."""

_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_WORDS = {"on": True, "true": True, "off": False, "false": False}
"""YAML 1.1 takes an unquoted ``on`` for a truth value, and tools then write ``true``."""
_NOT_MEANT = frozenset(
    "yes no y n enable disable enabled disabled all none any 0 1 null".split()  # noqa: SIM905
)
"""Would be read as "has a label of this name", which nobody means by them."""


class Problem(NamedTuple):
    """A setting that cannot be used. ``reason`` is a clause that follows ``key``'s value."""

    key: str
    value: str
    """Its first 100 characters."""
    reason: str

    def __str__(self) -> str:
        return f"{self.key}: {self.value!r}: {self.reason}"


Setting = bool | Selector


@dataclass(frozen=True, slots=True)
class Switch:
    """What is profiled. A value: a changed ConfigMap makes another."""

    settings: Mapping[str, Setting] = field(default_factory=dict)
    """Namespace, ``_default`` or ``_host`` → on, off, or which pods."""

    def allows(self, pod: Pod | None) -> bool:
        """Whether the processes of a pod are profiled; ``None``: those of no pod."""
        default = self.settings.get(DEFAULT, False)
        if pod is None:
            # A process of no pod has no labels: a selector as _default does not select it.
            return self.settings.get(HOST, default) is True
        setting = self.settings.get(pod.namespace, default)
        return setting.matches(pod.labels) if isinstance(setting, Selector) else setting

    @classmethod
    def parse(
        cls, data: Mapping[str, str], previous: Switch | None = None
    ) -> tuple[Switch, tuple[Problem, ...]]:
        """The switch that a ConfigMap's ``data`` says, and the settings that cannot be used.

        One that cannot be used leaves its namespace as it was in ``previous``; with no previous
        switch the namespace is off, since nobody is known to have switched it on.
        """
        if len(data) > MAX_KEYS:
            problem = Problem("", "", f"more than {MAX_KEYS:,} settings: all are left as they were")
            return previous or cls(), (problem,)
        settings: dict[str, Setting] = {}
        problems = []
        for key, value in data.items():
            try:
                settings[key] = _setting(key, value)
            except SelectorError as error:
                problems.append(Problem(_cut(key), _cut(value), _cut(str(error), 200)))
                if not _is_key(key):
                    continue
                if previous is None:
                    settings[key] = False
                elif key in previous.settings:
                    settings[key] = previous.settings[key]
        return cls(settings), tuple(problems)


OFF = Switch()
"""Nothing is profiled: what holds where there is no ConfigMap, and until it was read."""


def _is_key(key: str) -> bool:
    return key in {DEFAULT, HOST} or _NAMESPACE.fullmatch(key) is not None


def _setting(key: str, value: str) -> Setting:
    if not _is_key(key):
        raise SelectorError(f"the key is not a namespace, {DEFAULT} or {HOST}")
    word = value.strip().lower()
    if word in _WORDS:
        return _WORDS[word]
    if not word or word in _NOT_MEANT:
        raise SelectorError("say on, off, or a label selector")
    if key == HOST:
        raise SelectorError("processes of no pod have no labels: say on or off")
    return Selector.parse(value)


def _cut(text: str, length: int = 100) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
