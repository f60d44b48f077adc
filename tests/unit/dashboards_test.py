"""The dashboards' JSON: current, and asking only for what is there."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpumemprof.export.metrics import METRICS
from gpumemprof.export.prometheus import PROCESS_METRICS
from gpumemprof.profile.model import Profile
from gpumemprof.profile.pprof_write import message_of

ROOT = Path(__file__).parents[2]
DIRECTORY = ROOT / "helm" / "gpumemprof" / "dashboards"
FILES = sorted(DIRECTORY.glob("*.json"))
DASHBOARDS: dict[str, dict[str, Any]] = {path.name: json.loads(path.read_text()) for path in FILES}

LABELS = {metric.name: {*metric.labels, "node"} for metric in METRICS} | {
    name: {"node"} for name in PROCESS_METRICS
}
GRAFANAS = {"__range", "__rate_interval"}

each_dashboard = pytest.mark.parametrize("name", DASHBOARDS)


def panels(name: str) -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARDS[name]["panels"] if panel["type"] != "row"]


def targets(name: str, kind: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for panel in panels(name):
        for target in panel.get("targets", []):
            if target["datasource"]["type"] == kind:
                yield panel, target


def promql(name: str) -> list[str]:
    return [target["expr"] for _, target in targets(name, "prometheus")]


def flame_graphs(name: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return list(targets(name, "grafana-pyroscope-datasource"))


def variables(name: str) -> dict[str, dict[str, Any]]:
    return {variable["name"]: variable for variable in DASHBOARDS[name]["templating"]["list"]}


def test_there_are_three() -> None:
    assert set(DASHBOARDS) == {
        "gpumemprof-overview.json",
        "gpumemprof-workload.json",
        "gpumemprof-agent.json",
    }
    assert all(f"{value['uid']}.json" == name for name, value in DASHBOARDS.items())


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Grafana's builders need Python 3.11")
def test_they_are_what_the_generator_makes() -> None:
    from deploy.dashboards.__main__ import texts

    assert texts() == {path.name: path.read_text() for path in FILES}, (
        "run python -m deploy.dashboards"
    )


@each_dashboard
def test_every_metric_asked_for_is_exported(name: str) -> None:
    queries = [*promql(name), *(str(v.get("query")) for v in variables(name).values())]
    used = {word for query in queries for word in re.findall(r"\bgpumemprof_\w+", query)}
    assert used
    assert used <= LABELS.keys()


@each_dashboard
def test_every_label_filtered_or_summed_by_is_on_the_metric(name: str) -> None:
    for query in promql(name):
        for metric, filters in re.findall(r"(gpumemprof_\w+)\{([^}]*)\}", query):
            filtered = set(re.findall(r"(\w+)(?:=~|!~|!=|=)", filters))
            assert filtered <= LABELS[metric], query
        metrics = re.findall(r"gpumemprof_\w+", query)
        known = set.union(*(LABELS[metric] for metric in metrics)) | {"UUID"}
        for by in re.findall(r"by \(([^)]*)\)", query):
            assert {label.strip() for label in by.split(",")} <= known, query


@each_dashboard
def test_series_are_called_by_labels_that_they_have(name: str) -> None:
    for _, target in targets(name, "prometheus"):
        legend = set(re.findall(r"\{\{(\w+)\}\}", target.get("legendFormat", "")))
        by = re.search(r"by \(([^)]*)\)", target["expr"])
        have = {label.strip() for label in by.group(1).split(",")} if by else set()
        assert legend <= have, target


@each_dashboard
def test_every_variable_is_defined_before_it_is_used(name: str) -> None:
    known = set(GRAFANAS)
    for variable in variables(name).values():
        # $1 is a group of a regular expression
        used = re.findall(r"\$\{?([a-z_]\w*)", json.dumps([variable.get("query")]))
        assert set(used) <= known, variable
        known.add(variable["name"])
    for panel in panels(name):
        used = re.findall(r"\$\{?([a-z_]\w*)", json.dumps(panel))
        assert set(used) <= known, panel["title"]


@each_dashboard
def test_no_data_source_of_someones_own_is_named(name: str) -> None:
    uids = set(re.findall(r'"uid": "([^"]+)"', json.dumps(DASHBOARDS[name]["panels"])))
    assert uids <= {"${prometheus}", "${pyroscope}"}
    kinds = {v["name"]: v["query"] for v in variables(name).values() if v["type"] == "datasource"}
    assert kinds["prometheus"] == "prometheus"
    if flame_graphs(name):
        assert kinds["pyroscope"] == "grafana-pyroscope-datasource"


@each_dashboard
def test_panels_do_not_lie_upon_each_other(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARDS[name]["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel.get("title")
        taken |= cells
    ids = [panel["id"] for panel in DASHBOARDS[name]["panels"]]
    assert len(set(ids)) == len(ids)


@each_dashboard
def test_queries_of_a_panel_have_names_of_their_own(name: str) -> None:
    for panel in panels(name):
        refs = [target["refId"] for target in panel.get("targets", [])]
        assert len(set(refs)) == len(refs), panel["title"]
        for override in panel.get("fieldConfig", {}).get("overrides", []):
            if override["matcher"]["id"] == "byFrameRefID":
                assert override["matcher"]["options"] in refs


# Flame graphs


def pyroscope_type_ids() -> set[str]:
    """The ids that Pyroscope gives what our encoder writes, pushed as ``memory``."""
    message = message_of(Profile((), 0, 0))
    text = list(message.string_table)
    period = (text[message.period_type.type], text[message.period_type.unit])
    return {
        ":".join(("memory", text[sample.type], text[sample.unit], *period))
        for sample in message.sample_type
    }


def test_flame_graphs_show_types_that_the_encoder_makes() -> None:
    used = {target["profileTypeId"] for name in DASHBOARDS for _, target in flame_graphs(name)}
    assert used <= pyroscope_type_ids()
    assert "memory:inuse_space:bytes:space:bytes" in used
    assert "memory:peak_space:bytes:space:bytes" in used
    assert "memory:alloc_space:bytes:space:bytes" in used


def test_what_is_held_is_read_from_exactly_one_snapshot() -> None:
    for name in DASHBOARDS:
        for panel, target in flame_graphs(name):
            window = (panel.get("timeFrom"), panel.get("timeShift"))
            held = re.match(r"memory:(inuse|peak)_", target["profileTypeId"])
            assert window == (("15s", "5s") if held else (None, None)), panel["title"]
            assert not panel.get("hideTimeOverride")


def test_flame_graphs_ask_for_one_service_by_its_whole_name() -> None:
    for name in DASHBOARDS:
        for _, target in flame_graphs(name):
            assert re.match(
                r'^\{service_name="(\$service|(gpu|pinned_host)/\$namespace/\$workload)"[,}]',
                target["labelSelector"],
            )
            assert target["maxNodes"] == 16384
            assert target["queryType"] == "profile"
            assert target["groupBy"] == target["spanSelector"] == []


def test_one_namespace_and_one_workload_make_one_service() -> None:
    for name in DASHBOARDS:
        for _, target in flame_graphs(name):
            for used in re.findall(r'service_name="([^"]*)"', target["labelSelector"]):
                for variable in re.findall(r"\$(\w+)", used):
                    assert not variables(name)[variable].get("multi")
                    assert not variables(name)[variable].get("includeAll")


def test_a_word_on_how_to_read_them_stands_beside() -> None:
    for name in DASHBOARDS:
        texts = " ".join(p["options"]["content"] for p in panels(name) if p["type"] == "text")
        if flame_graphs(name):
            assert "`now`" in texts
            assert "snapshot" in texts
