"""Memory over time for the page: what each process held of each kind on each device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from gpumemprof.profile.merge import label
from gpumemprof.profile.model import Failure, Labels, Profile, Series
from gpumemprof.report import cuda_errors, units
from gpumemprof.report.html.columns import Columns

MAX_SERIES = 500
"""Those with the highest peaks."""
MAX_MARKS = 1_000

Since: TypeAlias = Callable[[int], int]


def timeline(profile: Profile, columns: Columns) -> dict[str, Any] | None:
    """The part ``timeline`` of the data; None where the profile does not tell."""
    told = [series for series in profile.series if series.points]
    if not told:
        return None
    since = since_start(profile)
    told.sort(key=lambda series: -series.peak[1])
    return {
        "duration": since(profile.time_ns + profile.duration_ns),
        "series": [_series(series, columns, since) for series in told[:MAX_SERIES]],
        "left_out": len(told[MAX_SERIES:]),
        "marks": [_mark(failure, columns, since) for failure in profile.failures[:MAX_MARKS]],
    }


def since_start(profile: Profile) -> Since:
    """Wall clock to microseconds from the start, within the recording."""

    def since(time_ns: int) -> int:
        return min(max(time_ns - profile.time_ns, 0), max(profile.duration_ns, 0)) // 1000

    return since


def _series(series: Series, columns: Columns, since: Since) -> dict[str, Any]:
    return {
        "labels": columns.labels(series.labels),
        "times": [since(time_ns) for time_ns, _ in series.points],
        "values": [size for _, size in series.points],
    }


def _mark(failure: Failure, columns: Columns, since: Since) -> dict[str, Any]:
    return {
        "labels": columns.labels(failure.labels),
        "time": since(failure.time_ns),
        "text": _words(failure.labels, failure.error, failure.requested),
    }


def _words(labels: Labels, error: int, requested: int) -> str:
    call = label(labels, "call") or "an allocation"
    meaning = cuda_errors.meaning(error) or f"error {error}"
    return f"{call} of {units.size(requested)} failed: {meaning}"
