"""The rules for Prometheus: what promtool says of them, and whether they ask for what is there."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpumemprof.export.metrics import METRICS
from gpumemprof.profile.completeness import LOST
from tests.unit.dashboards_test import LABELS, targets

ROOT = Path(__file__).parents[2]
RULES = ROOT / "helm" / "gpumemprof" / "alerts.yaml"
CASES = Path(__file__).parent / "data" / "alerts.yaml"

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)"
)


def rules() -> list[dict[str, Any]]:
    return [
        rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    ]


def promtool(*arguments: str | Path) -> str:
    """What it says when it finds no fault."""
    run = subprocess.run(
        ["promtool", *arguments], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@needs_promtool
def test_the_rules_are_well_formed() -> None:
    assert f"{len(rules())} rules found" in promtool("check", "rules", "--lint-fatal", RULES)


@needs_promtool
def test_alerts_fire_when_they_should_and_only_then() -> None:
    assert "SUCCESS" in promtool("test", "rules", CASES)


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    fires: dict[bool, set[str]] = {True: set(), False: set()}
    for test in yaml.safe_load(CASES.read_text())["tests"]:
        for case in test.get("alert_rule_test", []):
            fires[bool(case.get("exp_alerts"))].add(case["alertname"])
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    assert fires[True] == alerts
    assert fires[False] >= alerts - {"GpumemprofLosesStacks", "GpumemprofBeyondLimits"}


def test_they_ask_only_for_metrics_labels_and_causes_that_exist() -> None:
    for rule in rules():
        used = set(re.findall(r"(?<!:)\bgpumemprof_\w+", rule["expr"]))
        assert used <= LABELS.keys(), rule
        known = set.union(*(LABELS[metric] for metric in used))
        for by in re.findall(r"by \(([^)]*)\)", rule["expr"]):
            assert {label.strip() for label in by.split(",")} <= known, rule
        for causes in re.findall(r'cause=~"([^"]*)"', rule["expr"]):
            assert set(causes.split("|")) <= LOST.keys(), rule


def test_each_says_in_a_sentence_what_happened_and_where() -> None:
    for rule in rules():
        if "alert" in rule:
            assert rule["labels"]["severity"] in {"info", "warning"}
            texts = " ".join(rule["annotations"].values())
            assert {"summary", "description"} == rule["annotations"].keys()
            assert "$labels.node" in texts
            told = set(re.findall(r"\$labels\.(\w+)", texts))
            assert told <= set.union(*(LABELS[m.name] for m in METRICS))


# The dashboards' queries over times longer than a test can wait


def expression(dashboard: str, title: str, ref: str, **variables: str) -> str:
    (found,) = (
        target["expr"]
        for panel, target in targets(f"gpumemprof-{dashboard}.json", "prometheus")
        if panel["title"] == title and target["refId"] == ref
    )
    for name, text in {"namespace": ".*", "pod": ".*", "node": ".*", **variables}.items():
        found = found.replace(f"${name}", text)
    return str(found)


def series(name: str, values: str, **labels: str) -> dict[str, str]:
    of = {"namespace": "ml", "workload": "w", "container": "c", "kind": "device", **labels}
    return {
        "series": name + "{" + ",".join(f'{k}="{v}"' for k, v in of.items()) + "}",
        "values": values,
    }


def evaluate(
    directory: Path, given: list[dict[str, str]], expr: str, at: str, expected: dict[str, float]
) -> None:
    """``expected``: pod → number."""
    labels = '{{namespace="ml",workload="w",pod="{}"}}'
    case = {
        "interval": "1m",
        "input_series": given,
        "promql_expr_test": [
            {
                "expr": expr,
                "eval_time": at,
                "exp_samples": [
                    {"labels": labels.format(pod), "value": number}
                    for pod, number in expected.items()
                ],
            }
        ],
    }
    path = directory / "case.yaml"
    path.write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [case]}))
    assert "SUCCESS" in promtool("test", "rules", path)


@needs_promtool
def test_change_counts_new_pods_from_nothing_and_leaves_out_those_that_ended(
    tmp_path: Path,
) -> None:
    name = "gpumemprof_memory_in_use_bytes"
    evaluate(
        tmp_path,
        [
            series(name, "100+1x120", pod="grows"),
            series(name, "500-2x120", pod="shrinks"),
            series(name, "_x90 70x30", pod="new"),
            series(name, "1000x60 stale", pod="ended"),
        ],
        expression("overview", "Pods", "C", __range="1h"),
        "100m",
        {"grows": 60, "shrinks": -120, "new": 70},
    )


@needs_promtool
def test_failures_are_counted_of_new_ended_and_restarted_series(tmp_path: Path) -> None:
    name = "gpumemprof_allocation_failures_total"
    given = [
        ("again", "3x50 4x70"),
        ("long-ago", "3x120"),
        ("at-once", "_x80 1 stale"),
        ("agent-restarted", "5x80 0x10 2x30"),
        ("never", "0x120"),
    ]
    evaluate(
        tmp_path,
        [series(name, values, pod=pod, error="out_of_memory", code="2") for pod, values in given],
        expression("overview", "Pods", "D", __range="1h"),
        "100m",
        {"again": 1, "at-once": 1, "agent-restarted": 2},
    )
