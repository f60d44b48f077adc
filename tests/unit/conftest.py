"""What tests of probing libraries begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from library_kit import Kernel

from gpumemprof.process.libraries import LibraryProber


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@pytest.fixture
def prober(kernel: Kernel) -> LibraryProber:
    return LibraryProber(kernel.attach)


@pytest.fixture
def descriptors() -> Iterator[None]:
    """No descriptor may be left open by the test."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    yield
    assert len(list(Path("/proc/self/fd").iterdir())) == before
