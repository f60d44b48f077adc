"""The agent on a real cluster, from `helm install` to `helm uninstall`.

The tests are one story and run in this order: what each of them switches, kills or deletes, the
next finds so. Two namespaces have pods: ml-team is profiled, secret-lab is not unless said.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chart.helm_tool import CHART, NoHelm
from tests.cluster.cluster import NODE, NODE_ADDRESS, REPOSITORY, Cluster, Failed, eventually
from tests.cluster.lab import MIB, VALUES, Lab, bpf_object_exists, bpf_objects_of, pods
from tests.fakes.pyroscope_receiver import Receiver

SECRET = "top_secret_tensor"
TRAINER = "app=trainer"


@pytest.fixture(scope="module")
def receiver(cluster: Cluster) -> Iterator[Receiver]:
    """A Pyroscope on the node's address, which the pods reach."""
    with cluster.inside(lambda: Receiver(host=NODE_ADDRESS, port=4040)) as made:
        yield made


@pytest.fixture(scope="module")
def lab(cluster: Cluster, receiver: Receiver) -> Lab:
    """helm 3's release "gpumemprof" in monitoring, which profiles ml-team."""
    try:
        made = Lab(cluster, receiver, helm=3, name="gpumemprof", namespace="monitoring")
    except NoHelm as reason:
        pytest.skip(str(reason))
    cluster.apply(*(pods.namespace(name) for name in ("monitoring", "ml-team", "secret-lab")))
    made.install({**VALUES, "profiling": {"ml-team": "on"}})
    return made


@pytest.fixture(scope="module")
def trainer(lab: Lab) -> str:
    """The pod of ml-team's Deployment: two containers of one image."""
    main = pods.work("main", "weights=64", "cache=32", "--churn", "20")
    lab.cluster.apply(
        pods.deployment("ml-team", "trainer", main, pods.work("side", "buffers=16")),
        pods.pod("secret-lab", "vault", pods.work("main", f"{SECRET}=48", "--churn", "10")),
    )
    return lab.running("ml-team", TRAINER)


def test_no_node_is_a_gpu_node_and_the_notes_say_so(lab: Lab) -> None:
    assert "WARNING: none of the 1 nodes is taken for a GPU node" in lab.notes
    assert "kubernetes.azure.com/accelerator=nvidia" in lab.notes
    assert f"patch configmap {lab.name}-profiling" in lab.notes


def test_a_node_that_becomes_one_gets_an_agent(lab: Lab) -> None:
    taint = "nvidia.com/gpu=present:NoSchedule"
    lab.cluster.kubectl("label", "node", NODE, "kubernetes.azure.com/accelerator=nvidia")
    lab.cluster.kubectl("taint", "node", NODE, taint)
    try:
        assert lab.agent()["spec"]["nodeName"] == NODE
    finally:
        lab.cluster.kubectl("taint", "node", NODE, f"{taint}-")


def test_its_image_can_record_and_has_no_compiler(lab: Lab) -> None:
    lab.agent()
    assert b"recording works here" in lab.inside_agent("gpumemprof", "doctor")
    tools = "cc gcc clang bpftool pip make"
    assert lab.inside_agent("sh", "-c", f"command -v {tools} || true") == b""
    find = "cd /opt/gpumemprof/lib/python3*/site-packages; find gpumemprof -type f"
    packaged = set(lab.inside_agent("sh", "-c", find).decode().split())
    source = REPOSITORY / "gpumemprof"
    wanted = {
        f"gpumemprof/{Path(folder).relative_to(source) / name}".replace("/./", "/")
        for folder, _, names in os.walk(source, followlinks=True)
        for name in names
        if not name.endswith(".pyc")
    }
    assert wanted - packaged == set()
    assert lab.inside_agent("sh", "-c", "touch /opt/x 2>/dev/null && echo written || true") == b""


def test_every_byte_of_two_containers_of_one_image_is_told_of_the_right_one(
    lab: Lab, trainer: str
) -> None:
    def exact() -> bool:
        for container, held, allocated in (("main", 96, 116), ("side", 16, 16)):
            labels = {"namespace": "ml-team", "pod": trainer, "container": container}
            assert lab.in_use(**labels) == held * MIB
            assert lab.allocated(**labels) == allocated * MIB
            assert lab.pushed_in_use(**labels) == held * MIB
            assert lab.pushed(**labels) == allocated * MIB
        return True

    eventually("every byte is told", exact)
    for container, function, size in (
        ("main", "weights", 64), ("main", "cache", 32), ("side", "buffers", 16),
    ):  # fmt: skip
        labels = {"pod": trainer, "container": container}
        assert lab.pushed_under(function, **labels) == size * MIB
    one = lab.receiver.stored("inuse_space", pod=trainer)[0]
    labels = dict(one.labels)
    assert labels["service_name"] == "gpu/ml-team/trainer"
    assert labels["namespace"] == "ml-team" and labels["node"] == NODE


def test_a_job_that_lives_two_seconds_is_told_whole(lab: Lab) -> None:
    lab.cluster.apply(pods.job("ml-team", "quick", pods.work("main", "batch=8", "--seconds", "2")))

    def told() -> bool:
        assert lab.pushed(service_name="gpu/ml-team/quick") == 8 * MIB
        return True

    eventually("the job is told", told)
    assert lab.pushed_under("batch", service_name="gpu/ml-team/quick") == 8 * MIB


def test_a_program_that_loads_cuda_late_is_told_whole(lab: Lab) -> None:
    late = pods.container(
        "main", "driver_loop_dlopen", "--late", "3", "--hold", "600",
        "--pairs", "10", "--leak", "3", "--size", str(MIB),
    )  # fmt: skip
    lab.cluster.apply(pods.pod("ml-team", "late", late))

    def told() -> bool:
        assert (lab.in_use(pod="late"), lab.allocated(pod="late")) == (3 * MIB, 13 * MIB)
        assert (lab.pushed_in_use(pod="late"), lab.pushed(pod="late")) == (3 * MIB, 13 * MIB)
        return True

    eventually("late calls are told", told)


def test_every_way_of_allocating_is_told_with_its_kind(lab: Lab) -> None:
    lab.cluster.apply(
        pods.pod("ml-team", "driver", pods.container("main", "driver_only", "--hold", "600"))
    )
    name = lab.running("ml-team", "app=driver")
    lines = eventually("driver_only tells", lambda: lab.cluster.logs("ml-team", name))
    truth = json.loads(lines.splitlines()[-1])
    kinds = {kind: truth[kind] for kind in ("device", "managed", "array", "pinned_host")}

    def told() -> bool:
        assert {kind: lab.in_use(pod="driver", kind=kind) for kind in kinds} == kinds
        assert lab.metric("gpumemprof_allocation_failures_total", pod="driver", code="2") == 1
        return True

    eventually("all kinds are told", told)


def test_nothing_of_a_namespace_that_is_off_is_kept_or_leaves_the_node(lab: Lab) -> None:
    lab.running("secret-lab", "app=vault")
    eventually("the pod is seen", lambda: lab.metric("gpumemprof_agent_processes", state="off"))
    for where, told in lab.everything_told().items():
        for word in (b"secret-lab", b"vault", SECRET.encode()):
            assert word not in told, f"{word!r} is in the {where}"


def test_switching_on_takes_effect_within_two_seconds(lab: Lab) -> None:
    lab.switch(**{"secret-lab": "on"})
    time.sleep(2)
    lab.run_in("secret-lab", "vault", "main", "after_switching_on=4")

    def told() -> bool:
        assert lab.pushed_under("after_switching_on", namespace="secret-lab") == 4 * MIB
        return True

    eventually("what is switched on is told", told)
    # and so the search for leaks above finds what is there to be found
    told_now = lab.everything_told()
    for where in ("pushes", "store", "metrics", "page"):
        assert b"secret-lab" in told_now[where], where


def test_switching_off_takes_effect_within_two_seconds(lab: Lab) -> None:
    lab.switch(**{"secret-lab": "off"})
    time.sleep(2)
    lab.run_in("secret-lab", "vault", "main", "after_switching_off=4")
    eventually("its series end", lambda: b"secret-lab" not in lab.metrics_text())
    time.sleep(2 * 2)  # intervals in which it would be pushed
    for where, told in lab.everything_told().items():
        assert b"after_switching_off" not in told, where


def test_a_label_selector_switches_on_the_pods_that_it_selects(lab: Lab) -> None:
    lab.cluster.apply(pods.pod("secret-lab", "open", pods.work("main", "open_data=4")))
    lab.switch(**{"secret-lab": "app in (open)"})
    lab.running("secret-lab", "app=open")
    time.sleep(2)
    lab.run_in("secret-lab", "open", "main", "selected=2")
    lab.run_in("secret-lab", "vault", "main", "not_selected=2")

    def told() -> bool:
        assert lab.pushed_under("selected", pod="open") == 2 * MIB
        return True

    eventually("the selected pod is told", told)
    assert b"not_selected" not in lab.receiver.everything()
    lab.switch(**{"secret-lab": None})


def test_a_value_that_is_not_understood_changes_nothing_and_is_an_event(
    lab: Lab, trainer: str
) -> None:
    lab.switch(**{"ml-team": "app in ("})

    def told() -> bool:
        assert lab.metric("gpumemprof_agent_switch_rejected_total") >= 1
        return True

    eventually("it is counted", told)

    def warned() -> bool:
        events = lab.cluster.read("events", "-n", lab.namespace)["items"]
        about = [e for e in events if e["involvedObject"]["name"] == f"{lab.name}-profiling"]
        assert [(e["type"], "ml-team" in e["message"]) for e in about] == [("Warning", True)]
        return True

    eventually("there is one event", warned)

    lab.run_in("ml-team", trainer, "main", "still_on=2")

    def still() -> bool:
        assert lab.pushed_under("still_on", pod=trainer) == 2 * MIB
        return True

    eventually("the namespace is still on", still)
    lab.switch(**{"ml-team": "on"})


def _may(lab: Lab, *question: str, namespace: str) -> bool:
    account = f"system:serviceaccount:{lab.namespace}:{lab.name}"
    try:
        answer = lab.cluster.kubectl(
            "auth", "can-i", *question, "--as", account, "-n", namespace
        )  # fmt: skip
    except Failed:
        return False
    return answer.strip() == "yes"


def test_it_may_do_what_it_needs(lab: Lab) -> None:
    switch = f"configmap/{lab.name}-profiling"
    for verb in ("get", "list", "watch"):
        assert _may(lab, verb, "pods", namespace="ml-team")
        assert _may(lab, verb, switch, namespace=lab.namespace)
    assert _may(lab, "create", "events", namespace=lab.namespace)
    for watch in ("pods", "switch"):
        assert lab.metric("gpumemprof_agent_api_up", watch=watch) == 1


def test_it_may_do_nothing_else(lab: Lab) -> None:
    def rules(account: str, namespace: str) -> set[str]:
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectRulesReview",
            "spec": {"namespace": namespace},
        }
        text = lab.cluster.kubectl(
            "create", "--validate=false", "-f", "-", "-o", "json",
            "--as", f"system:serviceaccount:{lab.namespace}:{account}",
            "--as-group", "system:authenticated", "--as-group", "system:serviceaccounts",
            stdin=json.dumps(review),
        )  # fmt: skip
        return {
            json.dumps(rule, sort_keys=True) for rule in json.loads(text)["status"]["resourceRules"]
        }

    own = {
        space: rules(lab.name, space) - rules("default", space)
        for space in (lab.namespace, "ml-team")
    }
    watch_pods = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    watch_switch = {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "resourceNames": [f"{lab.name}-profiling"],
        "verbs": ["get", "list", "watch"],
    }
    create_events = {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]}
    as_text = [
        json.dumps(rule, sort_keys=True) for rule in (watch_pods, watch_switch, create_events)
    ]
    assert own == {lab.namespace: set(as_text), "ml-team": {as_text[0]}}


def test_it_goes_on_without_the_api_and_catches_up(lab: Lab, trainer: str) -> None:
    """A minute's outage, at whose end what happened before is forgotten (410 Gone)."""
    late = pods.work("main", "during_outage=5", "--late", "25")
    lab.cluster.apply(pods.pod("ml-team", "outage", late))
    lab.running("ml-team", "app=outage")
    lab.cluster.kubectl("delete", "pod", "-n", "ml-team", "driver", "--now")
    agent = lab.agent()["status"]["podIP"]
    began = time.monotonic()
    with lab.cluster.api_stopped():

        def told() -> bool:
            assert lab.pushed_under("during_outage", pod="outage") == 5 * MIB
            return True

        eventually("what happens in the outage is told", told, 50)
        metrics = lab.cluster.get(f"http://{agent}:9464/metrics").decode()
        assert 'gpumemprof_agent_api_up{node="node-a",watch="pods"} 0.0' in metrics
        lab.cluster.forget_history()
        time.sleep(max(0.0, began + 60 - time.monotonic()))

    def fresh() -> bool:
        return all(
            lab.metric("gpumemprof_agent_api_up", watch=watch) == 1 for watch in ("pods", "switch")
        )

    eventually("the watches are up to date again", fresh, 60)
    assert "listing again" in lab.cluster.logs(lab.namespace, lab.name_of_agent())  # 410
    lab.cluster.apply(pods.pod("ml-team", "after", pods.work("main", "after_outage=6")))
    lab.running("ml-team", "app=after")

    def after() -> bool:
        assert lab.pushed_in_use(pod="after") == 6 * MIB
        return True

    eventually("pods made after the outage are told", after)
    assert lab.pushed(pod=trainer, container="side") == 16 * MIB
    lab.cluster.kubectl("delete", "pod", "-n", "ml-team", "outage", "after", "--now")


def test_series_end_with_their_pod(lab: Lab, trainer: str) -> None:
    """Of one that was deleted before the outage: they stay a minute for what comes late."""

    def gone() -> bool:
        told = lab.metrics_text()
        assert f'pod="{trainer}"'.encode() in told
        return b'pod="driver"' not in told

    eventually("its series are gone", gone, 60)


def test_what_happens_after_it_was_killed_is_counted_once(lab: Lab, trainer: str) -> None:
    before = {c: lab.pushed(pod=trainer, container=c) for c in ("main", "side")}
    lab.kill()
    lab.run_in("ml-team", trainer, "side", "after_the_kill=7")

    def told() -> bool:
        assert lab.pushed_under("after_the_kill", pod=trainer) == 7 * MIB
        return True

    eventually("recording goes on", told)
    now = {c: lab.pushed(pod=trainer, container=c) for c in ("main", "side")}
    assert now == {"main": before["main"], "side": before["side"] + 7 * MIB}


def test_an_upgrade_replaces_the_agent_and_leaves_the_switch_alone(lab: Lab, trainer: str) -> None:
    lab.switch(**{"ml-team": "on", "research": "off"})
    wanted = lab.settings()
    first = lab.agent()["metadata"]["uid"]

    def another_agent(than: str) -> str:
        def found() -> str | None:
            uid = str(lab.agent()["metadata"]["uid"])
            return None if uid == than else uid

        return eventually("the agent is replaced", found, 60)

    values = {**VALUES, "interval": "3s", "profiling": {"ml-team": "off", "secret-lab": "on"}}
    lab.helm("upgrade", lab.name, str(CHART), values=values)
    second = another_agent(first)
    assert lab.settings() == wanted
    lab.run_in("ml-team", trainer, "side", "after_the_upgrade=3")

    def told() -> bool:
        assert lab.pushed_under("after_the_upgrade", pod=trainer) == 3 * MIB
        return True

    eventually("recording goes on", told)

    lab.helm("rollback", lab.name, "1")
    another_agent(second)
    assert lab.settings() == wanted


def test_what_was_pushed_keeps_pyroscopes_rules(lab: Lab) -> None:
    assert lab.receiver.violations == []
    refused = [got for got in lab.receiver.got if got.status != 200]
    assert refused == []


def test_a_real_server_takes_the_plain_manifests(lab: Lab) -> None:
    lab.cluster.apply(pods.namespace("gpumemprof"))
    folder = str(REPOSITORY / "deploy" / "manifests")
    said = lab.cluster.kubectl("apply", "-k", folder, "--dry-run=server")
    assert "daemonset.apps/gpumemprof created (server dry run)" in said


def _uninstall(lab: Lab) -> None:
    """What the agent had in the kernel is gone, too."""
    held = bpf_objects_of(lab.process())
    assert {kind for kind, _ in held} == {"link", "map", "prog"}
    lab.helm("uninstall", lab.name)
    eventually("the agent's pod is gone", lambda: not lab.agents(), 60)
    eventually("nothing is attached", lambda: not any(bpf_object_exists(*one) for one in held))


def test_uninstalling_leaves_nothing_attached(lab: Lab) -> None:
    _uninstall(lab)
    kinds = "daemonset,configmap,secret,serviceaccount,role,rolebinding"
    left = lab.cluster.read(
        kinds, "-n", lab.namespace, "-l", f"app.kubernetes.io/instance={lab.name}"
    )
    assert [item["metadata"]["name"] for item in left["items"]] == [f"{lab.name}-profiling"]
    assert lab.cluster.kubectl("get", "clusterrole", "-o", "name").count(lab.name) == 0


@contextlib.contextmanager
def _forwarded(lab: Lab, port: int) -> Iterator[str]:
    command = ["kubectl", "port-forward", "-n", lab.namespace, lab.name_of_agent(), f":{port}"]
    process = subprocess.Popen(
        lab.cluster.command(*command), stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    try:
        assert process.stdout
        yield "http://127.0.0.1:" + process.stdout.readline().split(":")[1].split()[0]
    finally:
        process.terminate()
        process.wait()


def test_five_capabilities_are_enough_and_helm_4_installs_it(
    cluster: Cluster, receiver: Receiver, lab: Lab
) -> None:
    """Also for programs of other users, in folders that only these may enter; and without a
    Pyroscope its page tells what is held."""
    minimal = Lab(cluster, receiver, helm=4, name="minimal", namespace="monitoring")
    values = {**VALUES, "security": {"mode": "capabilities"}, "pyroscope": {"jitter": "500ms"}}
    minimal.install({**values, "profiling": {"_default": "on"}})
    minimal.agent()
    script = (
        "umask 077; mkdir /tmp/own; cp /srv/work.py /usr/local/cuda/lib64/* /tmp/own;"
        "exec env LD_LIBRARY_PATH=/tmp/own python3 /tmp/own/work.py private_weights=24"
    )
    own = pods.container("main", "sh", "-c", script, securityContext={"runAsUser": 1000})
    cluster.apply(pods.pod("ml-team", "own", own))
    with _forwarded(minimal, 9465) as page:

        def told() -> bool:
            rows = json.loads(cluster.get(f"{page}/api/workloads"))
            found = [row for row in rows if row["pod"] == "own"]
            assert [row["in_use"] for row in found] == [24 * MIB]
            row = found[0]
            folded = cluster.get(f"{page}/api/folded?owner={row['id']}&type=inuse_space")
            assert b"private_weights" in folded
            return True

        eventually("the page tells what is held", told)
    minimal.switch(research="off")
    minimal.helm(
        "upgrade", "minimal", str(CHART), values={**values, "profiling": {"ml-team": "off"}}
    )
    assert minimal.settings() == {"_default": "on", "research": "off"}
    _uninstall(minimal)
