"""Looks at another process that never end are given up, and everything else goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from gpumemprof.errors import ProcessGone
from gpumemprof.process import patience as module
from gpumemprof.process.patience import NoAnswerError, Patience


@pytest.fixture
def server() -> Iterator[threading.Event]:
    """A server that answers when it is set: at the end of the test at the latest."""
    event = threading.Event()
    yield event
    event.set()


def test_what_ends_in_time_gives_its_result_or_its_error() -> None:
    patience = Patience(60)
    assert patience(lambda: 42) == 42
    with pytest.raises(ProcessGone):
        patience(_gone)
    assert patience(lambda: "still here") == "still here"
    assert patience.given_up == 0
    patience.close()


def _gone() -> None:
    raise ProcessGone("it ended")


def test_what_does_not_end_is_left_behind(server: threading.Event) -> None:
    patience = Patience(0.01)
    with pytest.raises(NoAnswerError):
        patience(server.wait)
    assert patience.given_up == 1
    slow = Patience(60)
    assert slow(lambda: "next") == "next"
    slow.close()


def test_one_thread_does_everything_that_ends() -> None:
    patience = Patience(60)
    threads = {patience(threading.get_ident) for _ in range(50)}
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    patience.close()


def test_without_a_limit_there_is_no_thread() -> None:
    assert Patience()(threading.get_ident) == threading.get_ident()


def test_work_inside_work_is_one_piece() -> None:
    outer, inner = Patience(60), Patience(60)
    ident = outer(lambda: (threading.get_ident(), inner(threading.get_ident)))
    assert ident[0] == ident[1]
    outer.close()


def test_threads_that_wait_for_ever_are_bounded(
    server: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_LEFT", 3)
    patience = Patience(0.01)
    before = set(threading.enumerate())  # of which some may end meanwhile
    for _ in range(10):
        with pytest.raises(NoAnswerError):
            patience(server.wait)
    assert len(set(threading.enumerate()) - before) == 3
    server.set()
    for thread in threading.enumerate():
        if thread.name == "remote reads":
            thread.join(30)
    slow = Patience(60)
    assert slow(lambda: 1) == 1
    slow.close()
    assert len(set(threading.enumerate()) - before) <= 1


def test_the_thread_ends_when_it_is_closed() -> None:
    before = set(threading.enumerate())
    patience = Patience(60)
    patience(lambda: None)
    (thread,) = set(threading.enumerate()) - before
    assert thread.name == "remote reads"
    patience.close()
    thread.join(30)
    assert not thread.is_alive()
