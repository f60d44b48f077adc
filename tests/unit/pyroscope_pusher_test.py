"""Profiles that are offered arrive, each once, whatever the server does."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from profile_examples import KV_CACHE, STAGING, TRAINING, WEIGHTS, labels
from pyroscope_examples import (
    HOST,
    SERVER,
    TRAINER,
    container,
    idle,
    now_ns,
    only,
    settings,
    total,
)

from gpumemprof.export.model import ContainerProfile
from gpumemprof.export.pyroscope import Pusher, schedule
from gpumemprof.profile.merge import merge
from gpumemprof.profile.model import Profile, Sample, Values
from tests.fakes.pyroscope_receiver import Receiver

PATIENCE = 30.0
UNREACHABLE = "http://127.0.0.1:1"  # tcpmux, which nobody runs


@pytest.fixture(autouse=True)
def direct(monkeypatch) -> None:
    """No proxy, and the first retry follows at once."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr(schedule, "_FIRST_DELAY", 0.01)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made
        assert made.violations == []


def until(condition: Callable[[], bool]) -> None:
    """Wait for what happens in the pusher's thread."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Agent:
    """What an agent does: adds to a container's next profile what was not delivered."""

    def __init__(self, url: str, **options) -> None:
        self.dropped: list[ContainerProfile] = []
        self.allocated = 0
        self.pusher = Pusher(settings(url, **options), self.dropped.append)

    def tell(self, profile: Profile, intervals_ago: int = 0, owner=TRAINER) -> None:
        self.allocated += profile.total.alloc_space
        mine = [one for one in self.dropped if one.owner == owner]
        self.dropped = [one for one in self.dropped if one.owner != owner]
        self.pusher._on_dropped = self.dropped.append
        whole = merge([profile, *(one.profile for one in mine)]) if mine else profile
        self.pusher.offer([container(whole, owner, intervals_ago)])

    def carried(self) -> int:
        return sum(one.profile.total.alloc_space for one in self.dropped)

    def __enter__(self) -> Agent:
        self.pusher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.pusher.close()


def test_every_container_arrives_with_its_bytes(receiver) -> None:
    with Pusher(settings(receiver.url)) as pusher:
        pusher.offer([container(), container(TRAINING, SERVER), container(idle(), HOST)])
        assert pusher.flush(PATIENCE)
        status = pusher.status()
    for service in ("ml/trainer", "web/llm", "_host/VLLM__EngineCore"):
        for kind, pinned in (("gpu", False), ("pinned_host", True)):
            arrived = receiver.total("inuse_space", service_name=f"{kind}/{service}")
            assert arrived == total(TRAINING, "inuse_space", pinned=pinned)
    assert receiver.total("alloc_space", pod=SERVER.pod) == TRAINING.total.alloc_space
    assert status.attempts == {"delivered": 6} and status.settled == {"delivered": 6}
    assert status.waiting == 0 and status.last_success_ns and not status.last_error


def test_an_idle_container_is_told_at_every_interval(receiver) -> None:
    with Pusher(settings(receiver.url)) as pusher:
        for ago in (2, 1, 0):
            pusher.offer([container(idle(), intervals_ago=ago)])
        assert pusher.flush(PATIENCE)
        assert (pusher.status().encoded, pusher.status().unchanged) == (1, 2)
    snapshots = receiver.stored("inuse_space", service_name="gpu/ml/trainer")
    assert [one.time_ns for one in snapshots] == [now_ns(2), now_ns(1), now_ns(0)]
    assert {one.total for one in snapshots} == {total(TRAINING, "inuse_space", pinned=False)}


def test_folded_stacks_arrive_as_well(receiver) -> None:
    with Pusher(settings(receiver.url, format="folded")) as pusher:
        pusher.offer([container()])
        assert pusher.flush(PATIENCE)
    assert receiver.total("inuse_space", service_name="gpu/ml/trainer") == total(
        TRAINING, "inuse_space", pinned=False
    )
    assert receiver.stored("inuse_space")[0].time_ns == now_ns()


def test_no_command_line_and_no_process_leaves_the_node(receiver) -> None:
    secret = replace(
        TRAINING,
        about={"command": "python serve.py --token=s3cret"},
        processes=(replace(TRAINING.processes[0], command="python --token=s3cret"),),
    )
    with Pusher(settings(receiver.url)) as pusher:
        pusher.offer([container(secret)])
        assert pusher.flush(PATIENCE)
    everything = receiver.everything()
    assert b"KVCache.__init__" in everything
    for word in (b"s3cret", b"serve.py", b"--epochs", b"4242"):
        assert word not in everything


# Exactly once


def test_what_a_refused_push_allocated_comes_with_the_next(receiver) -> None:
    receiver.answer(400, body="bad labels", times=2)
    with Agent(receiver.url) as agent:
        agent.tell(TRAINING, 1)
        assert agent.pusher.flush(PATIENCE)
        assert receiver.stored() == [] and agent.carried() == TRAINING.total.alloc_space
        agent.tell(TRAINING)
        assert agent.pusher.flush(PATIENCE)
        assert agent.pusher.status().settled == {"rejected": 2, "delivered": 2}
    assert receiver.total("alloc_space") == 2 * TRAINING.total.alloc_space
    assert receiver.total("inuse_space") == TRAINING.total.inuse_space


def test_a_part_that_is_refused_is_given_back_alone(receiver) -> None:
    receiver.answer(400, body="bad labels")
    with Agent(receiver.url) as agent:
        agent.tell(TRAINING)
        assert agent.pusher.flush(PATIENCE)
        (lost,) = agent.dropped
    arrived = receiver.total("alloc_space")
    assert arrived > 0 and arrived + agent.carried() == TRAINING.total.alloc_space
    assert not lost.snapshot and lost.profile.total.inuse_space == 0


@pytest.mark.parametrize("stored", [True, False])
def test_without_an_answer_the_same_is_sent_again_and_counts_once(receiver, stored) -> None:
    receiver.answer(0, store=stored)
    with Agent(receiver.url) as agent:
        agent.tell(only(Sample(KV_CACHE, labels(), Values(1, 7, 1, 7, 7))))
        assert agent.pusher.flush(PATIENCE)
        assert agent.dropped == []
        assert agent.pusher.status().attempts == {"unknown": 1, "delivered": 1}
    first, second = receiver.got
    assert first.body == second.body
    assert receiver.total("alloc_space") == 7


def test_what_may_be_stored_is_not_given_back_when_it_is_given_up(receiver) -> None:
    receiver.answer(0, store=True, times=1000)
    with Agent(receiver.url) as agent:
        agent.tell(only(Sample(KV_CACHE, labels(), Values(1, 7, 1, 7, 7))))
        receiver.wait_for(1)
        assert not agent.pusher.flush(0.1)
    assert agent.pusher.status().settled == {"unknown": 1}
    assert agent.dropped == []
    assert receiver.total("alloc_space") == 7


ANSWERS = st.sampled_from([None, (400, False), (429, False), (500, False), (0, True), (0, False)])


@hypothesis_settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.tuples(st.integers(0, 1000), ANSWERS), min_size=1, max_size=6))
def test_whatever_a_server_answers_every_allocation_is_delivered_once(rounds) -> None:
    with Receiver(limit_rate=False) as receiver, Agent(receiver.url) as agent:
        for number, (size, answer) in enumerate(rounds):
            if answer is not None:
                receiver.answer(answer[0], store=answer[1])
            agent.tell(
                only(
                    Sample(WEIGHTS, labels(), Values(1, size, 1, 100, 100)),
                    Sample(STAGING, labels(kind="pinned_host"), Values(1, 1, 1, 1, 1)),
                ),
                intervals_ago=len(rounds) - number,
            )
            assert agent.pusher.flush(PATIENCE)
        assert receiver.total("alloc_space") + agent.carried() == agent.allocated
        assert receiver.violations == []


# Off is off


def test_of_a_namespace_that_is_off_nothing_is_sent_kept_or_given_back() -> None:
    with Receiver(token="new") as receiver, Agent(receiver.url, token="old") as agent:
        agent.pusher.offer([container(), container(TRAINING, SERVER)])
        receiver.wait_for(1)
        agent.pusher.discard(lambda owner: owner.namespace == "ml")
        until(lambda: set(agent.pusher._encoder._known) == {SERVER})
        receiver.authorization = "Bearer old"
        assert agent.pusher.flush(PATIENCE)
        agent.pusher.offer([container(idle(), SERVER)])
        assert agent.pusher.flush(PATIENCE)
        assert agent.pusher.status().settled["discarded"] in (1, 2)
        assert agent.dropped == []
        assert {dict(one.labels)["namespace"] for one in receiver.stored()} == {"web"}


def test_what_is_being_sent_when_its_namespace_is_switched_off_is_not_sent_again(receiver) -> None:
    receiver.answer(-1)
    with Agent(receiver.url) as agent:
        agent.tell(only(Sample(KV_CACHE, labels(), Values(1, 7, 1, 7, 7))))
        receiver.wait_for(1)
        agent.pusher.discard(lambda owner: True)
        receiver.released.set()
        assert agent.pusher.flush(PATIENCE)
        assert agent.pusher.status().settled == {"discarded": 1}
        assert agent.dropped == []
    assert len(receiver.got) == 1


# Servers that cannot


def test_while_a_tenant_is_throttled_nothing_else_is_tried(receiver) -> None:
    receiver.answer(429, headers={"Retry-After": "300"})
    with Pusher(settings(receiver.url)) as pusher:
        pusher.offer([container(idle(), owner) for owner in (TRAINER, SERVER, HOST)])
        receiver.wait_for(1)
        until(lambda: pusher.status().attempts == {"throttled": 1})
        assert pusher.status().waiting == 6
        assert "429" in pusher.status().last_error
        assert pusher.flush(PATIENCE)
        assert pusher.status().last_error == ""
    assert len(receiver.got) == 7
    assert len(receiver.stored("inuse_space")) == 6


def test_a_profile_that_breaks_the_server_does_not_hold_up_others(receiver, monkeypatch) -> None:
    monkeypatch.setattr(schedule, "_FIRST_DELAY", 3600.0)
    monkeypatch.setattr(schedule, "_LONGEST_DELAY", 3600.0)
    receiver.answer(500, body="panic")
    with Pusher(settings(receiver.url)) as pusher:
        pusher.offer([container(idle(), owner) for owner in (TRAINER, SERVER, HOST)])
        receiver.wait_for(6)
        assert len(receiver.stored("inuse_space")) == 5
        assert pusher.flush(PATIENCE)
    assert len(receiver.stored("inuse_space")) == 6


def test_a_server_that_fails_at_everything_is_left_alone(receiver, monkeypatch) -> None:
    monkeypatch.setattr(schedule, "_FIRST_DELAY", 3600.0)
    monkeypatch.setattr(schedule, "_LONGEST_DELAY", 3600.0)
    receiver.answer(503, body="starting", times=4)
    with Pusher(settings(receiver.url)) as pusher:
        pusher.offer([container(idle(), TRAINER._replace(pod=f"p{n}")) for n in range(20)])
        until(lambda: pusher.status().attempts == {"failed": 4})
        assert pusher.status().waiting == 40
        assert pusher.flush(PATIENCE)
    assert len(receiver.stored("inuse_space")) == 40


def test_wrong_credentials_are_told_and_nothing_is_lost_until_they_are_right() -> None:
    with Receiver(token="new") as receiver, Agent(receiver.url, token="s3cret") as agent:
        agent.tell(TRAINING)
        receiver.wait_for(3)
        assert "401" in agent.pusher.status().last_error
        receiver.authorization = "Bearer s3cret"
        assert agent.pusher.flush(PATIENCE)
        assert receiver.total("alloc_space") == TRAINING.total.alloc_space


def test_a_profile_too_old_for_the_server_is_given_back() -> None:
    with Agent(UNREACHABLE) as agent:
        agent.tell(TRAINING, intervals_ago=4 * 60)
        assert agent.pusher.flush(PATIENCE)
        assert agent.pusher.status().settled == {"too_old": 2}
        assert agent.pusher.status().attempts == {}
        assert agent.carried() == TRAINING.total.alloc_space


def test_during_an_outage_the_oldest_go_and_are_given_back() -> None:
    with Agent(UNREACHABLE, queue_items=6) as agent:
        for number in range(20):
            agent.pusher.offer([container(intervals_ago=20 - number)])
            until(lambda: agent.pusher.status().unchanged == number)  # noqa: B023
        kept = {one.time_ns for one in agent.dropped}
        assert now_ns(20) in kept and now_ns(1) not in kept
    assert agent.pusher.status().settled == {"queue_full": 34, "shutdown": 6}
    assert agent.carried() == 20 * TRAINING.total.alloc_space


def test_more_than_fits_at_once_is_given_back_as_well() -> None:
    with Agent(UNREACHABLE, queue_items=3) as agent:
        agent.pusher.offer([container(intervals_ago=ago) for ago in range(20, 0, -1)])
    assert agent.carried() == 20 * TRAINING.total.alloc_space


def test_what_is_offered_after_the_end_is_given_back() -> None:
    agent = Agent(UNREACHABLE)
    with agent:
        pass
    agent.pusher.offer([container()])
    agent.pusher.close()
    assert agent.carried() == TRAINING.total.alloc_space


def test_nobody_waits_for_a_server_that_never_answers(receiver) -> None:
    receiver.answer(-1, times=10)
    with Agent(receiver.url, timeout=120.0) as agent:
        agent.tell(idle())
        receiver.wait_for(1)
        for ago in range(100):
            agent.tell(idle(), ago)
        assert not agent.pusher.flush(0.01)
        agent.pusher.close(wait=0.01)
        assert agent.pusher.status().waiting == 1
    receiver.released.set()


def test_an_agent_that_fails_does_not_end_pushing(receiver) -> None:
    receiver.answer(400)

    def fail(_: ContainerProfile) -> None:
        raise RuntimeError("a mistake")

    with Pusher(settings(receiver.url), fail) as pusher:
        pusher.offer([container()])
        pusher.offer([container(TRAINING, SERVER)])
        assert pusher.flush(PATIENCE)
    assert receiver.total("inuse_space", pod=SERVER.pod) == TRAINING.total.inuse_space


def test_no_secret_is_logged_or_told(receiver, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    url = receiver.url.replace("//", "//bob:s3cret@")
    receiver.answer(403, body="bob:s3cret is not allowed")
    with Pusher(settings(url)) as pusher:
        pusher.offer([container()])
        assert pusher.flush(PATIENCE)
        told = f"{pusher.status()!r} {caplog.text}"
    assert "403" in told
    assert "s3cret" not in told


def test_pushes_are_paced(receiver) -> None:
    """Ten profiles at their size a second would take ten seconds: at the end most wait."""
    with Pusher(settings(receiver.url, bytes_per_second=1024)) as pusher:
        pusher.offer([container(idle(), TRAINER._replace(pod=f"p{n}")) for n in range(10)])
        receiver.wait_for(1)
        assert not pusher.flush(0.0)
        assert pusher.status().waiting > 10
