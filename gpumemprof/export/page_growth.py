"""Which stacks of a container grow steadily, over the profiles that the store has of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from gpumemprof.errors import RemoteDataError
from gpumemprof.export.model import Owner
from gpumemprof.export.page_data import clean
from gpumemprof.export.store import ProfileStore
from gpumemprof.profile import growth
from gpumemprof.profile.merge import gpu_only
from gpumemprof.profile.model import Profile
from gpumemprof.report.functions import owner as owning_frame
from gpumemprof.report.functions import place
from gpumemprof.stack.frames import Frame, Stack

OBSERVATIONS = 16
"""Profiles looked at, at equal distances: each costs some 0.1 s of a processor per 1,000 stacks."""
MAX_STACKS = 50
MAX_FRAMES = 100


def stacks(store: ProfileStore, owner: Owner, since_ns: int) -> dict[str, Any]:
    """The stacks that grow steadily since then, fastest first. ``observations``: how many times
    were looked at; too few tell nothing."""
    points = [point for point in store.history(owner) if point.until_ns >= since_ns]
    numbers: dict[Stack, int] = {}
    snapshots: list[Profile] = []
    if points:
        first, last = max(points[0].time_ns, since_ns), points[-1].until_ns
        count = min(OBSERVATIONS, 1 + (last - first) // _interval_ns(store, owner))
        steps = max(count - 1, 1)
        times = [first + (last - first) * n // steps for n in range(count)]
        snapshots = list(_snapshots(store, owner, times, numbers))
    numbered = list(numbers)
    found = growth.growth(snapshots)
    return {
        "observations": len(snapshots),
        "needed": growth.MIN_POINTS,
        "more": max(len(found) - MAX_STACKS, 0),
        "stacks": [
            _growth(replace(each, stack=numbered[each.stack[0].line]))
            for each in found[:MAX_STACKS]
        ],
    }


def _interval_ns(store: ProfileStore, owner: Owner) -> int:
    """About the time between two profiles: what was held was not looked at more often than that."""
    times = store.times(owner)
    return min((after - before for before, after in pairwise(times)), default=1 << 62)


def _snapshots(
    store: ProfileStore, owner: Owner, times: Sequence[int], numbers: dict[Stack, int]
) -> Iterator[Profile]:
    """What was held at each of ``times``. What was not stored again had not changed.

    Stacks of many frames take long to compare, so each has one frame here, whose line is its
    number in ``numbers``."""
    stored, profile = None, None
    for time_ns in times:
        at = store.time_at(owner, time_ns)
        if at is None:
            return
        if at != stored:
            stored = at
            try:
                profile = store.load(owner, at)
            except RemoteDataError:
                profile = None
            if profile is not None:
                samples = (
                    replace(sample, stack=(_numbered(sample.stack, numbers),))
                    for sample in gpu_only(profile).samples
                    if sample.values.inuse_space
                )
                profile = Profile(tuple(samples), time_ns, 0)
        if profile is not None:
            yield replace(profile, time_ns=time_ns)


def _numbered(stack: Stack, numbers: dict[Stack, int]) -> Frame:
    return Frame("", line=numbers.setdefault(stack, len(numbers)))


def _trend(trend: growth.Trend) -> dict[str, Any]:
    return {
        "since_ns": str(trend.since_ns),
        "until_ns": str(trend.until_ns),
        "bytes_per_minute": round(trend.bytes_per_minute),
        "grown": trend.grown,
        "values": [size for _, size in trend.points],
    }


def _growth(found: growth.Growth) -> dict[str, Any]:
    frame = owning_frame(found.stack) or Frame.note("no stack")
    labels = dict(found.labels)
    return {
        "function": clean(frame.name),
        "place": clean(place(frame)),
        "process": clean(" ".join(filter(None, (labels.get("comm"), labels.get("pid"))))),
        "device": clean(labels.get("gpu") or labels.get("device", "")),
        "trend": _trend(found.trend),
        "stack": [[clean(each.name), clean(place(each))] for each in found.stack[:MAX_FRAMES]],
    }
