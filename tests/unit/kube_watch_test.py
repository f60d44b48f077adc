"""What the agent's view of the cluster says before it has seen anything."""

from __future__ import annotations

import functools
import time

import pytest

from gpumemprof.errors import UsageError
from gpumemprof.kube.api import in_cluster
from gpumemprof.kube.watch import ClusterWatch


@pytest.mark.parametrize(
    ("node", "namespace", "configmap"),
    [("", "ns", "c"), ("a,metadata.name=b", "ns", "c"), ("n", "../pods", "c"), ("n", "ns", "C d")],
)
def test_names_that_cannot_be_are_told_at_once(node: str, namespace: str, configmap: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name of a"):
        ClusterWatch(node, namespace, configmap, lambda: None)


def test_outside_a_cluster_nothing_is_on_and_the_reason_is_told() -> None:
    connect = functools.partial(in_cluster, environ={})
    watch = ClusterWatch("node-a", "monitoring", "c", lambda: None, connect)
    watch.start()
    try:
        until = time.monotonic() + 30
        while not watch.counters()["pods_errors"] and time.monotonic() < until:
            time.sleep(0.01)
        assert "no credentials" in watch.states["pods"].last_error
    finally:
        watch.stop()
    assert not watch.synced
    assert not any(watch.status().values())
    assert not watch.switch.allows(None)
    assert watch.counters()["pods_errors"] >= 1
