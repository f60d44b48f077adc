"""The report as JSON, for scripts.

Sizes are bytes, times ns since the epoch. The five values of a stack or function are an object
``{"alloc_objects", "alloc_space", "inuse_objects", "inuse_space", "peak_space"}``.

=====================  ======================================================================
``version``            of this schema: 1; new keys may come without a new version
``time_ns``            start of the recording
``duration_ns``
``about``              name -> text: command, versions, kernel
``complete``           whether nothing was lost
``completeness``       counter -> count
``losses``             a sentence for each counter that means a loss
``totals``             ``gpu`` and ``pinned_host``: the five values; never added up
``functions``          of GPU memory: ``name``, ``file``, ``line`` (0: not known), ``kind`` (python,
                       native, note), ``module``, ``total``, ``self``; by ``self`` in use
``pinned_functions``   the same of pinned host memory
``processes``          pid, comm, command, started, ended, end_reason, in_use, peak,
                       pinned_in_use, pinned_peak, driver, and ``not_tracked``: driver - in_use
``failures``           time_ns, labels, error, error_name, requested, free, total, in_use, stack
                       (frames from the leaf), ``live``: bytes, labels, stack; live_omitted
``series``             what each process held over time, of each kind on each device: labels,
                       ``points``: [time_ns, bytes from then on], ``peak``, ``peak_time_ns``
``growth``             stacks whose bytes in use rose steadily: labels, stack, ``bytes_per_minute``,
                       ``grown`` (bytes never given back), ``since_ns``, ``rising`` (share of steps
                       that did not fall), ``points``: [time_ns, bytes]
=====================  ======================================================================
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gpumemprof.profile.completeness import lost
from gpumemprof.profile.growth import Growth, growth_within
from gpumemprof.profile.merge import PINNED_KIND, gpu_only, label, of_kinds
from gpumemprof.profile.model import Failure, ProcessInfo, Profile, Series
from gpumemprof.report import cuda_errors
from gpumemprof.report.functions import FunctionRow, functions
from gpumemprof.stack.frames import Stack

VERSION = 1


def report(profile: Profile, sort: str = "inuse", limit: int | None = None) -> dict[str, Any]:
    """``profile`` as the value described above; at most ``limit`` functions of each group."""
    gpu, pinned = gpu_only(profile), of_kinds(profile, {PINNED_KIND})
    losses = lost(profile.completeness)
    return {
        "version": VERSION,
        "time_ns": profile.time_ns,
        "duration_ns": profile.duration_ns,
        "about": dict(profile.about),
        "complete": not losses,
        "completeness": dict(profile.completeness),
        "losses": losses,
        "totals": {"gpu": gpu.total._asdict(), PINNED_KIND: pinned.total._asdict()},
        "functions": [_function(row) for row in functions(gpu, sort)[:limit]],
        "pinned_functions": [_function(row) for row in functions(pinned, sort)[:limit]],
        "processes": [_process(process) for process in profile.processes],
        "failures": [_failure(failure, profile) for failure in profile.failures],
        "series": [_series(series) for series in profile.series],
        "growth": [growing(each) for each in growth_within(profile)],
    }


def _function(row: FunctionRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "file": row.file,
        "line": row.line,
        "kind": row.kind.value,
        "module": row.module,
        "total": row.total._asdict(),
        "self": row.self._asdict(),
    }


def _process(process: ProcessInfo) -> dict[str, Any]:
    driver = process.driver
    return asdict(process) | {"not_tracked": None if driver is None else driver - process.in_use}


def _series(series: Series) -> dict[str, Any]:
    when, most = series.peak
    return {
        "labels": dict(series.labels),
        "points": [list(point) for point in series.points],
        "peak": most,
        "peak_time_ns": when,
    }


def growing(each: Growth) -> dict[str, Any]:
    """One stack that grows."""
    trend = each.trend
    return {
        "labels": dict(each.labels),
        "stack": _stack(each.stack),
        "bytes_per_minute": trend.bytes_per_minute,
        "grown": trend.grown,
        "since_ns": trend.since_ns,
        "rising": trend.rising,
        "points": [list(point) for point in trend.points],
    }


def _failure(failure: Failure, profile: Profile) -> dict[str, Any]:
    call = label(failure.labels, "call") or ""
    live = [(profile.samples[index], size) for index, size in failure.live]
    return {
        "time_ns": failure.time_ns,
        "labels": dict(failure.labels),
        "error": failure.error,
        "error_name": cuda_errors.name(failure.error, call),
        "requested": failure.requested,
        "free": failure.free,
        "total": failure.total,
        "in_use": failure.in_use,
        "stack": _stack(failure.stack),
        "live": [
            {"bytes": size, "labels": dict(sample.labels), "stack": _stack(sample.stack)}
            for sample, size in live
        ],
        "live_omitted": failure.live_omitted,
    }


def _stack(stack: Stack) -> list[dict[str, Any]]:
    return [
        {
            "name": frame.name,
            "kind": frame.kind.value,
            "file": frame.file,
            "line": frame.line,
            "module": frame.module,
        }
        for frame in stack
    ]
