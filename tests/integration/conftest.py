"""Tests with real eBPF: they need root and the built programs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.integration.matrix import MATRIX

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.geteuid() == 0:
        return
    skip = pytest.mark.skip(reason="needs root (eBPF)")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(skip)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the tables of README.md when a whole matrix was run."""
    if os.environ.get("GPUMEMPROF_WRITE_TABLES"):
        MATRIX.write()
