"""Questions of other threads, answered by the loop."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from gpumemprof.agent.mailbox import MAX_WAITING, Busy, Mailbox

PATIENCE = 30.0


def asking(mailbox: Mailbox, question: Callable[[], object], results: list[object]) -> None:
    def ask() -> None:
        try:
            results.append(mailbox.ask(question, timeout=PATIENCE))
        except Exception as error:
            results.append(error)

    threading.Thread(target=ask, daemon=True).start()


def wait_for(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(3000):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it never happened")


def test_the_asker_gets_the_answer_or_the_error_of_the_loop() -> None:
    mailbox, results = Mailbox(), list[object]()
    asking(mailbox, lambda: 42, results)
    asking(mailbox, lambda: 1 // 0, results)

    def answered() -> bool:
        mailbox.answer()
        return len(results) == 2

    wait_for(answered)

    assert 42 in results
    assert any(isinstance(each, ZeroDivisionError) for each in results)


def test_a_loop_that_has_no_time_is_told_as_busy() -> None:
    with pytest.raises(Busy):
        Mailbox().ask(lambda: 1, timeout=0)


def test_more_questions_than_can_wait_are_refused() -> None:
    mailbox = Mailbox()
    for _ in range(MAX_WAITING):
        with pytest.raises(Busy):
            mailbox.ask(lambda: 1, timeout=0)
    with pytest.raises(Busy):
        mailbox.ask(lambda: 1, timeout=PATIENCE)


def test_who_asks_an_agent_that_stops_does_not_keep_it_from_ending() -> None:
    mailbox, results = Mailbox(), list[object]()
    asking(mailbox, lambda: 42, results)
    wait_for(lambda: mailbox._questions.qsize() == 1)

    mailbox.close()

    wait_for(lambda: len(results) == 1)
    assert isinstance(results[0], Busy)
    with pytest.raises(Busy):
        mailbox.ask(lambda: 1, timeout=PATIENCE)
