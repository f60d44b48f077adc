"""One workload of one namespace: what its pods hold, and by which functions."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from deploy.dashboards import queries as q
from deploy.dashboards.panels import (
    BYTES,
    COUNT,
    AnyPanel,
    Query,
    flame_graph,
    graph,
    new_dashboard,
    note,
    number,
    pyroscope_variable,
    rows,
    variable,
)

_HELD = f"{q.GPU},{q.WORKLOAD}"
_NAMESPACE = 'namespace="$namespace"'


def build() -> dashboard.Dashboard:
    """The dashboard of a workload."""
    made = new_dashboard(
        "gpumemprof-workload",
        "GPU memory / Workload",
        "What one workload holds, over time and by function.",
    )
    made = (
        made.with_variable(pyroscope_variable())
        .with_variable(variable("namespace", f"label_values({q.IN_USE}, namespace)", many=False))
        .with_variable(
            variable("workload", f"label_values({q.IN_USE}{{{_NAMESPACE}}}, workload)", many=False)
        )
        .with_variable(
            variable(
                "pod",
                f'label_values({q.IN_USE}{{{_NAMESPACE},workload="$workload"}}, pod)',
            )
        )
    )
    for panel in (*_numbers(), *_graphs()):
        made = made.with_panel(panel)
    made = made.with_row(dashboard.Row("By function")).with_panel(
        note(
            "**In use** and **peak** are those of the last snapshot: right while the time range "
            "ends in `now`; fixed ranges add snapshots up. **Allocated** is right for any range."
        )
    )
    for title, sample_type, service in (
        ("In use by function", "inuse_space", q.SERVICE),
        ("At the peak of each process, by function", "peak_space", q.SERVICE),
        ("Allocated over the time shown, by function", "alloc_space", q.SERVICE),
        ("Allocations over the time shown, by function", "alloc_objects", q.SERVICE),
        ("Pinned host memory in use, by function", "inuse_space", q.PINNED_SERVICE),
    ):
        made = made.with_panel(flame_graph(title, sample_type, service, q.OF_PODS))
    return made


def _numbers() -> list[AnyPanel]:
    return [
        number("In use", q.total(q.IN_USE, _HELD), BYTES),
        number(
            "Highest peak of one pod",
            f"max({q.total(q.PEAK, _HELD, 'pod')})",
            BYTES,
            "Peaks of a pod's containers, kinds and GPUs are added up: at most this at one time.",
        ),
        number(
            "Allocated per second",
            q.rate("gpumemprof_memory_allocated_bytes_total", _HELD),
            "Bps",
        ),
        number(
            "Failed allocations, over the time shown",
            f"sum({q.happened(q.FAILURES, q.WORKLOAD, 'pod, error, code')})",
            COUNT,
        ),
    ]


def _graphs() -> list[AnyPanel]:
    return [
        graph(
            "In use, by pod and container",
            [Query(q.total(q.IN_USE, _HELD, "pod, container"), "{{pod}} {{container}}")],
            BYTES,
            stacked=True,
        ),
        graph(
            "In use, by kind",
            [Query(q.total(q.IN_USE, q.WORKLOAD, "kind"), "{{kind}}")],
            BYTES,
            "Pinned host memory is not GPU memory: the two are never added up.",
        ),
        graph(
            "In use, by GPU",
            [Query(q.total(q.IN_USE, _HELD, "node, gpu"), "{{node}} GPU {{gpu}}")],
            BYTES,
        ),
        graph(
            "Allocated and freed, per second",
            [
                Query(q.rate("gpumemprof_memory_allocated_bytes_total", _HELD), "allocated"),
                Query(q.rate("gpumemprof_memory_freed_bytes_total", _HELD), "freed"),
            ],
            "Bps",
        ),
        graph(
            "Calls per second",
            [
                Query(q.rate("gpumemprof_allocations_total", _HELD), "allocations"),
                Query(q.rate("gpumemprof_frees_total", _HELD), "frees"),
            ],
            "ops",
        ),
        rows(
            "Failed allocations over the time shown",
            [
                (
                    "failed",
                    q.happened(q.FAILURES, q.WORKLOAD, "pod, container, kind, error, code"),
                    COUNT,
                )
            ],
        ),
    ]
