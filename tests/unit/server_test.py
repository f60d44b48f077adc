"""What the agent answers: to whom, within which limits, and what happens to who asks for more."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumemprof.errors import UsageError
from gpumemprof.export import http_request, http_server
from gpumemprof.export.http_request import HttpError
from gpumemprof.export.model import PushStatus
from gpumemprof.export.server import AgentServer, Health
from gpumemprof.export.store import ProfileStore
from gpumemprof.export.store_files import owner_id
from gpumemprof.profile import pprof
from gpumemprof.profile.model import Sample, Values
from tests.unit.agent_examples import HOSTILE, ExampleAgent, metrics, serve
from tests.unit.profile_examples import GIB, MIB, SECOND, START, TRAINING, labels
from tests.unit.store_examples import (
    HOST,
    INTERVAL,
    LEAK,
    SERVER,
    TRAINER,
    at,
    holding,
    out_of_memory,
)


@pytest.fixture
def agent() -> ExampleAgent:
    return ExampleAgent()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ProfileStore]:
    store = ProfileStore(tmp_path / "store", 64 * MIB, lambda: START)
    yield store
    store.close()


@pytest.fixture
def server(agent: ExampleAgent, store: ProfileStore) -> Iterator[AgentServer]:
    server = serve(agent, store)
    yield server
    server.close()


def ask(port: int | None, path: str, method: str = "GET", **headers: str) -> Any:
    """The answer, its body read."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, path, headers={k.replace("_", "-"): v for k, v in headers.items()})
    response = connection.getresponse()
    response.body = response.read()
    connection.close()
    return response


def page(server: AgentServer, path: str) -> Any:
    response = ask(server.page_port, path)
    assert response.status == 200, response.body
    return json.loads(response.body)


def say(port: int | None, data: bytes) -> bytes:
    """All that the server answers to some bytes."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(data)
        answer = b""
        try:
            while part := connection.recv(65536):
                answer += part
        except ConnectionResetError:
            pass
        return answer


# On the pod's address


def test_health_is_what_the_agent_says_of_itself(server: AgentServer, agent: ExampleAgent) -> None:
    assert ask(server.metrics_port, "/healthz").status == 200
    assert ask(server.metrics_port, "/readyz").status == 200
    agent.well = Health(not_ready="no pod list yet")
    assert ask(server.metrics_port, "/healthz").status == 200
    ready = ask(server.metrics_port, "/readyz")
    assert (ready.status, ready.body) == (503, b"no pod list yet\n")
    agent.well = Health(not_alive="the last turn was 90 s ago")
    assert ask(server.metrics_port, "/healthz").status == 503
    assert ask(server.metrics_port, "/readyz").status == 503


def test_metrics_come_in_the_format_that_is_asked_for(server: AgentServer) -> None:
    answer = ask(server.metrics_port, "/metrics", Accept="application/openmetrics-text")
    assert answer.body == b"# application/openmetrics-text\n"
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4"


@pytest.mark.parametrize("path", ["/", "/api/workloads", "/api/profile.pb.gz", "/page.js"])
def test_profiles_are_never_shown_on_the_pods_address(server: AgentServer, path: str) -> None:
    assert ask(server.metrics_port, path).status == 404


def test_health_is_answered_while_others_hold_connections_and_say_nothing(
    server: AgentServer,
) -> None:
    silent = [
        socket.create_connection(("127.0.0.1", server.metrics_port))
        for _ in range(http_server.MAX_CONNECTIONS + 20)
    ]
    try:
        for _ in range(5):
            assert ask(server.metrics_port, "/healthz").status == 200
    finally:
        for connection in silent:
            connection.close()


def test_health_is_answered_while_others_do_not_take_their_answers(agent: ExampleAgent) -> None:
    server = AgentServer(
        agent,
        lambda accept: (bytes(20 * MIB), "text/plain"),
        None,
        metrics_listen=("127.0.0.1", 0),
        page_listen=None,
    )
    greedy = []
    try:
        for _ in range(http_server.MAX_CONNECTIONS + 3):
            connection = socket.create_connection(("127.0.0.1", server.metrics_port), timeout=20)
            greedy.append(connection)
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        assert ask(server.metrics_port, "/healthz").status == 200
    finally:
        for connection in greedy:
            connection.close()
        server.close()


def test_who_takes_too_long_to_ask_is_dropped(
    agent: ExampleAgent, store: ProfileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "READ_SECONDS", 0.1)
    server = serve(agent, store)
    try:
        assert say(server.page_port, b"GET / HTTP/1.1\r\nHost: local") == b""
    finally:
        server.close()


# On localhost


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "10.0.0.7:9465", "127.0.0.1.nip.io", ""]
)
def test_a_site_that_calls_itself_127_0_0_1_learns_nothing(server: AgentServer, host: str) -> None:
    answer = ask(server.page_port, "/api/workloads", Host=host)
    assert answer.status == 403
    assert b"localhost" in answer.body


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8080", "127.0.0.1:9465", "[::1]:1", "LOCALHOST"]
)
def test_port_forward_may_use_any_local_name_and_port(server: AgentServer, host: str) -> None:
    assert ask(server.page_port, "/api/workloads", Host=host).status == 200


def test_every_answer_of_the_page_forbids_what_a_page_does_not_need(server: AgentServer) -> None:
    for path in ("/", "/page.js", "/api/workloads", "/nothing"):
        headers = ask(server.page_port, path).headers
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Access-Control-Allow-Origin" not in headers


def test_the_page_and_the_viewer_are_served(server: AgentServer) -> None:
    assert b"<!DOCTYPE html>" in ask(server.page_port, "/").body
    for name, kind in (("page", "js"), ("page", "css"), ("viewer", "js"), ("viewer", "css")):
        answer = ask(server.page_port, f"/{name}.{kind}")
        assert answer.status == 200
        assert ("javascript" if kind == "js" else "css") in answer.headers["Content-Type"]


def test_a_page_for_others_than_this_machine_is_refused(
    agent: ExampleAgent, store: ProfileStore
) -> None:
    with pytest.raises(UsageError, match=r"page\.listen: 0\.0\.0\.0:0 .*127\.0\.0\.1"):
        AgentServer(
            agent,
            metrics,
            store,
            metrics_listen=("127.0.0.1", 0),
            page_listen=("0.0.0.0", 0),
        )


def test_a_port_in_use_names_its_setting_and_leaves_none_open(
    agent: ExampleAgent, store: ProfileStore, server: AgentServer
) -> None:
    with pytest.raises(UsageError, match=r"metrics\.listen: 127\.0\.0\.1:\d+ .*in use"):
        serve(agent, store, metrics_port=server.metrics_port)
    free = socket.create_server(("127.0.0.1", 0))
    port = free.getsockname()[1]
    free.close()
    with pytest.raises(UsageError, match=r"page\.listen: 127\.0\.0\.1:\d+ .*in use"):
        serve(agent, store, page_port=server.page_port or 0, metrics_port=port)
    socket.create_server(("127.0.0.1", port)).close()


@pytest.mark.parametrize("host", ["203.0.113.77", "no such host", "\udcff", "a" * 300])
def test_an_address_that_is_not_ours_names_its_setting(
    agent: ExampleAgent, store: ProfileStore, host: str
) -> None:
    with pytest.raises(UsageError, match=r"metrics\.listen"):
        AgentServer(agent, metrics, store, metrics_listen=(host, 0), page_listen=None)


def test_all_addresses_are_those_of_both_ip_versions(agent: ExampleAgent) -> None:
    server = AgentServer(agent, metrics, None, metrics_listen=("", 0), page_listen=None)
    try:
        assert ask(server.metrics_port, "/healthz").status == 200
        if socket.has_dualstack_ipv6():
            with socket.create_connection(("::1", server.metrics_port), timeout=20) as connection:
                connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
                assert connection.recv(100).startswith(b"HTTP/1.1 200")
    finally:
        server.close()


# The protocol


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"POST /api/workloads HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"DELETE / HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"GET / HTTP/2.0\r\nHost: localhost\r\n\r\n", 505),
        (b"GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n folded: line\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nA: b\nc: d\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"hello\r\n\r\n", 400),
        (b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET /%2e%2e/page.js HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"GET /?" + b"a&" * 30 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: " + b"a" * 20_000 + b"\r\n\r\n", 431),
    ],
)
def test_what_is_not_answered_is_told_why_as_json(
    server: AgentServer, data: bytes, status: int
) -> None:
    head, _, body = say(server.page_port, data).partition(b"\r\n\r\n")
    assert int(head.split()[1]) == status
    assert json.loads(body)["error"]


def test_head_has_the_headers_and_no_body(server: AgentServer) -> None:
    whole = ask(server.page_port, "/page.css")
    head = ask(server.page_port, "/page.css", "HEAD")
    assert head.status == 200
    assert head.headers["Content-Length"] == whole.headers["Content-Length"]
    assert head.body == b""


def test_one_connection_is_one_request(server: AgentServer) -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
    assert say(server.metrics_port, request * 3).count(b"HTTP/1.1") == 1


def test_large_answers_are_compressed_for_who_takes_it(
    server: AgentServer, agent: ExampleAgent
) -> None:
    agent.see(TRAINER, TRAINING, START)
    path = f"/api/profile?owner={owner_id(TRAINER)}"
    plain = ask(server.page_port, path)
    small = ask(server.page_port, path, Accept_Encoding="gzip, br")
    assert small.headers["Content-Encoding"] == "gzip"
    assert len(small.body) < len(plain.body)
    assert gzip.decompress(small.body) == plain.body


@given(st.binary(max_size=300) | st.text(max_size=100).map(lambda text: text.encode()))
def test_no_bytes_make_anything_but_a_request_or_a_clear_error(data: bytes) -> None:
    for head in (data + b"\r\n\r\n", b"GET /" + data + b" HTTP/1.1\r\n" + data + b"\r\n\r\n"):
        try:
            request = http_request.parse(head)
        except HttpError as error:
            assert 400 <= error.status < 600
        else:
            assert request.method in ("GET", "HEAD")


def test_closing_drops_what_is_open_and_frees_the_ports(
    agent: ExampleAgent, store: ProfileStore
) -> None:
    server = serve(agent, store)
    held = socket.create_connection(("127.0.0.1", server.page_port), timeout=20)
    server.close()
    with contextlib.suppress(ConnectionResetError):
        assert held.recv(1) == b""
    held.close()
    serve(agent, store, server.page_port or 0, server.metrics_port).close()


def test_an_answer_that_fails_is_told_and_the_next_one_comes(
    server: AgentServer, agent: ExampleAgent, caplog: pytest.LogCaptureFixture
) -> None:
    agent.state = None  # type: ignore[assignment]
    answer = ask(server.page_port, "/api/workloads")
    assert answer.status == 500
    assert "log" in json.loads(answer.body)["error"]
    assert "could not be answered" in caplog.text
    agent.state = ExampleAgent().state
    assert ask(server.page_port, "/api/workloads").status == 200


# The page's data


def test_workloads_come_with_those_first_that_hold_most(
    server: AgentServer, agent: ExampleAgent, store: ProfileStore
) -> None:
    agent.see(HOST, holding(MIB), START)
    agent.see(SERVER, holding(3 * GIB, pinned=GIB, peak=5 * GIB), START, failures=2)
    store.put(at(1, TRAINER, holding(9 * GIB)))
    rows = page(server, "/api/workloads")
    assert [row["workload"] for row in rows] == ["llama", "python3", "trainer"]
    assert [row["running"] for row in rows] == [True, True, False]
    first = rows[0]
    assert (first["in_use"], first["peak"], first["pinned"]) == (3 * GIB, 5 * GIB, GIB)
    assert first["gpus"] == ["0"]
    assert rows[2]["held_last"] == 9 * GIB


def test_who_has_no_process_any_more_has_ended_while_its_counters_are_told(
    server: AgentServer, agent: ExampleAgent, store: ProfileStore
) -> None:
    for owner in (TRAINER, HOST):
        agent.see(owner, holding(GIB), START)
    store.put(at(1, TRAINER, holding(GIB)))
    agent.end(TRAINER)
    agent.end(HOST)  # of which nothing was stored
    rows = page(server, "/api/workloads")
    assert [(row["running"], row["in_use"], row["peak"]) for row in rows] == [(False, 0, GIB)] * 2
    agent.see(TRAINER, holding(2 * GIB), START)  # the next one of the same container
    assert [row["running"] for row in page(server, "/api/workloads")] == [True, False]


def test_the_trend_tells_the_last_hour_and_what_it_grew_by(
    server: AgentServer, agent: ExampleAgent, store: ProfileStore
) -> None:
    for tick in range(0, 481):  # two hours
        store.put(at(tick, SERVER, holding(GIB + tick * MIB)))
    agent.see(SERVER, holding(GIB + 480 * MIB), START + 480 * INTERVAL)
    (row,) = page(server, "/api/workloads")
    trend = row["trend"]
    assert (trend["change"], trend["seconds"]) == (221 * MIB, 55 * 60)
    assert len(trend["values"]) == 60
    assert trend["values"] == sorted(trend["values"])
    assert trend["values"][-1] == GIB + 480 * MIB
    assert row["since_ns"] == str(START)


def test_a_spike_between_two_points_of_the_trend_is_seen(
    server: AgentServer, store: ProfileStore
) -> None:
    for tick in range(0, 241):
        store.put(at(tick, SERVER, holding(70 * GIB if tick == 101 else GIB)))
    (row,) = page(server, "/api/workloads")
    assert max(row["trend"]["values"]) == 70 * GIB
    assert row["trend"]["values"].count(70 * GIB) == 1
    assert row["trend"]["change"] == 0


def test_history_has_points_times_and_failed_allocations(
    server: AgentServer, store: ProfileStore
) -> None:
    store.put(at(1, TRAINER, holding(GIB)))
    store.put(at(2, TRAINER, holding(GIB)))
    store.put(at(3, TRAINER, holding(2 * GIB, failures=(out_of_memory(START + 3 * INTERVAL),))))
    history = page(server, f"/api/history?owner={owner_id(TRAINER)}")
    assert history["points"]["gpu"] == [GIB, 2 * GIB]
    assert history["points"]["until_ns"][0] == str(START + 2 * INTERVAL)
    assert history["profiles"] == [str(START + n * INTERVAL) for n in (1, 3)]
    (failure,) = history["failures"]
    assert failure["requested"] == 20 * GIB
    assert failure["error"] == "cudaErrorMemoryAllocation"
    assert failure["function"] == "KVCache.__init__"
    assert failure["profile_ns"] == str(START + 3 * INTERVAL)


def test_a_profile_is_shown_as_of_now_of_the_peak_and_of_a_time(
    server: AgentServer, agent: ExampleAgent, store: ProfileStore
) -> None:
    for tick, size, peak in ((1, 5, 5), (2, 1, 5), (3, 2, 2)):
        store.put(at(tick, TRAINER, holding(size * GIB, peak=peak * GIB)))
    agent.see(TRAINER, holding(3 * GIB), START)
    name = owner_id(TRAINER)

    def in_use(when: str) -> tuple[int, int]:
        data = page(server, f"/api/profile?owner={name}&time={when}")
        columns = dict(zip(data["types"], data["samples"]["values"], strict=True))
        return sum(columns["inuse_space"]) // GIB, sum(columns["peak_space"]) // GIB

    assert in_use("current") == (3, 3)
    assert in_use("peak") == (1, 5)
    assert in_use(str(START + INTERVAL)) == (5, 5)
    assert in_use(str(START + 2 * INTERVAL + 7)) == (1, 5)
    agent.profiles.clear()
    assert in_use("current") == (2, 2)  # it ended: the last that is known


def test_two_times_are_compared(server: AgentServer, store: ProfileStore) -> None:
    store.put(at(1, TRAINER, holding(GIB)))
    store.put(at(2, TRAINER, holding(4 * GIB)))
    times = f"before={START + INTERVAL}&after={START + 2 * INTERVAL}"
    data = page(server, f"/api/diff?owner={owner_id(TRAINER)}&{times}")
    assert data["mode"] == "diff"
    column = data["types"].index("inuse_space")
    assert sum(data["samples"]["values"][column]) == 4 * GIB
    assert sum(data["before"][column]) == GIB


def test_profiles_can_be_taken_away_as_pprof_and_folded(
    server: AgentServer, agent: ExampleAgent
) -> None:
    agent.see(TRAINER, TRAINING, START)
    name = owner_id(TRAINER)
    answer = ask(server.page_port, f"/api/profile.pb.gz?owner={name}", Accept_Encoding="gzip")
    assert pprof.decode(answer.body) == TRAINING
    assert "attachment" in answer.headers["Content-Disposition"]
    text = ask(server.page_port, f"/api/folded?owner={name}&type=inuse_space").body.decode()
    assert "KVCache.__init__" in text
    assert "pinned" not in text
    assert ask(server.page_port, f"/api/folded?owner={name}&type=nonsense").status == 400


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("", 404),
        ("owner=..%2F..%2Fetc", 404),
        (f"owner={owner_id(HOST)}", 404),
        (f"owner={owner_id(TRAINER)}&time=yesterday", 400),
        (f"owner={owner_id(TRAINER)}&time=%C2%B2", 400),
        (f"owner={owner_id(TRAINER)}&time=" + "9" * 30, 400),
    ],
)
def test_what_is_not_there_is_told(
    server: AgentServer, store: ProfileStore, query: str, status: int
) -> None:
    store.put(at(1, TRAINER, holding(GIB)))
    answer = ask(server.page_port, f"/api/profile?{query}")
    assert answer.status == status
    assert json.loads(answer.body)["error"]


def test_a_damaged_profile_is_told_and_the_one_before_it_is_next(
    server: AgentServer, store: ProfileStore, tmp_path: Path
) -> None:
    store.put(at(1, TRAINER, holding(GIB)))
    store.put(at(2, TRAINER, holding(2 * GIB)))
    (tmp_path / "store" / owner_id(TRAINER) / f"{START + 2 * INTERVAL}.pb.gz").write_bytes(b"?")
    path = f"/api/profile?owner={owner_id(TRAINER)}&time={START + 2 * INTERVAL}"
    assert b"damaged" in ask(server.page_port, path).body
    assert ask(server.page_port, path).status == 200


def test_a_busy_agent_says_so(server: AgentServer, agent: ExampleAgent) -> None:
    agent.see(TRAINER, TRAINING, START)
    agent.busy = True
    answer = ask(server.page_port, f"/api/profile?owner={owner_id(TRAINER)}")
    assert answer.status == 503
    assert "busy" in json.loads(answer.body)["error"]


def test_without_a_store_what_is_held_now_is_shown(agent: ExampleAgent) -> None:
    agent.see(TRAINER, TRAINING, START)
    server = serve(agent, None)
    try:
        (row,) = page(server, "/api/workloads")
        assert row["in_use"] == 61 * GIB + 96 * MIB
        assert row["trend"] is None
        assert page(server, f"/api/history?owner={row['id']}")["profiles"] == []
        for when in ("current", "peak"):
            assert page(server, f"/api/profile?owner={row['id']}&time={when}")["failed"] == 1
        assert page(server, "/api/agent")["store"] is None
    finally:
        server.close()


def test_all_that_is_wrong_is_told_in_sentences(
    server: AgentServer, agent: ExampleAgent, store: ProfileStore
) -> None:
    assert page(server, "/api/agent")["problems"] == []
    agent.well = Health(not_ready="no pod list yet")
    agent.pushed = PushStatus({"delivered": 5, "empty": 2, "rejected": 3})
    agent.state = replace(
        agent.state,
        api={"pods": False, "switch": True},
        counters={"events": 9, "events_lost": 4},
        switch_rejected=1,
        owners_overflowed=2,
        libraries_not_probed=1,
        processes={"held": 6},
    )
    store.put(at(1, TRAINER, holding(2**63)))
    told = "\n".join(page(server, "/api/agent")["problems"])
    for part in (
        "no pod list yet",
        "API does not answer (pods)",
        "3 profiles were not delivered: rejected",
        "events were lost",
        "1 values of the switch",
        "2 containers beyond",
        "1 CUDA libraries",
        "6 processes wait",
        "1 profiles could not be stored",
    ):
        assert part in told
    assert "(switch)" not in told
    assert "delivered: delivered" not in told


def test_a_pyroscope_that_does_not_answer_is_told_at_once(
    server: AgentServer, agent: ExampleAgent
) -> None:
    agent.state = replace(agent.state, time_ns=START)
    agent.pushed = PushStatus(
        {"delivered": 5},
        queued=21,
        last_success_ns=START - 44 * SECOND,
        attempts={"delivered": 5, "unreachable": 1},
        last_error="connection refused",
    )
    told = page(server, "/api/agent")
    assert told["problems"] == [
        "The last push to Pyroscope failed: connection refused: 21 profiles wait, "
        "nothing was delivered for 44.0 s"
    ]
    assert (told["pushed"], told["push_fails"]) == (True, True)
    agent.pushed = replace(agent.pushed, queued=1, last_success_ns=None)
    (sentence,) = page(server, "/api/agent")["problems"]
    assert sentence.endswith("1 profile waits, nothing was delivered yet")
    agent.pushed = replace(agent.pushed, last_error="")
    told = page(server, "/api/agent")
    assert (told["problems"], told["push_fails"]) == ([], False)


def test_without_kubernetes_there_are_programs_and_no_containers(
    server: AgentServer, agent: ExampleAgent
) -> None:
    agent.state = replace(agent.state, owners_overflowed=2)
    told = page(server, "/api/agent")
    assert told["problems"] == ["2 programs beyond the limit are not shown"]
    assert not told["cluster"]
    agent.state = replace(agent.state, api={"pods": True})
    told = page(server, "/api/agent")
    assert told["problems"] == ["2 containers beyond the limit are not shown"]
    assert told["cluster"]


def test_what_is_held_now_is_of_a_moment_and_took_no_time(
    server: AgentServer, agent: ExampleAgent
) -> None:
    agent.see(TRAINER, holding(GIB), START)
    shown = page(server, f"/api/profile?owner={owner_id(TRAINER)}")
    assert shown["recorded"].endswith("UTC")


def test_names_of_pods_are_printable_and_short(server: AgentServer, agent: ExampleAgent) -> None:
    agent.see(HOSTILE, holding(GIB), START)
    (row,) = page(server, "/api/workloads")
    assert row["container"] == "\\u202ehostile"
    assert len(row["workload"]) == 300


def leaking(store: ProfileStore, ticks: int = 40) -> None:
    """A server whose prefix cache leaks a MiB in each interval."""
    for tick in range(1, ticks + 1):
        leak = Sample(LEAK, labels(), Values(1, MIB, tick, tick * MIB, tick * MIB))
        steady = holding(GIB, pinned=tick * 4 * MIB)
        store.put(at(tick, SERVER, replace(steady, samples=(*steady.samples, leak))))


def test_what_grows_steadily_is_named_with_its_evidence(
    server: AgentServer, store: ProfileStore
) -> None:
    leaking(store)
    growth = page(server, f"/api/growth?owner={owner_id(SERVER)}")
    (found,) = growth["stacks"]  # pinned host memory is no GPU memory
    assert (found["function"], found["place"]) == ("PrefixCache.insert", "/app/server.py:152")
    assert abs(found["trend"]["bytes_per_minute"] - 4 * MIB) < MIB
    assert found["trend"]["grown"] == 39 * MIB
    assert found["trend"]["since_ns"] == str(START + INTERVAL)
    assert found["stack"][0][0] == "cudaMalloc"
    assert found["process"] == "python 4242"


def test_growth_is_looked_for_in_the_time_that_is_asked_for(
    server: AgentServer, store: ProfileStore
) -> None:
    leaking(store)
    for tick in range(41, 121):
        store.put(at(tick, SERVER, holding(GIB + (tick == 41))))
    path = f"/api/growth?owner={owner_id(SERVER)}&since="
    assert page(server, f"{path}{START + 42 * INTERVAL}")["stacks"] == []
    assert page(server, f"{path}{START + 42 * INTERVAL}")["observations"] == 16
    assert ask(server.page_port, f"{path}yesterday").status == 400


def test_of_too_short_a_time_growth_tells_nothing(server: AgentServer, store: ProfileStore) -> None:
    store.put(at(1, SERVER, holding(GIB)))
    growth = page(server, f"/api/growth?owner={owner_id(SERVER)}")
    assert (growth["stacks"], growth["observations"]) == ([], 1)
    assert growth["observations"] < growth["needed"]
