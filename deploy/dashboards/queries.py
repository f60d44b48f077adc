"""What the dashboards ask: PromQL and Pyroscope selectors, made from a few parts.

``$namespace``, ``$pod``, ``$workload`` and ``$node`` are the dashboards' variables, ``$__range``
and ``$__rate_interval`` are Grafana's.
"""

from __future__ import annotations

from gpumemprof.profile.model import SAMPLE_TYPES
from gpumemprof.profile.pprof_write import PERIOD_TYPE

# Memory

GPU = 'kind!="pinned_host"'
IN_USE, PEAK = "gpumemprof_memory_in_use_bytes", "gpumemprof_memory_peak_bytes"
FAILURES = "gpumemprof_allocation_failures_total"

PODS = 'namespace=~"$namespace",pod=~"$pod"'
"""The filter of the overview: any number of namespaces and pods."""
WORKLOAD = 'namespace="$namespace",workload="$workload",pod=~"$pod"'
"""The filter of the dashboard of one workload."""


def total(metric: str, filters: str, by: str = "", offset: str = "") -> str:
    """The sum of a gauge, by labels."""
    return _sum(f"{metric}{{{filters}}}{offset and f' offset {offset}'}", by)


def rate(metric: str, filters: str, by: str = "") -> str:
    """How fast a counter grows, per second."""
    return _sum(f"rate({metric}{{{filters}}}[$__rate_interval])", by)


def increase(metric: str, filters: str, by: str = "", over: str = "$__rate_interval") -> str:
    """By how much counters grew, for those that did."""
    return f"{_sum(f'increase({metric}{{{filters}}}[{over}])', by)} > 0"


def total_increase(metric: str, filters: str) -> str:
    """By how much counters grew over the time shown, in all; nothing where none did."""
    return f"sum({_new(metric, filters, '$__range')} > 0)"


def change(metric: str, filters: str, by: str, over: str = "$__range") -> str:
    """What a gauge gained (or lost) since then, from 0 where it was not there yet."""
    now = total(metric, filters, by)
    return f"{now} - ({total(metric, filters, by, over)} or 0 * {now})"


def happened(metric: str, filters: str, by: str, over: str = "$__range") -> str:
    """How often it happened. Unlike ``increase`` it counts what a new series begins with, and
    series that ended meanwhile: pods that run out of memory do not live long."""
    return f"{_sum(_new(metric, filters, over), by)} > 0"


def _new(metric: str, filters: str, over: str) -> str:
    last = f"last_over_time({metric}{{{filters}}}[{over}])"
    return f"({last} - {metric}{{{filters}}} offset {over} >= 0 or {last})"


def _sum(expression: str, by: str) -> str:
    return f"sum by ({by}) ({expression})" if by else f"sum({expression})"


# What DCGM's exporter tells of the GPUs, where it runs. Its memory is in MiB, and its label UUID is
# our gpu_uuid.


def dcgm(expression: str, filters: str) -> str:
    """Bytes of ``expression`` on each of the GPUs where the selected pods hold memory."""
    renamed = f'label_replace(({expression}) * 1048576, "gpu_uuid", "$1", "UUID", "(.+)")'
    holding = f"group by (gpu_uuid) ({IN_USE}{{{GPU},{filters}}})"
    return f"max by (gpu_uuid) ({renamed}) and on (gpu_uuid) {holding}"


DCGM_USED = "DCGM_FI_DEV_FB_USED"
DCGM_TOTAL = "DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE"


# Profiles

PROFILE_NAME = "memory"
PROFILE_TYPES = {
    name: ":".join((PROFILE_NAME, name, unit, *PERIOD_TYPE)) for name, unit in SAMPLE_TYPES
}
"""Sample type → the id that Pyroscope gives it."""

SERVICE = "gpu/$namespace/$workload"
PINNED_SERVICE = "pinned_host/$namespace/$workload"
OF_PODS = 'pod=~"${pod:regex}"'
"""Which pods of the service."""


def service_of_each_workload(filters: str) -> str:
    """A query whose results have the label service_name, as profiles have it; those that hold most
    come first. Exactly one service has to be asked for: Pyroscope 2.0 finds new profiles by nothing
    else for the first minute."""
    marked = f'label_replace({IN_USE}{{{GPU},namespace!="",{filters}}}, "prefix", "gpu", "", "")'
    named = f'label_join({marked}, "service_name", "/", "prefix", "namespace", "workload")'
    return f"sort_desc(sum by (service_name) ({named}))"
