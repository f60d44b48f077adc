"""Looks at another process that may never end, given up after a while.

A file on a dead network file system or on FUSE answers when its server likes to, and memory of a
process can be a mapping of such a file. A thread that waits for it cannot be interrupted; but it
can be left behind.
"""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from gpumemprof.errors import RemoteDataError

Result = TypeVar("Result")

MAX_LEFT = 256
"""Threads left behind at a time; beyond it nothing that may wait is tried any more."""


class NoAnswerError(RemoteDataError):
    """It took too long and was given up."""


_inside: contextvars.ContextVar[bool] = contextvars.ContextVar("inside", default=False)


class _Worker:
    """A thread that does one piece of work after the other."""

    def __init__(self) -> None:
        self.work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self.done: queue.SimpleQueue[tuple[object, BaseException | None]] = queue.SimpleQueue()
        # A daemon: one that never comes back must not keep the program from ending.
        self.thread = threading.Thread(target=self._run, name="remote reads", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        _inside.set(True)
        while (function := self.work.get()) is not None:
            try:
                outcome: tuple[object, BaseException | None] = function(), None
            except BaseException as error:  # raised again where it was asked for
                outcome = None, error
            self.done.put(outcome)


class Patience:
    """Runs functions to their end, or for so many seconds. For one thread at a time."""

    def __init__(self, seconds: float | None = None) -> None:
        """``seconds`` None: without limit, and in the caller's own thread."""
        self._seconds = seconds
        self._worker: _Worker | None = None
        self._left: list[_Worker] = []
        self._kept: list[object] = []
        self.given_up = 0
        """Functions that did not come to an end in time."""

    def __call__(self, function: Callable[[], Result]) -> Result:
        """What ``function`` returns or raises; NoAnswerError if it takes too long.

        It then goes on by itself and its result is dropped: it must change nothing that others
        rely on. Called from inside such a function, it just runs.
        """
        if self._seconds is None or _inside.get():
            return function()
        worker = self._worker or self._new()
        self._worker = worker
        worker.work.put(function)
        try:
            result, error = worker.done.get(timeout=self._seconds)
        except queue.Empty:
            self._give_up(worker)
            raise NoAnswerError(f"no answer within {self._seconds:g} s") from None
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def keep(self, thing: object) -> None:
        """Hold what must not be closed: to close a file asks the server that does not answer."""
        self._kept.append(thing)

    def _new(self) -> _Worker:
        self._left = [worker for worker in self._left if worker.thread.is_alive()]
        if len(self._left) >= MAX_LEFT:
            raise NoAnswerError("too many reads wait for an answer that does not come")
        return _Worker()

    def _give_up(self, worker: _Worker) -> None:
        self.given_up += 1
        worker.work.put(None)  # should it ever come back
        self._left.append(worker)
        self._worker = None

    def close(self) -> None:
        """Let the thread end."""
        if self._worker is not None:
            self._worker.work.put(None)
            self._worker = None
