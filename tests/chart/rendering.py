"""Renders the chart and finds its objects."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.chart.helm_tool import CHART, helm_binary

IMAGE = {"repository": "registry.example/gpumemprof"}


class Refused(Exception):
    """What helm said."""


class Rendered:
    """The objects that a release would have."""

    def __init__(self, objects: list[dict[str, Any]]) -> None:
        self.objects = objects

    def all(self, kind: str) -> list[dict[str, Any]]:
        return [item for item in self.objects if item["kind"] == kind]

    def one(self, kind: str, name: str | None = None) -> dict[str, Any]:
        found = [
            item for item in self.all(kind) if name is None or item["metadata"]["name"] == name
        ]
        assert len(found) == 1, f"{len(found)} objects of kind {kind}, name {name}"
        return found[0]

    @property
    def pod(self) -> dict[str, Any]:
        return dict(self.one("DaemonSet")["spec"]["template"]["spec"])

    @property
    def agent(self) -> dict[str, Any]:
        (container,) = self.pod["containers"]
        return dict(container)

    @property
    def config(self) -> dict[str, Any]:
        (name,) = [
            volume["configMap"]["name"]
            for volume in self.pod["volumes"]
            if volume["name"] == "config"
        ]
        return dict(yaml.safe_load(self.one("ConfigMap", name)["data"]["agent.yaml"]))


def helm(major: int, *args: str) -> str:
    """Standard output of a helm command that neither reads nor writes the user's files."""
    with tempfile.TemporaryDirectory() as home:
        places = {
            f"HELM_{name}_HOME": str(Path(home) / name) for name in ("CACHE", "CONFIG", "DATA")
        }
        done = subprocess.run(
            [str(helm_binary(major)), *args],
            capture_output=True,
            text=True,
            env=os.environ | places,
            check=False,
        )
    if done.returncode:
        raise Refused(done.stderr)
    return done.stdout


def render(
    major: int,
    values: Mapping[str, Any] | None = None,
    *,
    release: str = "gpumemprof",
    namespace: str = "monitoring",
    kubernetes: str = "1.34.0",
) -> Rendered:
    """What `helm template` makes of the chart; JSON is YAML, too."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"image": IMAGE} | dict(values or {}), file)
        file.flush()
        text = helm(
            major, "template", release, str(CHART), "--namespace", namespace,
            "--kube-version", kubernetes, "--values", file.name,
        )  # fmt: skip
    return Rendered([item for item in yaml.safe_load_all(text) if item])
