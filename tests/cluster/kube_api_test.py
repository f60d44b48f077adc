"""The agent's view of Kubernetes, from a real API server, with exactly the chart's rights."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from kubernetes.client.api_client import ApiClient

from gpumemprof.kube.api import in_cluster
from gpumemprof.kube.list_watch import Timing
from gpumemprof.kube.model import ContainerRef, Pod, Workload
from gpumemprof.kube.selector import Selector
from gpumemprof.kube.watch import ClusterWatch
from tests.cluster import api_server
from tests.cluster.api_server import ApiServer
from tests.cluster.relay import Relay
from tests.unit.kube_selector_examples import NOT_SELECTORS, SELECTS

pytestmark = pytest.mark.skipif(bool(api_server.missing()), reason=f"needs {api_server.missing()}")

RELEASE = "monitoring"
CONFIGMAP = "gpumemprof-profiling"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
QUICK = Timing(backoff=(0.2, 1.0))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with api_server.running(tmp_path_factory.mktemp("kube")) as running:
        for name in (RELEASE, "ml-team", "web"):
            running.create("/api/v1/namespaces", "Namespace", name)
        grant_the_charts_rights(running)
        yield running


def grant_the_charts_rights(server: ApiServer) -> None:
    server.create(f"/api/v1/namespaces/{RELEASE}/serviceaccounts", "ServiceAccount", "agent")
    subject = {"kind": "ServiceAccount", "name": "agent", "namespace": RELEASE}
    read = ["get", "list", "watch"]
    for path, kind, rules in (
        (RBAC, "Cluster", [{"apiGroups": [""], "resources": ["pods"], "verbs": read}]),
        (
            f"{RBAC}/namespaces/{RELEASE}",
            "",
            [
                {
                    "apiGroups": [""],
                    "resources": ["configmaps"],
                    "resourceNames": [CONFIGMAP],
                    "verbs": read,
                },
                {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
            ],
        ),
    ):
        server.create(f"{path}/{kind.lower()}roles", f"{kind}Role", "agent", rules=rules)
        server.create(
            f"{path}/{kind.lower()}rolebindings",
            f"{kind}RoleBinding",
            "agent",
            roleRef={
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": f"{kind}Role",
                "name": "agent",
            },
            subjects=[subject],
        )


class Node:
    """An agent's watch on one node, through a relay."""

    def __init__(self, server: ApiServer, name: str, secrets: Path, timing: Timing = QUICK) -> None:
        self.server = server
        self.name = name
        self.relay = Relay(server.port)
        self.secrets = secrets
        self.write_token()
        (secrets / "ca.crt").write_bytes(server.ca.read_bytes())
        self._changed = threading.Event()
        self.changes = 0
        self.watch = ClusterWatch(
            name, RELEASE, CONFIGMAP, self._on_change, connect=self.connect, timing=timing
        )

    def connect(self) -> ApiClient:
        port = str(self.relay.port)
        address = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port}
        return in_cluster(self.secrets, address)

    def write_token(self, **spec: Any) -> None:
        answer = self.server.admin(
            "POST",
            f"/api/v1/namespaces/{RELEASE}/serviceaccounts/agent/token",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec},
        )
        (self.secrets / "token").write_text(answer["status"]["token"])

    def _on_change(self) -> None:
        self.changes += 1
        self._changed.set()

    def wait(self, what: Callable[[], object], seconds: float = 60.0) -> None:
        until = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < until, (self.watch.states, self.watch.pods.pods())
            self._changed.wait(0.1)
            self._changed.clear()

    def wait_up_to_date(self) -> None:
        self.wait(lambda: all(self.watch.status().values()))

    def sees(self, name: str) -> bool:
        return any(pod.name == name for pod in self.watch.pods.pods())


StartNode = Callable[..., Node]


@pytest.fixture
def start_node(server: ApiServer, tmp_path: Path) -> Iterator[StartNode]:
    nodes: list[Node] = []

    def start(name: str, timing: Timing = QUICK) -> Node:
        secrets = tmp_path / f"{name}-{len(nodes)}"
        secrets.mkdir()
        nodes.append(Node(server, name, secrets, timing))
        nodes[-1].watch.start()
        return nodes[-1]

    yield start
    for node in nodes:
        node.watch.stop()
        node.relay.close()
    configmaps = f"/api/v1/namespaces/{RELEASE}/configmaps"
    if any(c["metadata"]["name"] == CONFIGMAP for c in server.admin("GET", configmaps)["items"]):
        server.admin("DELETE", f"{configmaps}/{CONFIGMAP}")


def create_pod(
    server: ApiServer, node: str, name: str, namespace: str = "ml-team", **meta: Any
) -> Any:
    return server.admin(
        "POST",
        f"/api/v1/namespaces/{namespace}/pods",
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, **meta},
            "spec": {"nodeName": node, "containers": [{"name": "main", "image": "x"}]},
        },
    )


def delete_pod(server: ApiServer, name: str, namespace: str = "ml-team") -> None:
    server.admin("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", {"gracePeriodSeconds": 0})


def container_starts(
    server: ApiServer, name: str, container: str, namespace: str = "ml-team"
) -> None:
    status = {"name": "main", "containerID": f"containerd://{container}", "ready": True}
    rest = {"restartCount": 0, "image": "x", "imageID": "", "state": {"running": {}}}
    server.admin(
        "PATCH",
        f"/api/v1/namespaces/{namespace}/pods/{name}/status",
        {"status": {"phase": "Running", "containerStatuses": [{**status, **rest}]}},
    )


def set_switch(server: ApiServer, **data: str | None) -> None:
    """As ``kubectl patch configmap`` does it, creating it first where there is none."""
    path = f"/api/v1/namespaces/{RELEASE}/configmaps"
    data = {key.replace("ml_team", "ml-team"): value for key, value in data.items()}
    try:
        server.admin("PATCH", f"{path}/{CONFIGMAP}", {"data": data})
    except api_server.Refused:
        server.create(path, "ConfigMap", CONFIGMAP, data=data)


def a_pod(namespace: str = "ml-team", **labels: str) -> Pod:
    return Pod("u", namespace, "p", Workload("Pod", "p"), labels)


def test_a_pod_is_found_by_its_container_and_until_then_by_its_uid(
    server: ApiServer, start_node: StartNode
) -> None:
    node = start_node("node-find")
    create_pod(server, "another-node", "elsewhere")
    uid = create_pod(server, "node-find", "trainer-0", labels={"app": "trainer"})["metadata"]["uid"]
    node.wait(lambda: node.sees("trainer-0"))
    early = node.watch.pods.find(ContainerRef("c" * 64, uid))
    assert early and (early.pod.name, early.container) == ("trainer-0", "")

    container_starts(server, "trainer-0", "c" * 64)
    node.wait(lambda: node.watch.pods.find(ContainerRef("c" * 64)))
    found = node.watch.pods.find(ContainerRef("c" * 64, uid))
    assert found and found.container == "main"
    assert found.pod.labels == {"app": "trainer"}
    assert not node.sees("elsewhere")

    delete_pod(server, "trainer-0")
    node.wait(lambda: node.watch.states["pods"].events >= 3)
    assert node.watch.pods.find(ContainerRef("c" * 64)), "its last data still needs its labels"


def test_pods_that_were_there_first_are_listed_with_their_workloads(
    server: ApiServer, start_node: StartNode
) -> None:
    def owned(kind: str, name: str) -> list[dict[str, object]]:
        return [{"apiVersion": "x/v1", "kind": kind, "name": name, "uid": "1", "controller": True}]

    create_pod(
        server,
        "node-list",
        "serve-5d6f-x",
        labels={"pod-template-hash": "5d6f"},
        ownerReferences=owned("ReplicaSet", "serve-5d6f"),
    )
    create_pod(server, "node-list", "ray-w", ownerReferences=owned("RayCluster", "ray"))
    node = start_node("node-list")
    node.wait(lambda: node.watch.synced)
    assert {pod.name: tuple(pod.workload) for pod in node.watch.pods.pods()} == {
        "serve-5d6f-x": ("Deployment", "serve"),
        "ray-w": ("RayCluster", "ray"),
    }


def test_nothing_is_on_without_a_config_map(server: ApiServer, start_node: StartNode) -> None:
    node = start_node("node-off")
    assert not node.watch.switch.allows(a_pod())
    node.wait(lambda: node.watch.synced)
    assert not node.watch.switch.allows(a_pod())
    set_switch(server, _default="on")
    node.wait(lambda: node.watch.switch.allows(a_pod()))
    server.admin("DELETE", f"/api/v1/namespaces/{RELEASE}/configmaps/{CONFIGMAP}")
    node.wait(lambda: not node.watch.switch.allows(a_pod()))


def test_a_patch_switches_a_namespace_on_and_off_at_once(
    server: ApiServer, start_node: StartNode, capsys: pytest.CaptureFixture[str]
) -> None:
    node = start_node("node-switch")
    set_switch(server, web="off")
    node.wait_up_to_date()
    took = []
    for _ in range(10):
        for value, on in (("on", True), ("off", False)):
            began = time.monotonic()
            set_switch(server, ml_team=value)
            node.wait(lambda on=on: node.watch.switch.allows(a_pod()) == on)
            took.append(time.monotonic() - began)
            assert not node.watch.switch.allows(a_pod("web"))
    with capsys.disabled():
        worst, middle = max(took), sorted(took)[len(took) // 2]
        print(f"\nswitch: median {middle * 1e3:.0f} ms, worst {worst * 1e3:.0f} ms, from the patch")
    assert max(took) < 2


def test_a_selector_switches_on_the_pods_it_selects(
    server: ApiServer, start_node: StartNode
) -> None:
    node = start_node("node-select")
    set_switch(server, ml_team="app in (trainer, eval),!debug")
    node.wait(lambda: node.watch.switch.allows(a_pod(app="eval")))
    assert not node.watch.switch.allows(a_pod(app="eval", debug="1"))
    assert not node.watch.switch.allows(a_pod(app="web"))


def test_selectors_select_what_the_server_selects(server: ApiServer) -> None:
    labels = {}
    for number, one in enumerate(one for pair in SELECTS.values() for one in pair):
        labels[f"labelled-{number}"] = one
        create_pod(server, "node-labels", f"labelled-{number}", labels=one)
    path = (
        "/api/v1/namespaces/ml-team/pods?fieldSelector=spec.nodeName%3Dnode-labels&labelSelector="
    )
    for text in SELECTS:
        items = server.admin("GET", path + quote(text))["items"]
        ours = {name for name, one in labels.items() if Selector.parse(text).matches(one)}
        assert {item["metadata"]["name"] for item in items} == ours, text
    for text in NOT_SELECTORS:
        with pytest.raises(api_server.Refused, match="400"):
            server.admin("GET", path + quote(text))
            pytest.fail(f"the server takes {text!r}")


def test_an_invalid_value_keeps_the_last_setting_and_users_are_told_once(
    server: ApiServer, start_node: StartNode
) -> None:
    nodes = [start_node("node-invalid-1"), start_node("node-invalid-2")]
    set_switch(server, ml_team="on")
    for node in nodes:
        node.wait(lambda node=node: node.watch.switch.allows(a_pod()))
    set_switch(server, ml_team="on,,off", web="on")
    for node in nodes:
        node.wait(lambda node=node: node.watch.switch.allows(a_pod("web")))
        assert node.watch.switch.allows(a_pod())
        assert [problem.key for problem in node.watch.problems] == ["ml-team"]
    told = [node.watch.counters for node in nodes]
    nodes[0].wait(lambda: sum(c()["events_created"] + c()["events_existed"] for c in told) == 2)
    assert sum(c()["events_created"] for c in told) == 1
    events = [
        event
        for event in server.admin("GET", f"/api/v1/namespaces/{RELEASE}/events")["items"]
        if event["involvedObject"]["name"] == CONFIGMAP
    ]
    assert len(events) == 1
    assert events[0]["reason"] == "InvalidSetting"
    assert "ml-team" in events[0]["message"] and "on,,off" in events[0]["message"]
    config = server.admin("GET", f"/api/v1/namespaces/{RELEASE}/configmaps/{CONFIGMAP}")
    assert events[0]["involvedObject"]["uid"] == config["metadata"]["uid"]


def test_bookmarks_keep_the_version_fresh_and_watches_follow_each_other(
    server: ApiServer, start_node: StartNode
) -> None:
    node = start_node("node-bookmark", Timing(watch=(4, 4), backoff=(0.2, 1.0)))
    pods = node.watch.states["pods"]
    node.wait(lambda: pods.up_to_date)
    create_pod(server, "another-node", "makes-a-bookmark")
    node.wait(lambda: pods.bookmarks >= 1 and pods.watches >= 3)
    assert (pods.lists, pods.errors) == (1, 0)
    create_pod(server, "node-bookmark", "after-bookmark")
    node.wait(lambda: node.sees("after-bookmark"))


def test_what_was_known_stays_while_the_server_is_away(
    server: ApiServer, start_node: StartNode
) -> None:
    node = start_node("node-outage")
    create_pod(server, "node-outage", "before")
    set_switch(server, ml_team="on")
    node.wait(lambda: node.sees("before") and node.watch.switch.allows(a_pod()))
    server.stop()
    node.wait(lambda: not any(node.watch.status().values()))
    time.sleep(3)
    assert node.sees("before") and node.watch.switch.allows(a_pod())
    server.start()
    delete_pod(server, "before")
    create_pod(server, "node-outage", "after")
    set_switch(server, ml_team="off")
    node.wait(lambda: node.sees("after") and not node.watch.switch.allows(a_pod()))
    node.wait_up_to_date()
    assert node.watch.states["pods"].errors > 0


def test_versions_that_the_server_no_longer_has_are_listed_again(
    server: ApiServer, start_node: StartNode
) -> None:
    """410 Gone: pods change while the agent is cut off, and a new server starts after that."""
    node = start_node("node-gone")
    create_pod(server, "node-gone", "gone-first")
    node.wait(lambda: node.sees("gone-first"))
    node.relay.cut()
    delete_pod(server, "gone-first")
    create_pod(server, "node-gone", "gone-second")
    server.stop()
    server.start()
    node.relay.mend()
    node.wait(lambda: node.sees("gone-second"))
    pods = node.watch.states["pods"]
    assert pods.expired >= 1
    assert pods.lists >= 2
    node.wait_up_to_date()


def test_a_connection_that_died_silently_is_replaced(
    server: ApiServer, start_node: StartNode
) -> None:
    node = start_node("node-silent", Timing(quiet=(3, 3), backoff=(0.2, 1.0)))
    node.wait_up_to_date()
    lists = node.watch.states["pods"].lists
    node.relay.fall_silent()
    create_pod(server, "node-silent", "unheard")
    node.wait(lambda: node.sees("unheard"))
    assert node.watch.states["pods"].lists == lists, "the watch goes on where it was"
    assert node.watch.states["pods"].errors == 0, "silence is no error"


def test_a_token_that_was_rotated_is_taken_up(server: ApiServer, start_node: StartNode) -> None:
    secrets = f"/api/v1/namespaces/{RELEASE}/secrets"
    node = start_node("node-token")
    node.wait_up_to_date()
    node.watch.stop()
    server.create(secrets, "Secret", "bound")
    uid = server.admin("GET", f"{secrets}/bound")["metadata"]["uid"]
    node = start_node("node-token")
    node.watch.stop()  # its first token is not to be used
    bound = {"kind": "Secret", "apiVersion": "v1", "name": "bound", "uid": uid}
    node.write_token(boundObjectRef=bound)
    watch = ClusterWatch("node-token", RELEASE, CONFIGMAP, lambda: None, node.connect, QUICK)
    watch.start()
    try:
        node.wait(lambda: all(watch.status().values()))
        server.admin("DELETE", f"{secrets}/bound")
        server.stop()  # the server ends what it allowed before, and its cache of tokens
        server.start()
        node.wait(lambda: "401" in watch.states["pods"].last_error)
        node.write_token()
        node.wait(lambda: all(watch.status().values()))
    finally:
        watch.stop()


def test_a_pod_too_large_to_be_read_is_left_out_and_others_are_not(
    server: ApiServer, start_node: StartNode, caplog: pytest.LogCaptureFixture
) -> None:
    def create_large(name: str) -> str:
        container = {"name": "main", "image": "x"}
        container["env"] = [{"name": "A", "value": "<" * 900_000}]  # 6 bytes each in JSON
        pod = {"metadata": {"name": name}, "spec": {"nodeName": "node-large"}}
        pod["spec"]["containers"] = [container]
        uid = server.admin("POST", "/api/v1/namespaces/ml-team/pods", pod)["metadata"]["uid"]
        return str(uid)

    first = create_large("large-listed")
    create_pod(server, "node-large", "small-listed")
    node = start_node("node-large")
    node.wait(lambda: node.sees("small-listed"))
    second = create_large("large-watched")
    create_pod(server, "node-large", "small-watched")
    node.wait(lambda: node.sees("small-watched"))
    assert not node.sees("large-listed") and not node.sees("large-watched")
    pods = node.watch.states["pods"]
    assert (pods.refused, pods.lists, pods.errors) == (2, 1, 0)
    assert first in caplog.text and second in caplog.text
    for name in ("large-listed", "large-watched"):
        delete_pod(server, name)


def test_the_charts_rights_suffice_and_no_more_is_asked_for(
    server: ApiServer, start_node: StartNode, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    node = start_node("node-rights")
    set_switch(server, ml_team="no such thing")
    node.wait_up_to_date()
    node.wait(lambda: node.watch.counters()["events_created"] == 1)
    counters = node.watch.counters()
    assert (counters["pods_errors"], counters["switch_errors"]) == (0, 0)
    assert counters["events_failed"] == 0
    other = ClusterWatch("x", RELEASE, "another-config", lambda: None, node.connect, QUICK)
    other.start()
    try:
        node.wait(lambda: "403" in other.states["switch"].last_error)
    finally:
        other.stop()
    assert not other.synced


def test_it_stops_at_once_whatever_it_waits_for(server: ApiServer, start_node: StartNode) -> None:
    node = start_node("node-stop")
    node.wait_up_to_date()
    node.watch.stop()
    changes = node.changes
    create_pod(server, "node-stop", "after-stop")
    set_switch(server, ml_team="on")
    for thread in threading.enumerate():
        if thread.name.startswith("kube-"):
            thread.join(10)
            assert not thread.is_alive()
    assert node.changes == changes
    assert not node.sees("after-stop")
