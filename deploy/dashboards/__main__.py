"""Writes the dashboards' JSON where the chart takes it from: ``python -m deploy.dashboards``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from deploy.dashboards import health, overview, workload

DIRECTORY = Path(__file__).parents[2] / "helm" / "gpumemprof" / "dashboards"

DASHBOARDS: tuple[Callable[[], Dashboard], ...] = (overview.build, workload.build, health.build)


def texts() -> dict[str, str]:
    """File name → content."""
    files = {}
    for build in DASHBOARDS:
        value = json.loads(JSONEncoder().encode(build().build()))
        for number, panel in enumerate(value["panels"], 1):
            panel["id"] = number
        text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
        files[f"{value['uid']}.json"] = text
    return files


def main() -> None:
    """Write them all."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for name, text in texts().items():
        (DIRECTORY / name).write_text(text)
        sys.stdout.write(f"{DIRECTORY / name}\n")


if __name__ == "__main__":
    main()
