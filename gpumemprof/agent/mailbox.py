"""Questions of other threads, answered by the agent's loop between two of its steps: the recorder
and its ledger belong to one thread."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar

from gpumemprof.errors import GpumemprofError

T = TypeVar("T")
MAX_WAITING = 64
TURN_SECONDS = 0.2
"""How long answering takes of a turn of the loop; events wait meanwhile."""


class Busy(GpumemprofError):
    """The agent's loop has no time to answer now."""


class Mailbox:
    """``ask`` from any thread; ``answer`` from the loop."""

    def __init__(self) -> None:
        self._questions: queue.Queue[tuple[Callable[[], Any], Future[Any]]] = queue.Queue(
            MAX_WAITING
        )
        self._closed = False

    def ask(self, question: Callable[[], T], timeout: float = 5.0) -> T:
        """What ``question`` returns when the loop calls it. Raises what it raises, and Busy when
        the loop does not come to it in ``timeout`` seconds."""
        future: Future[T] = Future()
        try:
            self._questions.put_nowait((question, future))
            if self._closed:
                self._refuse()
            return future.result(timeout)
        except (queue.Full, FutureTimeoutError, CancelledError):
            future.cancel()
            raise Busy("the agent is busy; try again") from None

    def answer(self) -> None:
        """Answer what waits, for a short while."""
        end = time.monotonic() + TURN_SECONDS
        for _ in range(self._questions.qsize()):
            try:
                question, future = self._questions.get_nowait()
            except queue.Empty:
                return
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(question())
            except Exception as error:  # it is the asker's
                future.set_exception(error)
            if time.monotonic() > end:
                return

    def close(self) -> None:
        """The loop has ended: who waits and who will ask is told at once."""
        self._closed = True
        self._refuse()

    def _refuse(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._questions.get_nowait()[1].cancel()
