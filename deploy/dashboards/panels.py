"""The kinds of panels that the dashboards are made of, over Grafana's own builders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from grafana_foundation_sdk.builders import bargauge, dashboard, stat, table, text, timeseries
from grafana_foundation_sdk.builders.common import (
    ReduceDataOptions,
    StackingConfig,
    VizLegendOptions,
    VizTooltipOptions,
)
from grafana_foundation_sdk.builders.grafanapyroscope import Dataquery as ProfileQuery
from grafana_foundation_sdk.builders.prometheus import Dataquery as PrometheusQuery
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.common import (
    BigValueGraphMode,
    GraphDrawStyle,
    LegendDisplayMode,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from deploy.dashboards.queries import PROFILE_TYPES

PROMETHEUS = DataSourceRef(type_val="prometheus", uid="${prometheus}")
PYROSCOPE = DataSourceRef(type_val="grafana-pyroscope-datasource", uid="${pyroscope}")

SNAPSHOT_WINDOW = "15s"
"""The agent's interval: exactly one snapshot is in such a window."""
SNAPSHOT_SHIFT = "5s"
"""How far back it ends, so that the last snapshot has arrived."""
MAX_NODES = 16384

TAG = "gpumemprof"
BYTES, COUNT, SECONDS = "bytes", "short", "s"


AnyPanel: TypeAlias = Builder[models.Panel]


class Query(NamedTuple):
    """One query of a panel, and how its series are called (``{{label}}``)."""

    expression: str
    legend: str = ""


def new_dashboard(uid: str, title: str, description: str) -> dashboard.Dashboard:
    """A dashboard with links to the others and a variable for its Prometheus."""
    return (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags([TAG])
        .time("now-1h", "now")
        .refresh("15s")
        .timezone("browser")
        .readonly()
        .link(
            dashboard.DashboardLink("gpumemprof")
            .type(DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .keep_time(True)
            .include_vars(True)
        )
        .with_variable(
            dashboard.DatasourceVariable("prometheus").label("Prometheus").type("prometheus")
        )
    )


def pyroscope_variable() -> dashboard.DatasourceVariable:
    """Which Pyroscope the flame graphs are from."""
    variable = dashboard.DatasourceVariable("pyroscope").label("Pyroscope")
    return variable.type("grafana-pyroscope-datasource")


def variable(name: str, query: str, *, many: bool = True) -> dashboard.QueryVariable:
    """A variable filled from Prometheus. ``many``: any number of values, at first all of them;
    ``All`` matches series without the label too (programs outside of pods)."""
    made = (
        dashboard.QueryVariable(name)
        .label(name)
        .datasource(PROMETHEUS)
        .query(query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(many)
        .include_all(many)
    )
    return made.sort(VariableSort.ALPHABETICAL_ASC).all_value(".*") if many else made


def _query(query: Query, ref: int, kind: str = "range") -> PrometheusQuery:
    made = PrometheusQuery().expr(query.expression).ref_id(chr(ord("A") + ref))
    made = made.datasource(PROMETHEUS)
    if kind == "range":
        return made.range().legend_format(query.legend)
    if kind == "instant":
        return made.instant().legend_format(query.legend)
    return made.instant().format(PromQueryFormat.TABLE)


def number(title: str, query: str, unit: str, description: str = "") -> stat.Panel:
    """One number, with its course behind it."""
    return (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(PROMETHEUS)
        .with_target(_query(Query(query), 0))
        .reduce_options(ReduceDataOptions().calcs(["lastNotNull"]))
        .graph_mode(BigValueGraphMode.AREA)
        .unit(unit)
        .no_value("0")
        .height(4)
        .span(6)
    )


def graph(
    title: str,
    queries: Sequence[Query],
    unit: str,
    description: str = "",
    *,
    stacked: bool = False,
    bars: bool = False,
    lines: Sequence[int] = (),
) -> timeseries.Panel:
    """Series over time. ``lines``: which of the queries are lines above the stack, not in it."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(PROMETHEUS)
        .targets([_query(query, index) for index, query in enumerate(queries)])
        .unit(unit)
        .min(0)
        .legend(
            VizLegendOptions()
            .display_mode(LegendDisplayMode.TABLE)
            .calcs(["lastNotNull", "max"])
            .show_legend(True)
        )
        .tooltip(VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
        .fill_opacity(30 if stacked or bars else 0)
        .height(10)
        .span(12)
    )
    if bars:
        panel = panel.draw_style(GraphDrawStyle.BARS)
    if stacked:
        panel = panel.stacking(StackingConfig().mode(StackingMode.NORMAL).group("A"))
    for index in lines:
        panel = panel.override_by_query(
            chr(ord("A") + index),
            [
                DynamicConfigValue("custom.stacking", {"mode": "none", "group": "B"}),
                DynamicConfigValue("custom.fillOpacity", 0),
                DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [10, 10]}),
            ],
        )
    return panel


def rows(
    title: str,
    columns: Sequence[tuple[str, str, str]],
    description: str = "",
) -> table.Panel:
    """A table. ``columns``: (name, query, unit); the rows are joined by the labels of the queries,
    the largest of the first column on top."""
    panel = (
        table.Panel()
        .title(title)
        .description(description)
        .datasource(PROMETHEUS)
        .targets([_query(Query(q), index, "table") for index, (_, q, _) in enumerate(columns)])
        .height(10)
        .span(12)
    )
    names = {}
    for index, (name, _, unit) in enumerate(columns):
        value = "Value" if len(columns) == 1 else f"Value #{chr(ord('A') + index)}"
        names[value] = name
        panel = panel.override_by_name(name, [DynamicConfigValue("unit", unit)])
    if len(columns) > 1:
        panel = panel.with_transformation(DataTransformerConfig(id_val="merge", options={}))
    organize = {"excludeByName": {"Time": True}, "renameByName": names, "indexByName": {}}
    sort = {"fields": {}, "sort": [{"field": columns[0][0], "desc": True}]}
    return panel.with_transformation(
        DataTransformerConfig(id_val="organize", options=organize)
    ).with_transformation(DataTransformerConfig(id_val="sortBy", options=sort))


def trends(title: str, query: str, unit: str, description: str = "") -> table.Panel:
    """A table with one small graph a row."""
    return (
        table.Panel()
        .title(title)
        .description(description)
        .datasource(PROMETHEUS)
        .with_target(_query(Query(query), 0))
        .with_transformation(DataTransformerConfig(id_val="timeSeriesTable", options={}))
        .override_by_name(
            "Trend #A",
            [
                DynamicConfigValue("custom.cellOptions", {"type": "sparkline"}),
                DynamicConfigValue("unit", unit),
                DynamicConfigValue("displayName", "trend"),
            ],
        )
        .height(10)
        .span(12)
    )


def ranking(title: str, query: Query, unit: str, description: str = "") -> bargauge.Panel:
    """Bars, one a series, as of now."""
    return (
        bargauge.Panel()
        .title(title)
        .description(description)
        .datasource(PROMETHEUS)
        .with_target(_query(query, 0, "instant"))
        .reduce_options(ReduceDataOptions().calcs(["lastNotNull"]))
        .orientation(VizOrientation.HORIZONTAL)
        .unit(unit)
        .min(0)
        .height(10)
        .span(12)
    )


def flame_graph(
    title: str, sample_type: str, service: str, filters: str = "", description: str = ""
) -> dashboard.Panel:
    """The flame graph of one service. What is held is that of one snapshot; what was allocated is
    summed over the dashboard's time. The one service is asked for by its whole name."""
    selector = ",".join(part for part in (f'service_name="{service}"', filters) if part)
    panel = (
        dashboard.Panel()
        .type("flamegraph")
        .title(title)
        .description(description)
        .datasource(PYROSCOPE)
        .with_target(
            ProfileQuery()
            .query_type("profile")
            .profile_type_id(PROFILE_TYPES[sample_type])
            .label_selector(f"{{{selector}}}")
            .group_by([])
            .span_selector([])
            .max_nodes(MAX_NODES)
            .ref_id("A")
            .datasource(PYROSCOPE)
        )
        .height(16)
        .span(24)
    )
    if sample_type.startswith("alloc_"):
        return panel
    return panel.time_from(SNAPSHOT_WINDOW).time_shift(SNAPSHOT_SHIFT)


def note(markdown: str) -> text.Panel:
    """A line of text."""
    return text.Panel().content(markdown).transparent(True).height(2).span(24)
