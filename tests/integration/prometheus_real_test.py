"""A real Prometheus scrapes a real exposition and answers the dashboards' own queries."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gpumemprof.export.model import (
    AgentView,
    FailureKey,
    MemoryKey,
    MemoryUse,
    Owner,
    PushStatus,
)
from gpumemprof.export.prometheus import AgentCollector, Exposition
from tests.integration import prometheus_server
from tests.integration.prometheus_server import Prometheus, Vector
from tests.unit.prometheus_examples import (
    GIB,
    GPU_0,
    GPU_1,
    HOST,
    HOST_MEMORY,
    NODE,
    OTHER_MEMORY,
    OTHER_TEAM,
    SERVER,
    SERVER_MEMORY,
    SERVER_PINNED,
    TRAINER,
    TRAINER_MEMORY,
    usual_push,
    usual_view,
)

pytestmark = pytest.mark.skipif(
    not prometheus_server.installed(),
    reason="Prometheus is not installed (Debian: apt-get install prometheus)",
)

DIRECTORY = Path(__file__).parents[2] / "helm" / "gpumemprof" / "dashboards"
AGENT_POD = {"namespace": "gpumemprof", "pod": "gpumemprof-agent-xyz", "container": "agent"}
MIB = 1 << 20

DCGM = "".join(
    f'{name}{{gpu="{gpu}",UUID="{uuid}",device="nvidia{gpu}",modelName="NVIDIA H200",'
    f'Hostname="{NODE}",namespace="{namespace}",pod="p",container="c"}} {mib}\n'
    for name, gpu, uuid, namespace, mib in (
        ("DCGM_FI_DEV_FB_USED", 0, GPU_0, "ml", 22_000),
        ("DCGM_FI_DEV_FB_USED", 1, GPU_1, "ml", 10_000),
        ("DCGM_FI_DEV_FB_USED", 2, "GPU-of-nobody", "", 3),
        ("DCGM_FI_DEV_FB_FREE", 0, GPU_0, "ml", 121_000),
        ("DCGM_FI_DEV_FB_FREE", 1, GPU_1, "ml", 133_000),
        ("DCGM_FI_DEV_FB_FREE", 2, "GPU-of-nobody", "", 143_000),
    )
)

HOSTILE = Owner("", "", "", 'x"} 1\nup{a="\\', NODE)
LONG = Owner("n" * 5_000, "p" * 5_000, "c" * 5_000, "é" * 5_000, NODE)


def later_view() -> AgentView:
    """The same node a moment later: the trainer grew and failed once more, the server failed in a
    way that is new, the team of others shrank, and events were lost."""
    view = usual_view()
    memory = {
        **view.memory,
        TRAINER_MEMORY: MemoryUse(24 * GIB, 25 * GIB, 99 * GIB, 75 * GIB, 4_400, 3_700),
        OTHER_MEMORY: MemoryUse(1 * GIB, 3 * GIB, 3 * GIB, 2 * GIB, 30, 20),
    }
    failures = {**view.failures, FailureKey(TRAINER_MEMORY, 2): 4, FailureKey(SERVER_MEMORY, 2): 1}
    return replace(
        view,
        memory=memory,
        failures=failures,
        owners_overflowed=6,
        counters={
            **view.counters,
            "events": 9_000,
            "events_lost": 10,
            "stacks_truncated": 15,
            "frames_without_symbol": 20,
        },
        processes={"on": 5, "off": 2, "held": 0},
        api_errors={"switch": 12},
        switch_rejected=3,
    )


def later_push() -> PushStatus:
    return PushStatus(
        results={"delivered": 530, "rejected": 4, "empty": 4},
        queued=5,
        last_success_ns=time.time_ns(),
        attempts={"delivered": 530, "rejected": 4, "throttled": 9},
    )


@dataclass
class Scraped:
    """What was scraped. ``first``, ``second``: times (seconds) at which each view had stood for a
    while."""

    prometheus: Prometheus
    content_types: list[str]
    first: float
    second: float


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """A Prometheus that scraped two views of an agent, set up as the chart's PodMonitor does it,
    and DCGM's exporter."""
    view, push = usual_view(), usual_push()
    exposition = Exposition(
        AgentCollector(lambda: replace(view, time_ns=time.time_ns()), lambda: push)
    )
    with (
        prometheus_server.serving(exposition) as (agent, content_types),
        prometheus_server.serving(lambda _: (DCGM.encode(), "text/plain")) as (dcgm, _),
        prometheus_server.running(
            tmp_path_factory.mktemp("prometheus"),
            [
                {
                    "job_name": "gpumemprof",
                    "honor_labels": True,
                    "label_limit": 63,
                    "label_name_length_limit": 511,
                    "label_value_length_limit": 1023,
                    "static_configs": [{"targets": [agent], "labels": AGENT_POD}],
                },
                {
                    "job_name": "dcgm",
                    "honor_labels": True,
                    "static_configs": [{"targets": [dcgm]}],
                },
            ],
        ) as prometheus,
    ):
        first = _stood(prometheus, 20 * GIB)
        view, push = later_view(), later_push()
        second = _stood(prometheus, 24 * GIB)
        yield Scraped(prometheus, content_types, first, second)


def _stood(prometheus: Prometheus, trainer: int) -> float:
    """Waits for three scrapes of a view; the time of the last."""
    trainers = f'gpumemprof_memory_in_use_bytes{{pod="{TRAINER.pod}"}}'
    at = 0.0
    for _ in range(3):
        found = prometheus.until(
            f'timestamp({trainers}) > {at} and {trainers} == {trainer} and on() up{{job="dcgm"}}',
            bool,
        )
        at = next(iter(found.values()))
    return at


def asked(scraped: Scraped, expression: str, **values: str) -> Vector:
    """The answer to a dashboard's query, with Grafana's variables filled in: the time shown begins
    at the first view and ends at the second."""
    shown = f"{round((scraped.second - scraped.first) * 1000)}ms"
    variables = {
        "namespace": ".*",
        "pod": ".*",
        "node": ".*",
        "__range": shown,
        "__rate_interval": "1m",
        **values,
    }
    filled = re.sub(r"\$([a-z_]\w*)", lambda match: variables[match.group(1)], expression)
    return scraped.prometheus.query(filled, scraped.second)


def by(result: Vector, *names: str) -> dict[Any, float]:
    """A result by the values of some labels (one: a text; more: a tuple)."""
    keyed: dict[Any, float] = {}
    for labels, number in result.items():
        values = tuple(dict(labels).get(name, "") for name in names)
        key = values[0] if len(values) == 1 else values
        assert key not in keyed
        keyed[key] = number
    return keyed


def one(result: Vector) -> float:
    assert len(result) == 1, result
    return next(iter(result.values()))


def queries() -> dict[tuple[str, str, str], str]:
    """(dashboard, panel, reference) → expression, of all dashboards."""
    found = {}
    for path in DIRECTORY.glob("*.json"):
        dashboard = json.loads(path.read_text())
        for panel in dashboard["panels"]:
            for target in panel.get("targets", []):
                if target["datasource"]["type"] == "prometheus":
                    key = (path.stem.removeprefix("gpumemprof-"), panel["title"], target["refId"])
                    assert key not in found
                    found[key] = target["expr"]
    return found


Check = Callable[[Vector], bool]
POD, POD_KEYS = TRAINER.pod, ("namespace", "workload", "pod")


def equals(expected: dict[Any, float], *names: str) -> Check:
    """Exactly these series."""

    def check(result: Vector) -> bool:
        assert by(result, *names) == expected
        return True

    return check


def is_(expected: float) -> Check:
    return equals({(): expected})


def grew(*expected: Any, names: tuple[str, ...] = ()) -> Check:
    """Exactly these series are above 0, no other below (Prometheus extrapolates rates)."""

    def check(result: Vector) -> bool:
        keyed = by(result, *names)
        assert all(number >= 0 for number in keyed.values()), keyed
        assert {key for key, number in keyed.items() if number} == set(expected or [()])
        return True

    return check


def recent(*expected: Any, names: tuple[str, ...] = ()) -> Check:
    """Exactly these series, ages around 0: a sample has the time at which its scrape began."""

    def check(result: Vector) -> bool:
        keyed = by(result, *names)
        assert set(keyed) == set(expected)
        assert all(-10 < number < 600 for number in keyed.values()), keyed
        return True

    return check


TRAINER_POD = ("ml", "trainer", TRAINER.pod)
SERVER_POD = ("ml", "server", SERVER.pod)
OTHER_POD = ("vision", "detector", OTHER_TEAM.pod)
HOST_PROCESS = ("", HOST.workload, "")
HELD_BY_POD = {
    ("ml", TRAINER.pod): 24 * GIB,
    ("ml", SERVER.pod): 6 * GIB,
    ("vision", OTHER_TEAM.pod): 1 * GIB,
    ("", ""): 4096,
}
HELD = 31 * GIB + 4096

OVERVIEW: dict[tuple[str, str], Check] = {
    ("GPU memory in use", "A"): is_(HELD),
    ("Pods that hold GPU memory", "A"): is_(4),
    ("Failed allocations, over the time shown", "A"): is_(2),
    ("Pinned host memory", "A"): is_(GIB),
    ("Pods", "A"): equals(
        {TRAINER_POD: 24 * GIB, SERVER_POD: 6 * GIB, OTHER_POD: GIB, HOST_PROCESS: 4096}, *POD_KEYS
    ),
    ("Pods", "B"): equals(
        {TRAINER_POD: 25 * GIB, SERVER_POD: 7 * GIB, OTHER_POD: 3 * GIB, HOST_PROCESS: 8192},
        *POD_KEYS,
    ),
    ("Pods", "C"): equals(
        {TRAINER_POD: 4 * GIB, SERVER_POD: 0, OTHER_POD: -2 * GIB, HOST_PROCESS: 0}, *POD_KEYS
    ),
    ("Pods", "D"): equals({TRAINER_POD: 1, SERVER_POD: 1}, *POD_KEYS),
    ("In use over time, each pod", "A"): equals(HELD_BY_POD, "namespace", "pod"),
    ("GPU memory in use, by pod", "A"): equals(HELD_BY_POD, "namespace", "pod"),
    ("GPU memory in use, by pod", "B"): is_(286_000 * MIB),
    ("GPU memory in use, by pod", "C"): is_(32_000 * MIB),
    ("Failed allocations", "A"): grew(
        ("ml", TRAINER.pod, "out_of_memory", "2"),
        ("ml", SERVER.pod, "out_of_memory", "2"),
        names=("namespace", "pod", "error", "code"),
    ),
    ("Failed allocations over the time shown, with their error codes", "A"): equals(
        {
            (*TRAINER_POD, "main", "device", "out_of_memory", "2"): 1,
            (*SERVER_POD, "main", "device", "out_of_memory", "2"): 1,
        },
        *POD_KEYS,
        "container",
        "kind",
        "error",
        "code",
    ),
    ("Grown most over the time shown", "A"): equals({TRAINER_POD: 4 * GIB}, *POD_KEYS),
    ("GPUs", "A"): equals(
        {(NODE, "0", GPU_0): 24 * GIB + 4096, (NODE, "1", GPU_1): 7 * GIB},
        "node",
        "gpu",
        "gpu_uuid",
    ),
    ("GPUs", "B"): equals({GPU_0: 22_000 * MIB, GPU_1: 10_000 * MIB}, "gpu_uuid"),
    ("GPUs", "C"): equals({GPU_0: 143_000 * MIB, GPU_1: 143_000 * MIB}, "gpu_uuid"),
}

WORKLOAD: dict[tuple[str, str], Check] = {
    ("In use", "A"): is_(24 * GIB),
    ("Highest peak of one pod", "A"): is_(25 * GIB),
    ("Allocated per second", "A"): grew(),
    ("Failed allocations, over the time shown", "A"): is_(1),
    ("In use, by pod and container", "A"): equals(
        {(TRAINER.pod, "main"): 24 * GIB}, "pod", "container"
    ),
    ("In use, by kind", "A"): equals({"device": 24 * GIB}, "kind"),
    ("In use, by GPU", "A"): equals({(NODE, "0"): 24 * GIB}, "node", "gpu"),
    ("Allocated and freed, per second", "A"): grew(),
    ("Allocated and freed, per second", "B"): grew(),
    ("Calls per second", "A"): grew(),
    ("Calls per second", "B"): grew(),
    ("Failed allocations over the time shown", "A"): equals(
        {(TRAINER.pod, "main", "device", "out_of_memory", "2"): 1},
        "pod",
        "container",
        "kind",
        "error",
        "code",
    ),
}

AGENT: dict[tuple[str, str], Check] = {
    ("Agents", "A"): is_(1),
    ("Lost, over the time shown", "A"): is_(7),
    ("Watches of the API that are stale", "A"): is_(1),
    ("Pushes given up, over the time shown", "A"): is_(3),
    ("Versions", "A"): equals(
        {(NODE, "libbpf 1.1", "uprobe multi", "6.8.0-azure"): 1},
        "node",
        "loader",
        "attach",
        "kernel",
    ),
    ("Age of the figures", "A"): recent(NODE, names=("node",)),
    ("Events received, per second", "A"): grew(NODE, names=("node",)),
    ("Lost, by cause", "A"): grew("events_lost", "stacks_truncated", names=("cause",)),
    ("Lost over the time shown, by node and cause", "A"): equals(
        {(NODE, "events_lost"): 3, (NODE, "stacks_truncated"): 4}, "node", "cause"
    ),
    ("Stacks that end early, frames without a symbol", "A"): grew(
        "stacks_truncated", names=("cause",)
    ),
    ("Stacks that end early, frames without a symbol", "B"): grew(NODE, names=("node",)),
    ("Processes that use CUDA, by state", "A"): equals({"on": 5, "off": 2, "held": 0}, "state"),
    ("Libraries with probes", "A"): equals({"libcuda": 1, "libcudart": 2, "loader": 3}, "library"),
    ("Libraries with probes", "B"): is_(1),
    ("Watches of the API (1: up to date)", "A"): equals(
        {(NODE, "pods"): 1, (NODE, "switch"): 0}, "node", "watch"
    ),
    ("Errors of the API, and values of the switch not understood", "A"): grew(
        (NODE, "switch"), names=("node", "watch")
    ),
    ("Errors of the API, and values of the switch not understood", "B"): grew(
        NODE, names=("node",)
    ),
    ("Pushes per second, by how they ended", "A"): grew("delivered", "rejected", names=("result",)),
    ("Requests to Pyroscope per second, by what was answered", "A"): grew(
        "delivered", "rejected", "throttled", names=("result",)
    ),
    ("Pushes that wait", "A"): equals({NODE: 5}, "node"),
    ("Since the last accepted push", "A"): recent(NODE, names=("node",)),
    ("Processors used", "A"): recent(NODE, names=("node",)),
    ("Resident memory", "A"): grew(NODE, names=("node",)),
    ("Beyond the limits", "A"): equals({}, "node", "family"),
    ("Beyond the limits", "B"): grew(NODE, names=("node",)),
    ("Bytes in use that are not told, for the limit of series", "A"): equals({NODE: 0}, "node"),
}

EXPECTED = {
    (dashboard, *key): check
    for dashboard, checks in (("overview", OVERVIEW), ("workload", WORKLOAD), ("agent", AGENT))
    for key, check in checks.items()
}


def test_every_query_of_the_dashboards_is_looked_at() -> None:
    assert queries().keys() == EXPECTED.keys()


@pytest.mark.parametrize("key", EXPECTED, ids="/".join)
def test_a_query_of_the_dashboards_tells_what_the_agent_told(
    scraped: Scraped, key: tuple[str, str, str]
) -> None:
    chosen = {"namespace": "ml", "workload": "trainer"} if key[0] == "workload" else {}
    assert EXPECTED[key](asked(scraped, queries()[key], **chosen))


def test_the_choice_of_a_namespace_keeps_the_others_out(scraped: Scraped) -> None:
    for (dashboard, panel, reference), expression in queries().items():
        if dashboard == "overview":
            result = asked(scraped, expression, namespace="vision")
            namespaces = {dict(labels).get("namespace", "vision") for labels in result}
            assert namespaces <= {"vision"}, (panel, reference)
    in_use = queries()["overview", "GPU memory in use", "A"]
    assert one(asked(scraped, in_use, namespace="vision")) == GIB
    assert one(asked(scraped, in_use, namespace="ml|vision")) == 31 * GIB


def test_the_services_to_choose_from_are_those_of_the_profiles_largest_first(
    scraped: Scraped,
) -> None:
    overview = json.loads((DIRECTORY / "gpumemprof-overview.json").read_text())
    (variable,) = (v for v in overview["templating"]["list"] if v["name"] == "service")
    expression = variable["query"].removeprefix("query_result(").removesuffix(")")
    services = asked(scraped, expression)
    assert [dict(labels)["service_name"] for labels in services] == [
        "gpu/ml/trainer",
        "gpu/ml/server",
        "gpu/vision/detector",
    ]


def test_variables_are_filled_from_labels_that_exist(scraped: Scraped) -> None:
    wanted = {
        "namespace": {"ml", "vision"},
        "pod": {TRAINER.pod, SERVER.pod},
        "workload": {"trainer", "server"},
        "node": {NODE},
    }
    seen = set()
    for path in DIRECTORY.glob("*.json"):
        for variable in json.loads(path.read_text())["templating"]["list"]:
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", str(variable.get("query")))
            if found is None:
                continue
            selector, label = found.groups()
            chosen = "trainer" if label == "pod" and "workload" in selector else None
            for name, text in (("$namespace", "ml"), ("$workload", str(chosen))):
                selector = selector.replace(name, text)
            values = set(
                scraped.prometheus.get(f"/api/v1/label/{label}/values", **{"match[]": selector})
            )
            assert values == ({TRAINER.pod} if chosen else wanted[label])
            seen.add(label)
    assert seen == set(wanted)


def test_the_agents_own_pod_does_not_hide_the_programs(scraped: Scraped) -> None:
    name = "gpumemprof_memory_in_use_bytes"
    assert by(scraped.prometheus.query(name, scraped.second), "namespace", "pod", "kind") == {
        ("ml", TRAINER.pod, "device"): 24 * GIB,
        ("ml", SERVER.pod, "device"): 6 * GIB,
        ("ml", SERVER.pod, "pinned_host"): GIB,
        ("vision", OTHER_TEAM.pod, "managed"): GIB,
        ("", "", "device"): 4096,  # of no pod; certainly not of the agent's
    }
    exported = scraped.prometheus.query('{exported_namespace!=""}', scraped.second)
    assert not exported
    about = scraped.prometheus.query("gpumemprof_agent_info", scraped.second)
    assert by(about, "namespace", "pod") == {tuple(AGENT_POD.values())[:2]: 1}


def test_the_join_with_dcgm_that_the_documentation_shows(scraped: Scraped) -> None:
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    shown = [block for block in re.findall(r"```promql\n(.*?)```", text, re.S) if "DCGM" in block]
    assert shown
    for expression in shown:
        result = by(scraped.prometheus.query(expression, scraped.second), "gpu_uuid")
        assert result == {
            GPU_0: 22_000 * MIB - 24 * GIB - 4096,
            GPU_1: 10_000 * MIB - 7 * GIB,
        }


def test_prometheus_is_given_openmetrics_which_it_asks_for(scraped: Scraped) -> None:
    assert scraped.content_types
    assert all(kind.startswith("application/openmetrics-text") for kind in scraped.content_types)


def test_all_types_and_helps_arrive(scraped: Scraped) -> None:
    known = scraped.prometheus.get("/api/v1/metadata")
    assert known["gpumemprof_memory_in_use_bytes"][0]["type"] == "gauge"
    counter = known.get("gpumemprof_allocations_total") or known["gpumemprof_allocations"]
    assert counter[0]["type"] == "counter"
    assert counter[0]["help"] == "Allocating calls that succeeded."


@pytest.mark.parametrize("openmetrics", [True, False], ids=["openmetrics", "text"])
def test_hostile_and_endless_names_are_scraped_within_azures_limits(
    tmp_path: Path, openmetrics: bool
) -> None:
    hostile = MemoryKey(HOSTILE, "device", "", "")
    long = MemoryKey(LONG, "device", "", "")
    view = replace(
        usual_view(), memory={hostile: MemoryUse(in_use=7), long: MemoryUse(in_use=8)}, failures={}
    )
    exposition = Exposition(AgentCollector(lambda: view))
    with (
        prometheus_server.serving(lambda accept: exposition(accept if openmetrics else "")) as (
            agent,
            _,
        ),
        prometheus_server.running(
            tmp_path,
            [
                {
                    "job_name": "gpumemprof",
                    "honor_labels": True,
                    "label_limit": 63,
                    "label_name_length_limit": 511,
                    "label_value_length_limit": 1023,
                    "static_configs": [{"targets": [agent], "labels": AGENT_POD}],
                }
            ],
        ) as prometheus,
    ):
        prometheus.until("up", bool)
        found = prometheus.until("gpumemprof_memory_in_use_bytes", bool)
        assert sorted(found.values()) == [7, 8]
        assert {dict(labels)["workload"] for labels in found if found[labels] == 7} == {
            'x"} 1\\nup{a="\\'
        }
        assert one(prometheus.query("up")) == 1


def test_series_of_a_pod_end_with_it(tmp_path: Path) -> None:
    views = [usual_view()]
    exposition = Exposition(AgentCollector(lambda: views[0]))
    with (
        prometheus_server.serving(exposition) as (agent, _),
        prometheus_server.running(
            tmp_path,
            [
                {
                    "job_name": "gpumemprof",
                    "honor_labels": True,
                    "static_configs": [{"targets": [agent], "labels": AGENT_POD}],
                }
            ],
        ) as prometheus,
    ):
        prometheus.until(f'gpumemprof_memory_in_use_bytes{{pod="{POD}"}}', bool)
        views[0] = replace(usual_view(), memory={HOST_MEMORY: MemoryUse(in_use=1)}, failures={})
        prometheus.until(f'{{__name__=~"gpumemprof_.+",pod="{POD}"}}', lambda found: not found)
        assert SERVER_PINNED not in views[0].memory
        assert one(prometheus.query("gpumemprof_memory_in_use_bytes")) == 1
