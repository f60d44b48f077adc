"""The node agent on this machine, without Kubernetes: what it pushes, tells and keeps is what
programs on the stand-in libraries allocated. tests/cluster has the same with real pods.

Others may use CUDA on this machine at the same time: each test looks at its own program only.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.pyroscope_receiver import Receiver
from tests.integration.recording import FAKES, PATIENCE

MIB = 1 << 20
LOOP = f"driver_loop_{os.getpid()}"
"""The program's file, a copy: processes of no pod are told by it."""
SERVICE = {"service_name": f"gpu/_host/{LOOP}"}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass
class Agent:
    """A running ``gpumemprof agent``."""

    process: subprocess.Popen[bytes]
    log: Path
    metrics_port: int
    page_port: int

    def get(self, path: str, *, page: bool = True) -> bytes:
        port = self.page_port if page else self.metrics_port
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            body: bytes = answer.read()
        return body

    def json(self, path: str) -> Any:
        return json.loads(self.get(path))

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's series with these labels; of the test's program, where its series
        tell programs apart."""
        found = 0.0
        for line in self.get("/metrics", page=False).decode().splitlines():
            match = re.match(r"(\w+)(?:\{(.*)\})? (\S+)$", line)
            if match is None or match[1] != name:
                continue
            told = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2] or ""))
            if told.get("workload", LOOP) == LOOP and labels.items() <= told.items():
                found += float(match[3])
        return found

    def workloads(self) -> list[Any]:
        """What the page lists, of the test's program."""
        return [row for row in self.json("/api/workloads") if row["workload"] == LOOP]

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@contextmanager
def agent(tmp_path: Path, *arguments: str) -> Iterator[Agent]:
    """Ready when given out."""
    log = tmp_path / f"agent{len(list(tmp_path.glob('agent*.log')))}.log"
    ports = free_port(), free_port()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "gpumemprof", "agent",
                "--kubernetes", "off", "--node", "node-a",
                "--interval", "1s", "--pyroscope-jitter", "0.2s",
                "--metrics-listen", f"127.0.0.1:{ports[0]}",
                "--page-listen", f"127.0.0.1:{ports[1]}",
                "--store-path", str(tmp_path / "store"),
                *arguments,
            ],
            stderr=output,
            env={**os.environ, "LD_LIBRARY_PATH": str(FAKES)},
        )  # fmt: skip
    started = Agent(process, log, *ports)
    try:
        wait_until(lambda: process.poll() is not None or is_ready(started), log)
        assert process.poll() is None, log.read_text()
        yield started
    finally:
        process.kill()
        process.wait()


def is_ready(started: Agent) -> bool:
    try:
        started.get("/readyz", page=False)
    except OSError:
        return False
    return True


def wait_until(condition: Callable[[], object], log: Path | None = None) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, log.read_text() if log else "it never happened"
        time.sleep(0.05)


@contextmanager
def program(tmp_path: Path, *arguments: str, hold: float = PATIENCE) -> Iterator[Mapping[str, Any]]:
    """A program that has done its allocations and holds what it leaked."""
    path = tmp_path / LOOP
    if not path.exists():
        shutil.copy(FAKES / "driver_loop", path)
    with subprocess.Popen(
        [str(path), *arguments, "--hold", str(hold)],
        stdout=subprocess.PIPE,
        env={**os.environ, "LD_LIBRARY_PATH": str(FAKES)},
    ) as running:
        assert running.stdout is not None
        try:
            yield json.loads(running.stdout.readline())
        finally:
            running.terminate()


LEAKS = ("--pairs", "100", "--leak", "3", "--size", str(2 * MIB))


def test_pyroscope_prometheus_and_the_page_tell_the_same_bytes(tmp_path: Path) -> None:
    with Receiver() as receiver, agent(tmp_path, "--pyroscope-url", receiver.url) as node:
        with program(tmp_path, *LEAKS) as truth:
            assert truth["leaked_bytes"] == 6 * MIB
            wait_until(lambda: receiver.total("alloc_space", **SERVICE) == 206 * MIB, node.log)
            wait_until(
                lambda: receiver.stored("inuse_space", **SERVICE)[-1].total == 6 * MIB, node.log
            )
            assert node.metric("gpumemprof_memory_in_use_bytes", kind="device") == 6 * MIB
            assert node.metric("gpumemprof_memory_allocated_bytes_total") == 206 * MIB
            assert node.metric("gpumemprof_memory_freed_bytes_total") == 200 * MIB
            assert node.metric("gpumemprof_allocations_total") == 103
            [workload] = node.workloads()
            assert (workload["running"], workload["in_use"]) == (True, 6 * MIB)
        # The end of the process is told once, and nothing is in use then.
        wait_until(
            lambda: node.metric("gpumemprof_memory_freed_bytes_total") == 206 * MIB, node.log
        )
        assert node.metric("gpumemprof_memory_in_use_bytes") == 0
        assert [workload["running"] for workload in node.workloads()] == [False]
        assert node.stop() == 0
        assert receiver.total("alloc_space", **SERVICE) == 206 * MIB
        assert not receiver.violations


def test_what_was_allocated_since_the_last_interval_is_sent_when_the_agent_stops(
    tmp_path: Path,
) -> None:
    with (
        Receiver() as receiver,
        agent(tmp_path, "--pyroscope-url", receiver.url, "--interval", "1h") as node,
        program(tmp_path, *LEAKS),
    ):
        wait_until(
            lambda: node.metric("gpumemprof_memory_allocated_bytes_total") == 206 * MIB, node.log
        )
        assert receiver.total("alloc_space", **SERVICE) == 0
        assert node.stop() == 0

        assert receiver.total("alloc_space", **SERVICE) == 206 * MIB
        # What is held is told at whole intervals only: readers add up what is in their range.
        assert receiver.total("inuse_space", **SERVICE) == 0
        assert not receiver.violations


def test_an_agent_that_was_killed_and_comes_back_counts_nothing_twice(tmp_path: Path) -> None:
    with Receiver() as receiver:
        where = ("--pyroscope-url", receiver.url)
        with program(tmp_path, *LEAKS), agent(tmp_path, *where) as first:
            # It was there before: only what it does from now on is known.
            assert first.metric("gpumemprof_memory_allocated_bytes_total") == 0
        with agent(tmp_path, *where) as second, program(tmp_path, *LEAKS):
            wait_until(lambda: receiver.total("alloc_space", **SERVICE) == 206 * MIB, second.log)
            second.stop(signal.SIGKILL)
            with agent(tmp_path, *where) as third:
                wait_until(lambda: third.metric("gpumemprof_agent_processes", state="on") >= 1)
                time.sleep(2.5)
                assert third.stop() == 0
        assert receiver.total("alloc_space", **SERVICE) == 206 * MIB
        assert not receiver.violations


def test_a_server_that_is_away_gets_everything_once_when_it_is_back(tmp_path: Path) -> None:
    with Receiver() as receiver, agent(tmp_path, "--pyroscope-url", receiver.url) as node:
        receiver.answer(503)
        receiver.answer(0, store=True)  # stored, but the answer was lost
        receiver.answer(400)  # refused: its allocations go with the next
        with program(tmp_path, *LEAKS):
            wait_until(lambda: receiver.total("alloc_space", **SERVICE) == 206 * MIB, node.log)
        assert node.stop() == 0
        assert receiver.total("alloc_space", **SERVICE) == 206 * MIB


def test_a_server_that_is_not_there_is_told_on_the_page(tmp_path: Path) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    with agent(tmp_path, "--pyroscope-url", nowhere) as node, program(tmp_path, *LEAKS):
        wait_until(lambda: node.json("/api/agent")["push_fails"], node.log)
        told = " ".join(node.json("/api/agent")["problems"])
        assert "The last push to Pyroscope failed" in told
        assert "nothing was delivered yet" in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--interval", "soon"), "interval (from --interval) is 'soon'"),
        (("--metrics-listen", "192.0.2.1:1"), "metrics.listen"),
        (("--pyroscope-url", "ftp://x"), "pyroscope"),
        (
            ("--pyroscope-url", "http://x", "--pyroscope-token-file", "/none"),
            "/none cannot be read",
        ),
        (("--kubernetes", "on"), "namespace is needed"),
        (("--config", "/none"), "the configuration /none cannot be read"),
    ],
)
def test_a_setting_that_cannot_be_used_is_told_at_start(
    arguments: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "gpumemprof", "agent", "--kubernetes", "off",
         "--store-path", str(tmp_path), *arguments],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert ended.returncode == 2
    assert told in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_server_that_never_answers_does_not_keep_the_agent_from_stopping(tmp_path: Path) -> None:
    """Kubernetes kills it after 30 s."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        where = ("--pyroscope-url", url, "--pyroscope-timeout", "2m")
        with agent(tmp_path, *where) as node, program(tmp_path, *LEAKS):
            wait_until(
                lambda: node.metric("gpumemprof_memory_in_use_bytes") >= 6 * MIB,
                node.log,
            )
            # Somebody looks at the page, too.
            owner = node.workloads()[0]["id"]
            asking = [
                threading.Thread(target=lambda: suppressed(node, owner), daemon=True)
                for _ in range(4)
            ]
            for each in asking:
                each.start()

            assert node.stop() == 0
            assert "not everything could be pushed" in node.log.read_text()


def suppressed(node: Agent, owner: str) -> None:
    for _ in range(1000):
        with contextlib.suppress(OSError):
            node.get(f"/api/profile?owner={owner}&time=current")
