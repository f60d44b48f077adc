"""Who holds GPU memory, whose grows, and what failed: any number of namespaces and pods."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard, table, timeseries
from grafana_foundation_sdk.models.dashboard import VariableSort

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
    ranking,
    rows,
    trends,
    variable,
)

_HELD = f"{q.GPU},{q.PODS}"
_BY_POD = "namespace, workload, pod"


def build() -> dashboard.Dashboard:
    """The overview."""
    made = new_dashboard(
        "gpumemprof-overview",
        "GPU memory / Overview",
        "Which pods hold GPU memory, and which functions in them.",
    )
    service = variable("service", "", many=False).label("flame graph of")
    made = (
        made.with_variable(pyroscope_variable())
        .with_variable(variable("namespace", f"label_values({q.IN_USE}, namespace)"))
        .with_variable(variable("pod", f'label_values({q.IN_USE}{{namespace=~"$namespace"}}, pod)'))
        .with_variable(
            service.query(f"query_result({q.service_of_each_workload(q.PODS)})")
            .regex('/service_name="([^"]+)"/')
            .sort(VariableSort.DISABLED)  # the one that holds most comes first
        )
    )
    for panel in _numbers():
        made = made.with_panel(panel)
    made = (
        made.with_row(dashboard.Row("Pods"))
        .with_panel(_pods().span(14))
        .with_panel(
            trends(
                "In use over time, each pod",
                q.total(q.IN_USE, _HELD, "namespace, pod"),
                BYTES,
            ).span(10)
        )
    )
    made = (
        made.with_row(dashboard.Row("Pressure, and who makes it"))
        .with_panel(
            note(
                "Flame graph: **bytes in use** at the last snapshot, of the service chosen above; "
                "right while the time range ends in `now` (fixed ranges add snapshots up)."
            )
        )
        .with_panel(_pressure().height(16))
        .with_panel(
            flame_graph(
                "In use by function: $service",
                "inuse_space",
                "$service",
                q.OF_PODS,
                description="Width is bytes in use. One snapshot: the window is as long as the "
                "agents' interval and ends a little before now.",
            ).span(12)
        )
    )
    made = (
        made.with_row(dashboard.Row("Failed allocations"))
        .with_panel(_failures_over_time())
        .with_panel(_failures())
    )
    return (
        made.with_row(dashboard.Row("Growth"))
        .with_panel(
            ranking(
                "Grown most over the time shown",
                Query(
                    f"topk(10, {q.change(q.IN_USE, _HELD, _BY_POD)} > 0)", "{{namespace}}/{{pod}}"
                ),
                BYTES,
                "Bytes in use now, less those at the beginning of the time shown.",
            )
        )
        .with_panel(_gpus())
        .with_panel(
            note(
                "Flame graph: **bytes allocated** over the time shown, freed or not; right for any "
                "time range."
            )
        )
        .with_panel(
            flame_graph("Allocated by function: $service", "alloc_space", "$service", q.OF_PODS)
        )
    )


def _numbers() -> list[AnyPanel]:
    return [
        number("GPU memory in use", q.total(q.IN_USE, _HELD), BYTES),
        number(
            "Pods that hold GPU memory",
            f"count(sum by (namespace, pod) ({q.IN_USE}{{{_HELD}}}) > 0)",
            COUNT,
        ),
        number(
            "Failed allocations, over the time shown",
            f"sum({q.happened(q.FAILURES, q.PODS, 'namespace, pod, error, code')})",
            COUNT,
        ),
        number("Pinned host memory", q.total(q.IN_USE, f'kind="pinned_host",{q.PODS}'), BYTES),
    ]


def _pods() -> table.Panel:
    return rows(
        "Pods",
        [
            ("in use", q.total(q.IN_USE, _HELD, _BY_POD), BYTES),
            ("peak", q.total(q.PEAK, _HELD, _BY_POD), BYTES),
            ("change", q.change(q.IN_USE, _HELD, _BY_POD), BYTES),
            ("failed", q.happened(q.FAILURES, _HELD, _BY_POD), COUNT),
        ],
        "peak: of each container, kind and GPU, added up: at most this at one time. "
        "change, failed: over the time shown.",
    )


def _pressure() -> timeseries.Panel:
    return graph(
        "GPU memory in use, by pod",
        [
            Query(q.total(q.IN_USE, _HELD, "namespace, pod"), "{{namespace}}/{{pod}}"),
            Query(f"sum({q.dcgm(q.DCGM_TOTAL, q.PODS)})", "total of these GPUs (DCGM)"),
            Query(f"sum({q.dcgm(q.DCGM_USED, q.PODS)})", "used, with contexts (DCGM)"),
        ],
        BYTES,
        "Dashed: what DCGM's exporter tells of the GPUs where these pods hold memory. Used is more "
        "than in use: contexts, code, and what was allocated before the agent came.",
        stacked=True,
        lines=(1, 2),
    )


def _failures_over_time() -> AnyPanel:
    by = "namespace, pod, error, code"
    return graph(
        "Failed allocations",
        [
            Query(
                q.increase(q.FAILURES, q.PODS, by),
                "{{namespace}}/{{pod}} {{error}} ({{code}})",
            )
        ],
        COUNT,
        stacked=True,
        bars=True,
    )


def _failures() -> AnyPanel:
    by = "namespace, workload, pod, container, kind, error, code"
    return rows(
        "Failed allocations over the time shown, with their error codes",
        [("failed", q.happened(q.FAILURES, q.PODS, by), COUNT)],
        "2: out of memory. Their stacks and what was live then: the agent's own page, or "
        "gpumemprof record.",
    )


def _gpus() -> AnyPanel:
    return rows(
        "GPUs",
        [
            ("in use", q.total(q.IN_USE, f'{_HELD},gpu_uuid!=""', "node, gpu, gpu_uuid"), BYTES),
            ("used (DCGM)", q.dcgm(q.DCGM_USED, q.PODS), BYTES),
            ("total (DCGM)", q.dcgm(q.DCGM_TOTAL, q.PODS), BYTES),
        ],
        "in use: by the selected pods, as gpumemprof counts. used: by everyone, contexts included.",
    )
