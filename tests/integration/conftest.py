"""Tests with real eBPF: they need root and the built programs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
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


@pytest.fixture(autouse=True)
def interrupts_are_not_ignored() -> Iterator[None]:
    """Where tests run in the background (nohup, `&`), they are, and programs inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the tables of README.md when a whole matrix was run."""
    if os.environ.get("GPUMEMPROF_WRITE_TABLES"):
        MATRIX.write()
