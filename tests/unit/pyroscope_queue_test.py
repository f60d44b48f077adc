"""When pushes are sent, and which wait or go when there are too many."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from profile_examples import SECOND
from pyroscope_examples import INTERVAL, SERVER, TRAINER, container, idle, settings

from gpumemprof.export.pyroscope import schedule
from gpumemprof.export.pyroscope.encode import Encoder
from gpumemprof.export.pyroscope.queue import Pending, PushQueue
from gpumemprof.profile.model import Profile

URL = "http://pyroscope:4040"


def pending(interval: int, due: float = 0.0, profile: Profile | None = None) -> Pending:
    made = container(idle() if profile is None else profile)
    encoded = Encoder(settings(URL)).encode(made)[0]
    return Pending(TRAINER, interval * INTERVAL, INTERVAL, encoded, due)


def times(items: list[Pending]) -> list[int]:
    return [item.time_ns // INTERVAL for item in items]


def test_nothing_is_sent_before_its_time() -> None:
    queue = PushQueue(10, 1 << 20)
    queue.add(pending(1, due=5.0))
    assert queue.take(4.9) is None
    assert queue.next_due() == 5.0
    taken = queue.take(5.0)
    assert taken is not None and len(queue) == 0 and queue.bytes == 0
    assert queue.next_due() is None


def test_the_newest_goes_first() -> None:
    queue = PushQueue(10, 1 << 20)
    for interval in (2, 4, 1, 3):
        queue.add(pending(interval))
    queue.add(pending(5, due=9.0))
    order = [queue.take(1.0) for _ in range(5)]
    assert times([one for one in order if one]) == [4, 3, 2, 1]


def test_the_oldest_go_when_there_are_too_many_or_too_large_ones() -> None:
    queue = PushQueue(2, 1 << 20)
    gone = [one for interval in (3, 1, 4, 2, 5) for one in queue.add(pending(interval))]
    assert times(gone) == [1, 2, 3]
    assert times(queue.take_all()) == [4, 5]
    one = pending(1).memory
    queue = PushQueue(100, 3 * one)
    for interval in range(1, 6):
        queue.add(pending(interval))
    assert times(queue.take_all()) == [3, 4, 5]
    assert times(PushQueue(5, one - 1).add(pending(7))) == [7]


def test_those_of_before_a_time_can_be_taken_out() -> None:
    queue = PushQueue(10, 1 << 20)
    for interval in (1, 2, 3):
        queue.add(pending(interval))
    assert times(queue.take_older(3 * INTERVAL)) == [1, 2]
    assert len(queue) == 1


@given(st.lists(st.tuples(st.integers(1, 9), st.floats(0, 9)), max_size=12), st.integers(1, 5))
def test_a_queue_never_loses_one_or_has_it_twice(adds, room) -> None:
    item = pending(1)
    queue = PushQueue(room, 1 << 30)
    seen = []
    all_of_them = [Pending(TRAINER, n, INTERVAL, item.encoded, due) for n, due in adds]
    for one in all_of_them:
        seen += queue.add(one)
        if (taken := queue.take(one.due / 2)) is not None:
            seen.append(taken)
        assert len(queue) <= room
    seen += queue.take_all()
    assert sorted(map(id, seen)) == sorted(map(id, all_of_them))


# What a dropped push gives back


def test_what_may_be_stored_already_is_not_given_back() -> None:
    one = pending(7, profile=container().profile)
    lost = one.undelivered()
    assert lost is not None
    assert (lost.owner, lost.time_ns, lost.snapshot) == (TRAINER, 7 * INTERVAL, False)
    assert lost.profile.total.alloc_space > 0 == lost.profile.total.inuse_space
    one.uncertain = True
    assert one.undelivered() is None


# Spread, pace, retry


@given(st.floats(-100, 100), st.floats(0, 10))
def test_a_push_is_sent_within_the_jitter_of_its_time(age, jitter) -> None:
    delay = schedule.spread(TRAINER, age, jitter)
    assert 0 <= delay <= jitter
    assert delay == 0 or age < 0 or age + delay <= jitter


def test_nodes_and_owners_do_not_arrive_together() -> None:
    owners = [TRAINER._replace(node=f"node-{n}") for n in range(400)]
    owners += [SERVER._replace(pod=f"llm-{n}") for n in range(400)]
    tenths = [0] * 10
    for owner in owners:
        tenths[int(schedule.spread(owner, 0, 4.0) / 0.4)] += 1
    assert min(tenths) > 40 and max(tenths) < 120
    assert schedule.spread(owners[0], 0, 4.0) == schedule.spread(owners[0], 0, 4.0)


def test_waiting_doubles_up_to_a_minute_and_differs() -> None:
    assert [schedule.backoff(n, 0.5) for n in (1, 2, 3, 7, 100)] == [1, 2, 4, 60, 60]
    assert schedule.backoff(1, 0.0) == 0.5
    assert schedule.backoff(50, 0.999) < 90


def test_the_pace_is_kept_whatever_the_sizes() -> None:
    pace = schedule.Pace(1000)
    now, sent = 100.0, 0
    for size in (500, 1500, 1, 0, 4000, 250) * 20:
        now += pace.wait(now)
        pace.spend(size, now)
        sent += size
    assert now - 100.0 >= (sent - 4250) / 1000
    assert pace.wait(now + 10**6) == 0


def test_the_age_limit_is_below_the_servers() -> None:
    assert schedule.MAX_AGE * SECOND < 3600 * SECOND
