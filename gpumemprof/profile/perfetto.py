"""Memory over time and failures as a trace that ui.perfetto.dev and chrome://tracing open.

The Trace Event Format, as a JSON object (a documented format of Chrome's, which both read):

- ``M`` (metadata): the name of each process; those with equal pids (of several machines, or
  programs that followed each other by exec) get numbers of their own.
- ``C`` (counter): one track for each process, kind and device; ``args`` is ``{"bytes": n}``.
- ``i`` (instant, scope ``p``): an allocation that failed, with what is known of it in ``args``.

``ts`` is in microseconds since the start of the recording, with decimals (a double cannot tell the
nanoseconds of today's wall clock); ``otherData.start_ns`` is that start.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from gpumemprof.profile.merge import PINNED_KIND, label
from gpumemprof.profile.model import Failure, Labels, Profile, Series
from gpumemprof.profile.text import printable, valid_utf8
from gpumemprof.stack.frames import Frame

MAX_NAME = 200
"""Characters of a name."""
MAX_FRAMES = 100
"""Frames of a failure's stack; of deeper ones the outermost are left out."""


def encode(profile: Profile) -> str:
    """The trace of ``profile``: its series and failures. Its samples are not in it."""
    trace = {
        "displayTimeUnit": "ms",
        "otherData": {
            "start_ns": str(profile.time_ns),
            **{_clean(name): _clean(text) for name, text in profile.about.items()},
        },
        "traceEvents": sorted(_events(profile), key=lambda event: event["ts"]),
    }
    return json.dumps(trace, separators=(",", ":"), allow_nan=False) + "\n"


def _events(profile: Profile) -> Iterator[dict[str, Any]]:
    pids = _Pids(profile)
    for owner, pid in pids.of_owner.items():
        yield {
            "ph": "M",
            "name": "process_name",
            "pid": pid,
            "tid": pid,
            "ts": 0,
            "args": {"name": _process_name(owner)},
        }
    end = profile.time_ns + profile.duration_ns
    for series in profile.series:
        name, pid = _counter_name(series), pids.of(series.labels)
        points = series.points
        if points and points[-1][0] < end:
            points = (*points, (end, points[-1][1]))
        for time_ns, size in points:
            yield {
                "ph": "C",
                "name": name,
                "cat": "memory",
                "pid": pid,
                "tid": pid,
                "ts": _since(time_ns, profile),
                "args": {"bytes": size},
            }
    for failure in profile.failures:
        pid = pids.of(failure.labels)
        yield {
            "ph": "i",
            "s": "p",
            "name": f"{_clean(label(failure.labels, 'call') or 'allocation')} failed",
            "cat": "failure",
            "pid": pid,
            "tid": pid,
            "ts": _since(failure.time_ns, profile),
            "args": _failure(failure),
        }


class _Pids:
    """A number for each process: its pid where that is not taken."""

    def __init__(self, profile: Profile) -> None:
        self.of_owner: dict[Labels, int] = {}
        self._taken: set[int] = set()
        for labels in (
            *(series.labels for series in profile.series),
            *(failure.labels for failure in profile.failures),
        ):
            owner = _owner(labels)
            if owner not in self.of_owner:
                self.of_owner[owner] = self._free(label(owner, "pid") or "")

    def of(self, labels: Labels) -> int:
        return self.of_owner[_owner(labels)]

    def _free(self, text: str) -> int:
        number = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
        if not number or number in self._taken:
            number = max(self._taken | {1 << 22}) + 1  # above every pid of a kernel
        self._taken.add(number)
        return number


def _owner(labels: Labels) -> Labels:
    kept = {"pid", "comm", "namespace", "pod", "container", "node"}
    return tuple(pair for pair in labels if pair[0] in kept)


def _process_name(owner: Labels) -> str:
    found = dict(owner)
    pod = "/".join(found[key] for key in ("namespace", "pod", "container") if found.get(key))
    pid = f"({found['pid']})" if "pid" in found else ""
    return _clean(" ".join(filter(None, (pod, found.get("comm"), pid)))) or "unknown process"


def _counter_name(series: Series) -> str:
    kind = label(series.labels, "kind") or "device"
    if kind == PINNED_KIND:
        return "pinned host memory"
    device = label(series.labels, "device") or "unknown"
    return _clean(f"{kind} memory, device {device}")


def _failure(failure: Failure) -> dict[str, Any]:
    known = {"free": failure.free, "total": failure.total}
    stack = [_frame(frame) for frame in failure.stack[:MAX_FRAMES]]
    return {
        "requested": failure.requested,
        "error": failure.error,
        "in_use": failure.in_use,
        **{name: size for name, size in known.items() if size is not None},
        **{_clean(key): _clean(text) for key, text in failure.labels},
        "stack": "\n".join(stack),
    }


def _frame(frame: Frame) -> str:
    place = f" ({frame.file}:{frame.line})" if frame.file else ""
    return _clean(f"{frame.name}{place}")


def _clean(text: str) -> str:
    return valid_utf8(printable(text))[:MAX_NAME]


def _since(time_ns: int, profile: Profile) -> float:
    return max(time_ns - profile.time_ns, 0) / 1000
