"""Slow leaks for the page: stacks whose memory rose steadily while they were recorded."""

from __future__ import annotations

from typing import Any

from gpumemprof.profile.growth import Growth, growth_within
from gpumemprof.profile.model import Profile
from gpumemprof.report.functions import owner_index
from gpumemprof.report.html.columns import Columns
from gpumemprof.report.html.timeline import Since, since_start

MAX_GROWING = 100
"""The fastest ones."""


def growing(profile: Profile, columns: Columns) -> dict[str, Any]:
    """The part ``growth`` of the data."""
    found = growth_within(profile)
    since = since_start(profile)
    return {
        "stacks": [_row(each, columns, since) for each in found[:MAX_GROWING]],
        "left_out": len(found[MAX_GROWING:]),
    }


def _row(each: Growth, columns: Columns, since: Since) -> dict[str, Any]:
    path = columns.path(each.stack)
    trend = each.trend
    steps = len(trend.points) - 1
    return {
        "labels": columns.labels(each.labels),
        "node": path[0],
        "owner": path[owner_index(each.stack) or 0],
        "per_minute": round(trend.bytes_per_minute),
        "grown": trend.grown,
        "rising": round(trend.rising * steps),
        "steps": steps,
        "times": [since(time_ns) for time_ns, _ in trend.points],
        "values": [size for _, size in trend.points],
    }
