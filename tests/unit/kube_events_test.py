"""What users are told about their ConfigMap."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

from gpumemprof.kube.api import Api, ApiError
from gpumemprof.kube.events import (
    MOST_PER_MINUTE,
    REPEAT_SECONDS,
    ConfigMapRef,
    EventReporter,
    event_of,
)
from gpumemprof.kube.sinks import SwitchSink
from gpumemprof.kube.switch import Problem

NOW = datetime(2026, 11, 30, 20, 0, tzinfo=timezone.utc)
ABOUT = ConfigMapRef("monitoring", "gpumemprof-profiling", "uid-1", "7")
PROBLEM = Problem("ml", "onn onn", "'onn' is not an operator")


def nowhere() -> object:
    raise OSError("no network in this test")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_an_event_says_what_is_wrong_with_which_setting() -> None:
    event = event_of(ABOUT, PROBLEM, "node-a", NOW)
    assert event["message"] == (
        "ml: 'onn onn': 'onn' is not an operator. The last good setting is kept."
    )
    assert event["involvedObject"]["uid"] == "uid-1"
    assert event["metadata"]["namespace"] == "monitoring"
    assert re.fullmatch(r"[a-z0-9.-]{1,253}", event["metadata"]["name"])
    assert event["lastTimestamp"] == "2026-11-30T20:00:00Z"


def test_the_same_mistake_is_one_event_on_all_nodes_and_another_is_another() -> None:
    def name(about: ConfigMapRef = ABOUT, problem: Problem = PROBLEM, node: str = "node-a") -> str:
        later = NOW + timedelta(seconds=5)
        return str(event_of(about, problem, node, later)["metadata"]["name"])

    assert name() == event_of(ABOUT, PROBLEM, "node-b", NOW)["metadata"]["name"]
    assert name() != name(problem=PROBLEM._replace(value="off off"))
    assert name() != name(ABOUT._replace(uid="uid-2"))


def test_long_values_are_cut() -> None:
    problem = Problem("k" * 100, "v" * 100, "r" * 2000)
    event = event_of(ABOUT._replace(name="n" * 253), problem, "node", NOW)
    assert len(event["message"]) <= 1024
    assert len(event["metadata"]["name"]) <= 253


def run_until(reporter: EventReporter, what: Callable[[], bool]) -> None:
    thread = threading.Thread(target=reporter.run)
    thread.start()
    until = time.monotonic() + 30
    while not what() and time.monotonic() < until:
        time.sleep(0.01)
    reporter.stop()
    thread.join(30)
    assert not thread.is_alive()
    assert what()


def test_the_same_is_told_once_an_hour_and_a_failure_is_only_counted() -> None:
    clock = Clock()
    reporter = EventReporter(Api(nowhere), "node-a", spread=0, clock=clock)
    for _ in range(5):
        reporter.report(ABOUT, PROBLEM)
    clock.now += REPEAT_SECONDS
    reporter.report(ABOUT, PROBLEM)
    run_until(reporter, lambda: reporter.failed == 2)
    assert (reporter.failed, reporter.created, reporter.suppressed) == (2, 0, 0)


def test_many_mistakes_at_once_are_not_all_told() -> None:
    clock = Clock()
    reporter = EventReporter(Api(nowhere), "node-a", spread=0, clock=clock)
    for number in range(MOST_PER_MINUTE + 5):
        reporter.report(ABOUT, PROBLEM._replace(value=str(number)))
    assert reporter.suppressed == 5


def test_the_switch_reports_what_is_wrong_once_for_as_long_as_it_stands() -> None:
    told: list[str] = []
    changes: list[bool] = []
    sink = SwitchSink("c", lambda: changes.append(True), lambda _ref, p: told.append(p.value))

    def configure(**data: str) -> None:
        sink.put(sink.convert({"metadata": {"name": "c", "namespace": "m"}, "data": data}))

    configure(ml="on")
    configure(ml="on", web="1 2")
    configure(ml="on", web="1 2", other="off")
    configure(ml="on", web="3 4")
    assert told == ["1 2", "3 4"]
    assert sink.invalid == 2
    assert len(changes) == 3, "nothing changes for a value that says nothing new"
    configure(ml="on")
    assert sink.problems == ()


def test_no_credentials_are_told_as_such() -> None:
    try:
        Api(nowhere).get("/api/v1/pods", {}, 1)
    except ApiError as error:
        assert "no network in this test" in str(error)
        assert error.status == 0
