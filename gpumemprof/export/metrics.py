"""The table of metrics: what the agent tells Prometheus, and where each number comes from.

Names have base units and, for what only grows, ``_total``. Labels: docs/metrics.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from gpumemprof import __version__
from gpumemprof.export import metric_labels
from gpumemprof.export.metric_cap import ToldMemory
from gpumemprof.export.metric_labels import FAILURE_LABELS, MEMORY_LABELS
from gpumemprof.export.model import AgentView, PushStatus
from gpumemprof.export.pyroscope.client import Result
from gpumemprof.profile.completeness import LOST, NORMAL

Sample = tuple[tuple[str, ...], float]
"""Values of the labels, and the number."""


class Scrape(NamedTuple):
    """What one answer to Prometheus is made from. ``push``: None where nothing is pushed."""

    view: AgentView
    told: ToldMemory
    push: PushStatus | None


@dataclass(frozen=True, slots=True)
class Metric:
    """One row. ``name`` as it is stored, with ``_total`` or ``_info``."""

    name: str
    type: Literal["gauge", "counter", "info"]
    help: str
    labels: tuple[str, ...]
    samples: Callable[[Scrape], Iterable[Sample]]


def _memory(name: str, type_: Literal["gauge", "counter"], help_: str, field: str) -> Metric:
    return Metric(
        name,
        type_,
        help_,
        MEMORY_LABELS,
        lambda scrape: [(key, getattr(use, field)) for key, use in scrape.told.memory.items()],
    )


_TOLD_APART = frozenset(
    {"events", "stacks", "libraries_not_probed", "push_failed", "owners_overflowed"}
)
"""Counters that have a metric of their own."""
_UNSYMBOLISED = "frames_without_symbol"


def _lost(scrape: Scrape) -> Iterable[Sample]:
    """Every cause, also those that did not happen; a counter that no table knows is a loss."""
    counters = scrape.view.counters
    causes = dict.fromkeys(LOST, 0) | {n: c for n, c in counters.items() if n not in NORMAL}
    return metric_labels.by_name(
        {name: count for name, count in causes.items() if name not in _TOLD_APART}, limit=128
    )


def _noted(scrape: Scrape) -> Iterable[Sample]:
    names = NORMAL.keys() - _TOLD_APART - {_UNSYMBOLISED}
    return metric_labels.by_name({name: scrape.view.counters.get(name, 0) for name in names})


def _counter(name: str) -> Callable[[Scrape], Iterable[Sample]]:
    return lambda scrape: [((), scrape.view.counters.get(name, 0))]


_PUSHES = dict.fromkeys(
    (
        *("delivered", "rejected", "too_old", "queue_full"),
        *("discarded", "shutdown", "unknown", "broken", "empty"),
    ),
    0,
)
"""How a push can end (export/pyroscope/pusher.py): each is there before it happens."""
_ATTEMPTS = dict.fromkeys((result.value for result in Result), 0)

_ABOUT = ("version", "loader", "attach", "kernel")


def _about(scrape: Scrape) -> Iterable[Sample]:
    about = {"version": __version__, **scrape.view.about}
    return [(tuple(metric_labels.value(about.get(name, "")) for name in _ABOUT), 1)]


def _of_push(samples: Callable[[PushStatus], Iterable[Sample]]) -> Callable[[Scrape], list[Sample]]:
    return lambda scrape: list(samples(scrape.push)) if scrape.push else []


MEMORY_METRICS: tuple[Metric, ...] = (
    _memory(
        "gpumemprof_memory_in_use_bytes",
        "gauge",
        "Bytes allocated through the CUDA libraries and not freed yet.",
        "in_use",
    ),
    _memory(
        "gpumemprof_memory_peak_bytes",
        "gauge",
        "Most bytes in use at once since the container was first seen, exact at every event.",
        "peak",
    ),
    _memory(
        "gpumemprof_memory_allocated_bytes_total",
        "counter",
        "Bytes obtained by allocating calls.",
        "allocated_bytes",
    ),
    _memory(
        "gpumemprof_memory_freed_bytes_total",
        "counter",
        "Bytes given back by freeing calls and by the ends of contexts and processes.",
        "freed_bytes",
    ),
    _memory(
        "gpumemprof_allocations_total", "counter", "Allocating calls that succeeded.", "allocations"
    ),
    _memory("gpumemprof_frees_total", "counter", "Allocations that were freed.", "frees"),
)
"""One series of each for every label set: what the limit of series is about."""

METRICS: tuple[Metric, ...] = (
    *MEMORY_METRICS,
    Metric(
        "gpumemprof_allocation_failures_total",
        "counter",
        "Allocating calls that failed, by CUDA error (2: out of memory).",
        FAILURE_LABELS,
        lambda scrape: scrape.told.failures.items(),
    ),
    # The agent itself. Each has the label node too.
    Metric(
        "gpumemprof_agent_info",
        "info",
        "Version of the agent, how it loads and attaches its probes, and the kernel.",
        _ABOUT,
        _about,
    ),
    Metric(
        "gpumemprof_agent_snapshot_timestamp_seconds",
        "gauge",
        "When the figures of this scrape were taken, in seconds since the epoch.",
        (),
        lambda scrape: [((), scrape.view.time_ns / 1e9)],
    ),
    Metric(
        "gpumemprof_agent_events_received_total",
        "counter",
        "Events that the probes recorded: calls, and starts and ends of processes.",
        (),
        _counter("events"),
    ),
    Metric(
        "gpumemprof_agent_stacks_received_total",
        "counter",
        "Stacks that the probes recorded.",
        (),
        _counter("stacks"),
    ),
    Metric(
        "gpumemprof_agent_lost_total",
        "counter",
        "What was lost, cut or not understood, by cause; all zero means complete.",
        ("cause",),
        _lost,
    ),
    Metric(
        "gpumemprof_agent_noted_total",
        "counter",
        "What happened without a loss, by what it was.",
        ("what",),
        _noted,
    ),
    Metric(
        "gpumemprof_agent_frames_unsymbolised_total",
        "counter",
        "Native frames without a symbol, shown as module and address.",
        (),
        _counter(_UNSYMBOLISED),
    ),
    Metric(
        "gpumemprof_agent_processes",
        "gauge",
        "Processes that use CUDA, by state: on, off, or held until their pod is known.",
        ("state",),
        lambda scrape: metric_labels.by_name(scrape.view.processes),
    ),
    Metric(
        "gpumemprof_agent_attached_libraries",
        "gauge",
        "Library files with probes, by kind.",
        ("library",),
        lambda scrape: metric_labels.by_name(scrape.view.libraries),
    ),
    Metric(
        "gpumemprof_agent_libraries_not_probed",
        "gauge",
        "Library files that could not be probed: their calls are not seen.",
        (),
        lambda scrape: [((), scrape.view.libraries_not_probed)],
    ),
    Metric(
        "gpumemprof_agent_container_overflows_total",
        "counter",
        "Processes that were not recorded: their container was beyond the agent's limit.",
        (),
        lambda scrape: [((), scrape.view.owners_overflowed)],
    ),
    Metric(
        "gpumemprof_agent_series_omitted",
        "gauge",
        "Label sets of memory and of failures that are not told now, for the limit of series.",
        ("family",),
        lambda scrape: [
            (("failures",), scrape.told.omitted_failures),
            (("memory",), scrape.told.omitted_memory),
        ],
    ),
    Metric(
        "gpumemprof_agent_memory_omitted_bytes",
        "gauge",
        "Bytes in use in the label sets that are not told.",
        (),
        lambda scrape: [((), scrape.told.omitted_bytes)],
    ),
    Metric(
        "gpumemprof_agent_api_up",
        "gauge",
        "Whether a watch of the Kubernetes API is up to date (1) or not (0).",
        ("watch",),
        lambda scrape: metric_labels.by_name({k: int(up) for k, up in scrape.view.api.items()}),
    ),
    Metric(
        "gpumemprof_agent_api_errors_total",
        "counter",
        "Requests to the Kubernetes API that failed, by watch.",
        ("watch",),
        lambda scrape: metric_labels.by_name(
            dict.fromkeys(scrape.view.api, 0) | dict(scrape.view.api_errors)
        ),
    ),
    Metric(
        "gpumemprof_agent_switch_rejected_total",
        "counter",
        "Values of the switch that were not understood: the last good ones stayed in force.",
        (),
        lambda scrape: [((), scrape.view.switch_rejected)],
    ),
    Metric(
        "gpumemprof_agent_pushes_total",
        "counter",
        "Pushes to Pyroscope by how they ended: delivered, or why they were given up.",
        ("result",),
        _of_push(lambda push: metric_labels.by_name({**_PUSHES, **push.results})),
    ),
    Metric(
        "gpumemprof_agent_push_attempts_total",
        "counter",
        "Requests to Pyroscope by what was answered; what is not delivered or rejected is retried.",
        ("result",),
        _of_push(lambda push: metric_labels.by_name({**_ATTEMPTS, **push.attempts})),
    ),
    Metric(
        "gpumemprof_agent_push_queue_length",
        "gauge",
        "Pushes that wait to be sent, or to be sent again.",
        (),
        _of_push(lambda push: [((), push.queued)]),
    ),
    Metric(
        "gpumemprof_agent_push_last_success_timestamp_seconds",
        "gauge",
        "When a push was accepted last, in seconds since the epoch; 0: never.",
        (),
        _of_push(lambda push: [((), (push.last_success_ns or 0) / 1e9)]),
    ),
)
"""Everything but the agent's own processor time and memory, which prometheus_client reads."""
