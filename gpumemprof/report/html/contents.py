"""What a page shows, as one JSON value (its shape is told in the package's docstring)."""

from __future__ import annotations

from typing import Any

from gpumemprof.errors import UsageError
from gpumemprof.profile.completeness import lost, normal
from gpumemprof.profile.merge import PINNED_KIND, gpu_only, label, prune
from gpumemprof.profile.model import TYPE_NAMES, Failure, Labels, ProcessInfo, Profile
from gpumemprof.report import cuda_errors, units
from gpumemprof.report.header import process_state
from gpumemprof.report.hints import hints
from gpumemprof.report.html.columns import Columns, clean
from gpumemprof.report.html.growth import growing
from gpumemprof.report.html.origins import ORIGINS
from gpumemprof.report.html.timeline import timeline
from gpumemprof.report.stacks import describe, mismatch, since_start
from gpumemprof.stack.frames import Stack

VERSION = 1
MAX_SAMPLES = 50_000
"""Stacks of a page; smaller ones are summed into one and counted."""
MAX_FAILURES = 100
"""Places at which allocations failed."""


def data(profile: Profile, title: str = "", view: str = "") -> dict[str, Any]:
    """``profile`` as the value that the viewer shows, which opens with the sample type ``view``.

    Raises UsageError for negative values: a difference is shown by ``diff_data``."""
    profile = _bounded(profile)
    columns = Columns()
    for sample in profile.samples:
        columns.add(sample)
    whole = _whole(profile, title, columns, compared=False)
    return whole | {"view": view} if view else whole


def diff_data(before: Profile, after: Profile, title: str = "") -> dict[str, Any]:
    """What changed from ``before`` to ``after``, as the value that the viewer shows.

    Processes, failures and times are those of ``after``; what was lost in either is told."""
    before, after = _bounded(before), _bounded(after)
    columns = Columns()
    for sample in after.samples:
        columns.add(sample)
    for sample in before.samples:
        columns.add(sample, before=True)
    whole = _whole(after, title, columns, compared=True)
    whole["losses"] = [
        f"{which}: {sentence}"
        for which, profile in (("before", before), ("after", after))
        for sentence in lost(profile.completeness)
    ]
    whole["recorded"] = "; ".join(
        f"{which}: {_recorded(profile) or units.NO_TIME}"
        for which, profile in (("before", before), ("after", after))
    )
    return whole


def _bounded(profile: Profile) -> Profile:
    if any(min(sample.values) < 0 for sample in profile.samples):
        raise UsageError("a profile with negative values (a difference) cannot be drawn")
    return prune(profile, MAX_SAMPLES)


def _whole(profile: Profile, title: str, columns: Columns, *, compared: bool) -> dict[str, Any]:
    about = dict(profile.about)
    command = clean(about.pop("command", ""))
    return {
        "version": VERSION,
        "mode": "diff" if compared else "profile",
        "title": clean(title) or command or "gpumemprof",
        "command": command,
        "recorded": _recorded(profile),
        "about": [[clean(name), clean(text)] for name, text in sorted(about.items())],
        "view": gpu_only(profile).held_type,
        "types": list(TYPE_NAMES),
        "losses": [clean(sentence) for sentence in lost(profile.completeness)],
        "notices": [clean(sentence) for sentence in normal(profile.completeness)],
        "hints": list(hints(profile)),
        "origins": list(ORIGINS),
        "pinned": PINNED_KIND,
        "processes": [_process(process) for process in profile.processes],
        "failures": _failures(profile, columns),
        "failed": len(profile.failures),
        "timeline": timeline(profile, columns),
        "growth": growing(profile, columns),
        **columns.as_json(compared=compared),
    }


def _recorded(profile: Profile) -> str:
    return units.recorded(profile.time_ns, profile.duration_ns)


def _process(process: ProcessInfo) -> dict[str, Any]:
    driver = process.driver
    return {
        "name": clean(f"{process.comm} ({process.pid})"),
        "command": clean(process.command),
        "state": clean(process_state(process)),
        "in_use": process.in_use,
        "peak": process.peak,
        "pinned_in_use": process.pinned_in_use,
        "pinned_peak": process.pinned_peak,
        "driver": driver,
        "not_tracked": None if driver is None else driver - process.in_use,
    }


def _failures(profile: Profile, columns: Columns) -> list[dict[str, Any]]:
    """One for each place, with the numbers of its newest one."""
    groups: dict[tuple[Labels, int, Stack], list[Failure]] = {}
    for failure in profile.failures:
        groups.setdefault((failure.labels, failure.error, failure.stack), []).append(failure)
    return [
        _failure(max(same, key=lambda one: one.time_ns), len(same), profile, columns)
        for same in list(groups.values())[:MAX_FAILURES]
    ]


def _failure(failure: Failure, times: int, profile: Profile, columns: Columns) -> dict[str, Any]:
    call = label(failure.labels, "call") or "an allocation"
    name, meaning = cuda_errors.name(failure.error, call), cuda_errors.meaning(failure.error)
    live = failure.live
    return {
        "call": clean(call),
        "error": f"error {failure.error}"
        + (f" {name}" if name else "")
        + f": {meaning or 'unknown'}",
        "where": clean(", ".join(part for part in describe(failure.labels) if part != call)),
        "times": times,
        "when": since_start(failure, profile),
        "requested": failure.requested,
        "free": failure.free,
        "total": failure.total,
        "in_use": failure.in_use,
        "mismatch": mismatch(failure, profile),
        "node": columns.path(failure.stack)[0],
        "live": {"sample": [index for index, _ in live], "bytes": [size for _, size in live]},
        "live_omitted": failure.live_omitted,
    }
