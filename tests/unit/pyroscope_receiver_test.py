"""The receiver that stands for Pyroscope in tests refuses, and remembers, what it should."""

from __future__ import annotations

import base64
import gzip
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests
from pyroscope_examples import container, now_ns, settings

from gpumemprof.export.pyroscope.encode import Encoder
from gpumemprof.profile import pprof_pb2
from tests.fakes import pyroscope_rules as rules
from tests.fakes.pyroscope_receiver import Receiver

ROOT = Path(__file__).parents[2]
LABELS = {"__name__": "memory", "__delta__": "false", "service_name": "gpu/ml/trainer"}


def message(**fields) -> pprof_pb2.Profile:
    """One stack of one function with one sample type."""
    profile = pprof_pb2.Profile(
        string_table=["", "inuse_space", "bytes", "space", "main", "kind", "device", "a-b"],
        sample_type=[pprof_pb2.ValueType(type=1, unit=2)],
        period_type=pprof_pb2.ValueType(type=3, unit=2),
        function=[pprof_pb2.Function(id=1, name=4)],
        location=[pprof_pb2.Location(id=1, line=[pprof_pb2.Line(function_id=1)])],
        sample=[pprof_pb2.Sample(location_id=[1], value=[7])],
        time_nanos=now_ns(),
    )
    profile.sample[0].label.add(key=5, str=6)
    for name, value in fields.items():
        if isinstance(value, list):
            profile.ClearField(name)
            getattr(profile, name).extend(value)
        else:
            setattr(profile, name, value)
    return profile


def sample(**fields) -> pprof_pb2.Sample:
    return pprof_pb2.Sample(**{"location_id": [1], "value": [7], **fields})


def body(profile: pprof_pb2.Profile | bytes, labels=LABELS) -> bytes:
    raw = profile if isinstance(profile, bytes) else gzip.compress(profile.SerializeToString())
    pairs = labels if isinstance(labels, list) else list(labels.items())
    series = {
        "labels": [{"name": name, "value": value} for name, value in pairs],
        "samples": [{"rawProfile": base64.b64encode(raw).decode()}],
    }
    return json.dumps({"series": [series]}).encode()


def without(name: str) -> dict[str, str]:
    return {key: value for key, value in LABELS.items() if key != name}


def test_a_good_push_is_stored_under_its_type_and_labels() -> None:
    accepted = rules.push(body(message()), time.time_ns())
    (one,) = accepted.stored
    assert one.type_id == "memory:inuse_space:bytes:space:bytes"
    assert dict(one.labels) == {"service_name": "gpu/ml/trainer", "kind": "device"}
    assert (one.total, one.stacks) == (7, {("main",): 7})
    assert accepted.violations == []


HOUR = 3600 * 10**9


@pytest.mark.parametrize(
    ("status", "data"),
    [
        (400, b"{}"),
        (400, b'{"series": []}'),
        (400, body(message(), {})),
        (400, body(message(), without("__name__"))),
        (400, body(message(), {**LABELS, "a-b": "x"})),
        (400, body(message(), {**LABELS, "n" * 1025: "x"})),
        (400, body(message(), {**LABELS, "pod": "x" * 2049})),
        (400, body(message(), [*LABELS.items(), ("pod", "a"), ("pod", "b")])),
        (400, body(message(), {**LABELS, **{f"l{i}": "x" for i in range(27)}})),
        (400, body(message(time_nanos=now_ns() - HOUR - 16 * 10**9))),
        (400, body(message(time_nanos=now_ns() + HOUR))),
        (400, body(message(sample=[sample()] * 16_001))),
        (400, body(message(sample_type=[pprof_pb2.ValueType(type=7, unit=2)]))),
        (400, body(message(sample_type=[]))),
        (400, body(message(sample=[sample(value=[1, 2])]))),
        (400, body(message(location=[pprof_pb2.Location(id=0)]))),
        (400, body(message(function=[pprof_pb2.Function(id=1, name=99)]))),
        (400, body(message(string_table=["x"]))),
        (400, body(gzip.compress(bytes(5 << 20)))),
        (500, body(b"\x1f\x8bbroken")),
        (500, body(gzip.compress(b"\xff\xff\xff"))),
        (500, body(message(sample=[sample(location_id=[5])]))),
    ],
)
def test_what_the_server_refuses(status, data) -> None:
    with pytest.raises(rules.Refused) as raised:
        rules.push(data, time.time_ns())
    assert raised.value.status == status


@pytest.mark.parametrize(
    ("words", "data"),
    [
        ("negative", body(message(sample=[sample(value=[-1])]))),
        ("zeros", body(message(sample=[sample(value=[0])]))),
        ("all-zero", body(message(sample=[]))),
        ("numeric", body(message(sample=[sample(label=[pprof_pb2.Label(key=5, num=3)])]))),
        ("leaf", body(message(sample=[sample(location_id=[1] * 1001)]))),
        ("unknown_service", body(message(), without("service_name"))),
        ("__delta__", body(message(), without("__delta__"))),
        ("hidden", body(message(), {**LABELS, "a.b": "x"})),
        ("empty", body(message(), {**LABELS, "pod": ""})),
        ("65,535", body(message(string_table=[*message().string_table, "x" * 70_000]))),
        ("make a series", body(message(string_table=["", "inuse_space", "bytes", "space", "m",
                                                     "pid", "1"]))),
    ],
)  # fmt: skip
def test_what_the_server_loses_without_saying_so(words, data) -> None:
    assert any(words in one for one in rules.push(data, time.time_ns()).violations)


def folded(text: bytes, name: str = "gpu/a.inuse_space{pod=x}", **query) -> rules.Accepted:
    told = {"name": name, "from": str(now_ns()), "format": "folded", **query}
    return rules.ingest(told, text, time.time_ns())


def test_folded_stacks_have_a_type_of_their_own() -> None:
    (one,) = folded(b"main;f 7\nmain;g 1\n").stored
    assert one.type_id == "memory:inuse_space:bytes::"
    assert dict(one.labels) == {"service_name": "gpu/a", "pod": "x"}
    assert (one.total, one.stacks) == (8, {("main", "f"): 7, ("main", "g"): 1})


@pytest.mark.parametrize(
    ("status", "text", "name"),
    [
        (422, b"main 1.5\n", "a.inuse_space"),
        (500, b"main -1\n", "a.inuse_space"),
        (400, b"main 1\n", "a.peak_space"),
        (400, b"main 1\n", "a"),
        (400, b"main 1\n", "a b.inuse_space"),
        (400, b"main 1\n", "a.inuse_space{pod=x,y}"),
        (400, b"main 1\n", "a.inuse_space{po-d=x}"),
    ],
)
def test_folded_stacks_that_the_server_refuses(status, text, name) -> None:
    with pytest.raises(rules.Refused) as raised:
        folded(text, name)
    assert raised.value.status == status


@pytest.mark.parametrize(
    ("words", "text", "name"),
    [
        ("gzipped", gzip.compress(b"main 1\n"), "a.inuse_space"),
        ("too long", b"x" * 70_000 + b" 1\n", "a.inuse_space"),
        ("without a value", b"main\nf 1\n", "a.inuse_space"),
        ("quotes", b"main 1\n", 'a.inuse_space{pod="x"}'),
    ],
)
def test_folded_stacks_that_the_server_loses(words, text, name) -> None:
    assert any(words in one for one in folded(text, name).violations)


def test_a_tenant_has_a_burst_of_two_megabytes() -> None:
    large = message(string_table=[*message().string_table, *("x" * 60_000 for _ in range(33))])
    with Receiver() as receiver:
        url = receiver.url + "/push.v1.PusherService/Push"
        headers = {"Content-Type": "application/json"}
        answers = [
            requests.post(url, body(large), headers={**headers, **tenant}, timeout=20).status_code
            for tenant in ({}, {}, {"X-Scope-OrgID": "other"})
        ]
    assert answers == [200, 429, 200]


def test_it_runs_on_its_own_and_tells_what_it_got() -> None:
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.pyroscope_receiver", "--host", "127.0.0.1", "--port",
         "0", "--prefix", "/pyro"], cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert program.stdout
        url = program.stdout.readline().split()[-1]
        base = url.removesuffix("/pyro")
        made = container()
        for encoded in Encoder(settings(url)).encode(made):
            request = encoded.push.request(made.time_ns)
            headers = {"Content-Type": request.content_type}
            requests.post(url + request.target, request.body, headers=headers, timeout=20)
        told = requests.post(base + "/test/answer", json={"status": 429, "times": 2}, timeout=20)
        assert told.status_code == 200
        assert requests.post(url + "/ingest", b"", timeout=20).status_code == 429
        pushes = requests.get(base + "/test/pushes", timeout=20).json()
        totals = requests.get(base + "/test/totals", timeout=20).json()
        assert requests.get(base + "/test/violations", timeout=20).json() == []
        assert b"KVCache.__init__" in requests.get(base + "/test/raw", timeout=20).content
        assert [one["status"] for one in requests.get(base + "/test/requests", timeout=20).json()]
    finally:
        program.kill()
        program.wait()
        program.stdout.close()
    assert {one["labels"]["namespace"] for one in pushes} == {"ml"}
    held = made.profile.total.inuse_space
    assert sum(totals["memory:inuse_space:bytes:space:bytes"].values()) == held
