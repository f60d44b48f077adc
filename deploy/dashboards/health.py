"""The agents themselves: is what they tell complete, and does it arrive."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from deploy.dashboards import queries as q
from deploy.dashboards.panels import (
    BYTES,
    COUNT,
    SECONDS,
    AnyPanel,
    Query,
    graph,
    new_dashboard,
    note,
    number,
    rows,
    variable,
)

_PREFIX = "gpumemprof_agent_"
_NODES = 'node=~"$node"'


def build() -> dashboard.Dashboard:
    """The dashboard of the agents."""
    made = new_dashboard(
        "gpumemprof-agent",
        "GPU memory / Agents",
        "Whether the agents see everything, and whether it arrives.",
    ).with_variable(variable("node", f"label_values({_PREFIX}info, node)"))
    made = made.with_panel(
        note(
            "All zero in **lost** means the figures are complete. What each cause means: "
            "docs/metrics.md."
        )
    )
    for section, panels in (
        ("Agents", _agents()),
        ("Completeness", _completeness()),
        ("What is probed", _probed()),
        ("Kubernetes and Pyroscope", _outside()),
        ("Cost and limits", _cost()),
    ):
        made = made.with_row(dashboard.Row(section))
        for panel in panels:
            made = made.with_panel(panel)
    return made


def _metric(name: str) -> str:
    return _PREFIX + name


def _agents() -> list[AnyPanel]:
    age = f"time() - max by (node) ({_metric('snapshot_timestamp_seconds')}{{{_NODES}}})"
    about = "node, version, loader, attach, kernel"
    return [
        number("Agents", f"count({_metric('info')}{{{_NODES}}})", COUNT),
        number(
            "Lost, over the time shown",
            q.total_increase(_metric("lost_total"), _NODES),
            COUNT,
        ),
        number(
            "Watches of the API that are stale",
            f"count({_metric('api_up')}{{{_NODES}}} == 0)",
            COUNT,
        ),
        number(
            "Pushes given up, over the time shown",
            q.total_increase(_metric("pushes_total"), f'{_NODES},result!~"delivered|empty"'),
            COUNT,
        ),
        rows("Versions", [("agents", q.total(_metric("info"), _NODES, about), COUNT)]),
        graph("Age of the figures", [Query(age, "{{node}}")], SECONDS),
    ]


def _completeness() -> list[AnyPanel]:
    lost = _metric("lost_total")
    cut = f'{_NODES},cause=~"stacks_truncated|py_truncated|unwind_failed"'
    return [
        graph(
            "Events received, per second",
            [Query(q.rate(_metric("events_received_total"), _NODES, "node"), "{{node}}")],
            COUNT,
        ),
        graph(
            "Lost, by cause",
            [Query(q.increase(lost, _NODES, "cause"), "{{cause}}")],
            COUNT,
            stacked=True,
            bars=True,
        ),
        rows(
            "Lost over the time shown, by node and cause",
            [("lost", q.happened(lost, _NODES, "node, cause"), COUNT)],
        ),
        graph(
            "Stacks that end early, frames without a symbol",
            [
                Query(q.increase(lost, cut, "cause"), "{{cause}}"),
                Query(
                    q.increase(_metric("frames_unsymbolised_total"), _NODES, "node"),
                    "unsymbolised on {{node}}",
                ),
            ],
            COUNT,
        ),
    ]


def _probed() -> list[AnyPanel]:
    return [
        graph(
            "Processes that use CUDA, by state",
            [Query(q.total(_metric("processes"), _NODES, "state"), "{{state}}")],
            COUNT,
            "on: recorded. off: in a namespace that is off. held: its pod is not known yet.",
            stacked=True,
        ),
        graph(
            "Libraries with probes",
            [
                Query(q.total(_metric("attached_libraries"), _NODES, "library"), "{{library}}"),
                Query(q.total(_metric("libraries_not_probed"), _NODES), "could not be probed"),
            ],
            COUNT,
        ),
    ]


def _outside() -> list[AnyPanel]:
    success = f"{_metric('push_last_success_timestamp_seconds')}{{{_NODES}}} > 0"
    return [
        graph(
            "Watches of the API (1: up to date)",
            [
                Query(
                    f"min by (node, watch) ({_metric('api_up')}{{{_NODES}}})", "{{node}} {{watch}}"
                )
            ],
            COUNT,
        ),
        graph(
            "Errors of the API, and values of the switch not understood",
            [
                Query(
                    q.increase(_metric("api_errors_total"), _NODES, "node, watch"),
                    "{{node}} {{watch}}",
                ),
                Query(
                    q.increase(_metric("switch_rejected_total"), _NODES, "node"),
                    "{{node}} switch",
                ),
            ],
            COUNT,
        ),
        graph(
            "Pushes per second, by how they ended",
            [Query(q.rate(_metric("pushes_total"), _NODES, "result"), "{{result}}")],
            COUNT,
        ),
        graph(
            "Requests to Pyroscope per second, by what was answered",
            [Query(q.rate(_metric("push_attempts_total"), _NODES, "result"), "{{result}}")],
            COUNT,
        ),
        graph(
            "Pushes that wait",
            [Query(q.total(_metric("push_queue_length"), _NODES, "node"), "{{node}}")],
            COUNT,
        ),
        graph(
            "Since the last accepted push",
            [Query(f"time() - max by (node) ({success})", "{{node}}")],
            SECONDS,
            "Nothing is pushed, and nothing is wrong, where no program uses CUDA.",
        ),
    ]


def _cost() -> list[AnyPanel]:
    overflowed = q.increase(_metric("container_overflows_total"), _NODES, "node")
    return [
        graph(
            "Processors used",
            [Query(q.rate(_metric("process_cpu_seconds_total"), _NODES, "node"), "{{node}}")],
            COUNT,
        ),
        graph(
            "Resident memory",
            [Query(q.total(_metric("process_resident_memory_bytes"), _NODES, "node"), "{{node}}")],
            BYTES,
        ),
        graph(
            "Beyond the limits",
            [
                Query(
                    f"{q.total(_metric('series_omitted'), _NODES, 'node, family')} > 0",
                    "{{node}} series of {{family}}",
                ),
                Query(overflowed, "{{node}} processes"),
            ],
            COUNT,
        ),
        graph(
            "Bytes in use that are not told, for the limit of series",
            [Query(q.total(_metric("memory_omitted_bytes"), _NODES, "node"), "{{node}}")],
            BYTES,
        ),
    ]
