"""Every object is what Kubernetes 1.28 to 1.37 say it may be, to the last field."""

from __future__ import annotations

import json
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.chart.helm_tool import MAJORS, NoHelm, helm_binary
from tests.chart.manifests import MANIFEST, manifests
from tests.chart.matrix import MATRIX
from tests.chart.rendering import render

VERSIONS = [f"1.{minor}" for minor in range(28, 38)]
OPERATORS_OWN = {"PodMonitor", "PrometheusRule"}  # Kubernetes has no schema of these


def _problems(objects: list[dict[str, Any]], version: str) -> list[str]:
    found = []
    for item in objects:
        if item["kind"] in OPERATORS_OWN:
            continue
        try:
            kubernetes_validate.validate(item, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            found.append(f"{item['kind']} {'.'.join(map(str, error.path))}: {error.message}")
    return found


def _objects(helm: int, version: str) -> list[dict[str, Any]]:
    """All that the matrix makes, each once."""
    every = {}
    for values in MATRIX.values():
        for item in render(helm, values, kubernetes=f"{version}.0").objects:
            every[json.dumps(item, sort_keys=True)] = item
    return list(every.values())


@pytest.fixture(scope="session")
def any_helm() -> int:
    """One helm: the objects of the other are the same (below)."""
    for major in reversed(MAJORS):
        try:
            helm_binary(major)
        except NoHelm:
            continue
        return major
    pytest.skip("there is no helm")


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_every_field(any_helm: int, version: str) -> None:
    objects = _objects(any_helm, version)
    assert {"DaemonSet", "ConfigMap", "Secret", "NetworkPolicy"} <= {o["kind"] for o in objects}
    assert _problems(objects, version) == []


def test_a_field_that_kubernetes_does_not_know_is_found(any_helm: int) -> None:
    daemonset = render(any_helm).one("DaemonSet")
    daemonset["spec"]["template"]["spec"]["hostPid"] = True
    (problem,) = _problems([daemonset], "1.34")
    assert "hostPid" in problem


def test_both_helms_make_the_same_objects() -> None:
    try:
        three, four = (
            [render(major, values).objects for values in MATRIX.values()] for major in MAJORS
        )
    except NoHelm as reason:
        pytest.skip(str(reason))
    assert three == four


def test_the_plain_manifests_are_current(helm: int) -> None:
    assert MANIFEST.read_text() == manifests(helm), "run `make manifests`"


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_the_plain_manifests(version: str) -> None:
    objects = [item for item in yaml.safe_load_all(MANIFEST.read_text()) if item]
    assert _problems(objects, version) == []


def test_the_plain_switch_has_no_content_that_applying_again_would_set_back() -> None:
    objects = [item for item in yaml.safe_load_all(MANIFEST.read_text()) if item]
    (switch,) = [o for o in objects if o["metadata"]["name"] == "gpumemprof-profiling"]
    assert switch["kind"] == "ConfigMap" and "data" not in switch
