"""helm, each test with both of its versions."""

from __future__ import annotations

import pytest

from tests.chart.helm_tool import MAJORS, NoHelm, helm_binary


@pytest.fixture(scope="session", params=MAJORS, ids=lambda major: f"helm{major}")
def helm(request: pytest.FixtureRequest) -> int:
    """The major version of helm that is there."""
    try:
        helm_binary(request.param)
    except NoHelm as reason:
        pytest.skip(str(reason))
    return int(request.param)
