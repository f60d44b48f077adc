"""One cluster for all tests of this folder that want one."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

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


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Tell how the cluster was when a test failed."""
    outcome = yield
    report = outcome.get_result()
    lab = getattr(item, "funcargs", {}).get("lab")
    if report.failed and lab is not None:
        try:
            report.sections.append(("cluster", lab.state()))
        except Exception as error:  # what failed may be the cluster itself
            report.sections.append(("cluster", str(error)))
