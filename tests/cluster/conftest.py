"""One cluster for all tests of this folder that want one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.cluster import Cluster, missing


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A Kubernetes of its own, with a node that is ready."""
    if lacking := missing():
        pytest.skip(f"no cluster, for want of {lacking}; `make test-cluster` brings what it needs")
    made = Cluster()
    try:
        made.start()
    except BaseException:
        made.stop_quietly()
        raise
    yield made
    made.stop()
