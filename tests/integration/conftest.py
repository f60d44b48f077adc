"""Tests with real eBPF: they need root and the built programs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.geteuid() == 0:
        return
    skip = pytest.mark.skip(reason="needs root (eBPF)")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(skip)
