"""List once, then watch: follows a set of objects for as long as the agent runs.

Whatever happens to the API server or on the way to it, the loop goes on, and what was known stays
known until the server says otherwise.
"""

from __future__ import annotations

import contextlib
import logging
import math
import random
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from gpumemprof.errors import RemoteDataError
from gpumemprof.kube.api import Answer, Api, ApiError, Quiet
from gpumemprof.kube.json_object import JsonObject, mapping_in, text_in
from gpumemprof.kube.json_stream import ObjectList, Piece, lines
from gpumemprof.kube.pod_json import uid_of

log = logging.getLogger(__name__)

GONE = 410
TOO_LARGE_VERSION = 504
"""The server has not come to that version yet: another one behind the same address has, or its
store was restored from a backup."""
_LIST_AGAIN = frozenset({400, 404, GONE, 422, TOO_LARGE_VERSION})
"""Answers to a watch that asking the same again would not change."""

WORKED_SECONDS = 10.0
"""A watch that was open for longer than this worked: failures before it count no more."""
LEAST_WAIT_SECONDS = 0.01

T = TypeVar("T")


class Sink(Protocol[T]):
    """Where objects go. Called from one thread."""

    def convert(self, json: JsonObject) -> T:
        """Raises RemoteDataError for an object that cannot be used."""

    def replace(self, objects: Iterable[T]) -> None:
        """These are all. If the iterable raises, nothing may change."""

    def put(self, value: T) -> None:
        """One is new, or changed."""

    def ended(self, uid: str) -> None:
        """One is no more."""

    def refused(self, uid: str) -> None:
        """One is, or became, what cannot be used. ``uid`` may be empty."""


@dataclass(frozen=True, slots=True)
class Timing:
    """In seconds."""

    list_read: float = 30.0
    """Longest silence within the answer to a list."""
    watch: tuple[float, float] = (300.0, 600.0)
    """How long the server is asked to keep one watch; drawn anew each time, so that the agents of a
    cluster do not come back together."""
    quiet: tuple[float, float] = (90.0, 150.0)
    """After how much silence a watch is opened anew, drawn each time. The server sends a bookmark
    once a minute, but only after something of that kind changed anywhere in the cluster: silence is
    no failure, and may be a connection that leads nowhere."""
    backoff: tuple[float, float] = (0.5, 30.0)
    """Longest wait after the first failure, and after many; drawn between none and these."""


DEFAULT_TIMING = Timing()


@dataclass(slots=True)
class WatchState:
    """For health and metrics; written by the loop only."""

    listed: bool = False
    up_to_date: bool = False
    """Whether a watch is open."""
    last_error: str = ""
    lists: int = 0
    watches: int = 0
    events: int = 0
    bookmarks: int = 0
    expired: int = 0
    """Times that the server no longer had what came after the last version (410)."""
    errors: int = 0
    refused: int = 0
    """Objects that could not be used."""


class ListWatch(Generic[T]):
    """The loop. ``path``: of the API, such as ``/api/v1/pods``; ``selector``: a field selector."""

    def __init__(
        self,
        name: str,
        api: Api,
        path: str,
        selector: str,
        sink: Sink[T],
        timing: Timing = DEFAULT_TIMING,
    ) -> None:
        self.name = name
        self.state = WatchState()
        self._api = api
        self._path = path
        self._selector = selector
        self._sink = sink
        self._timing = timing
        self._stopping = threading.Event()
        self._answer: Answer | None = None
        self._must_list = True
        self._list_version = "0"
        """0: whatever the server has at hand, which spares its store. Later the last version seen:
        never back to an older state. Empty: the newest, when it does not have that one."""
        self._version = ""
        self._failures = 0
        self._opened = math.inf

    def run(self) -> None:
        """Until stopped."""
        while not self._stopping.is_set():
            self._opened = math.inf
            wait = 0.0
            try:
                if self._must_list:
                    self._list()
                self._watch()
            except Exception as error:
                if self._stopping.is_set():
                    break
                wait = self._failed(error)
            worked = time.monotonic() - self._opened > WORKED_SECONDS
            if worked:
                self._failures = 0
            if wait or not worked:
                self._stopping.wait(max(wait, self._backoff()))
        self.state.up_to_date = False
        self._api.reset()

    def stop(self) -> None:
        """From another thread: nothing is delivered any more, and ``run`` returns, at once unless
        it is waiting for the server to answer."""
        self._stopping.set()
        answer = self._answer
        if answer is not None:
            answer.interrupt()

    def _list(self) -> None:
        query = {"fieldSelector": self._selector}
        if self._list_version:
            query["resourceVersion"] = self._list_version
        refused: list[str] = []
        try:
            with self._ask(query, self._timing.list_read) as answer:
                found = ObjectList(answer.chunks())
                self._sink.replace(self._usable(found, refused))
        except ApiError as error:
            if error.status in {GONE, TOO_LARGE_VERSION}:
                self._list_version = ""
            raise
        for uid in refused:
            self._refused(uid)
        self._version = self._list_version = found.resource_version
        self._must_list = False
        self.state.lists += 1
        self.state.listed = True

    def _usable(self, pieces: Iterable[Piece], refused: list[str]) -> Iterator[T]:
        for piece in pieces:
            try:
                yield self._sink.convert(piece.json())
            except RemoteDataError:
                refused.append(piece.uid())

    def _watch(self) -> None:
        query = {
            "fieldSelector": self._selector,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(round(random.uniform(*self._timing.watch))),  # noqa: S311
        }
        with (
            self._ask(query, random.uniform(*self._timing.quiet)) as answer,  # noqa: S311
            contextlib.suppress(Quiet),
        ):
            self._opened = time.monotonic()
            self.state.watches += 1
            self.state.up_to_date = True
            for line in lines(answer.chunks()):
                if self._stopping.is_set():
                    return
                self._event(line)

    @contextlib.contextmanager
    def _ask(self, query: dict[str, str], read_timeout: float) -> Iterator[Answer]:
        with self._api.get(self._path, query, read_timeout) as answer:
            self._answer = answer
            try:
                # Either we see that we are to stop, or stop() sees the answer to interrupt.
                if self._stopping.is_set():
                    raise ApiError("stopped")
                yield answer
            finally:
                self._answer = None

    def _event(self, line: Piece) -> None:
        if not line.whole:
            self._refused(line.uid())
            return
        event = line.json()
        kind, json = event.get("type"), event.get("object")
        if not isinstance(json, dict):
            raise RemoteDataError("an event of a watch has no object")
        if kind == "ERROR":
            code, message = json.get("code"), str(json.get("message"))[:300]
            raise ApiError(f"the watch ended: {message}", code if isinstance(code, int) else 0)
        if kind == "BOOKMARK":
            self.state.bookmarks += 1
        else:
            self.state.events += 1
            uid = uid_of(json)
            if kind == "DELETED":
                self._sink.ended(uid)
            elif kind in {"ADDED", "MODIFIED"}:
                try:
                    self._sink.put(self._sink.convert(json))
                except RemoteDataError:
                    self._refused(uid)
        version = text_in(mapping_in(json, "metadata"), "resourceVersion")
        if version:
            self._version = self._list_version = version

    def _refused(self, uid: str) -> None:
        self.state.refused += 1
        self._sink.refused(uid)

    def _failed(self, error: Exception) -> float:
        """Take note of a failure; the seconds to wait at least."""
        state = self.state
        state.up_to_date = False
        state.last_error = str(error)
        if isinstance(error, ApiError):
            self._must_list = self._must_list or error.status in _LIST_AGAIN
            if error.status == GONE:
                state.expired += 1
                log.info("%s: listing again: %s", self.name, error)
                return LEAST_WAIT_SECONDS
            log.log(logging.INFO if self._failures else logging.WARNING, "%s: %s", self.name, error)
        else:
            self._must_list = True
            log.warning("%s: %s", self.name, error, exc_info=not isinstance(error, RemoteDataError))
        state.errors += 1
        self._api.reset()
        return max(error.retry_after if isinstance(error, ApiError) else 0.0, LEAST_WAIT_SECONDS)

    def _backoff(self) -> float:
        first, most = self._timing.backoff
        longest = min(most, first * 2 ** min(self._failures, 16))
        self._failures += 1
        return random.uniform(0, longest)  # noqa: S311
