"""The list and watch loop, against a server on loopback that answers as one in trouble would.

tests/cluster/kube_api_test.py has it against the real one.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from gpumemprof.errors import RemoteDataError
from gpumemprof.kube.api import Api, from_kubeconfig
from gpumemprof.kube.json_stream import MAX_OBJECT_BYTES
from gpumemprof.kube.list_watch import ListWatch, Timing

UID = "c1a7ac8b-1c3e-4a6d-9f5e-{:012}"
Reply = Callable[[BaseHTTPRequestHandler, Mapping[str, str]], None]


class Server:
    """Answers each request with the next reply; the last one stays. Keeps the queries it got."""

    def __init__(self) -> None:
        self.lists: list[Reply] = []
        self.watches: list[Reply] = []
        self.queries: list[Mapping[str, str]] = []
        self.closing = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                query = dict(parse_qsl(urlsplit(self.path).query))
                outer.queries.append(query)
                replies = outer.watches if query.get("watch") else outer.lists
                reply = replies.pop(0) if len(replies) > 1 else replies[0]
                reply(self, query)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self._thread = threading.Thread(target=self.http.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def watched(self) -> list[Mapping[str, str]]:
        return [query for query in self.queries if query.get("watch")]

    @property
    def listed(self) -> list[Mapping[str, str]]:
        return [query for query in self.queries if not query.get("watch")]

    def close(self) -> None:
        self.closing.set()
        self.http.shutdown()
        self._thread.join()
        self.http.server_close()

    # Replies

    def page(self, *items: Any, version: str = "10") -> Reply:
        body = {"kind": "PodList", "metadata": {"resourceVersion": version}, "items": items}
        return self.body(json.dumps(body).encode())

    def body(self, data: bytes, status: int = 200, **headers: str) -> Reply:
        def reply(handler: BaseHTTPRequestHandler, _query: Mapping[str, str]) -> None:
            handler.send_response(status)
            handler.send_header("Content-Type", "application/json")
            handler.send_header("Content-Length", str(len(data)))
            for name, value in headers.items():
                handler.send_header(name.replace("_", "-"), value)
            handler.end_headers()
            handler.wfile.write(data)

        return reply

    def error(self, status: int, message: str = "no", **headers: str) -> Reply:
        return self.body(json.dumps({"message": message}).encode(), status, **headers)

    def stream(self, *parts: bytes, hold: bool = True) -> Reply:
        """A watch that brings these and then stays open (``hold``), or breaks off."""

        def reply(handler: BaseHTTPRequestHandler, _query: Mapping[str, str]) -> None:
            handler.send_response(200)
            handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
            for part in parts:
                handler.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            if hold:
                self.closing.wait()
            else:
                handler.close_connection = True

        return reply

    def end(self, *parts: bytes) -> Reply:
        """A watch that ends as its time is over."""
        stream = self.stream(*parts, hold=False)

        def reply(handler: BaseHTTPRequestHandler, query: Mapping[str, str]) -> None:
            stream(handler, query)
            handler.wfile.write(b"0\r\n\r\n")

        return reply


def thing(number: int, version: str = "1", **rest: Any) -> dict[str, Any]:
    return {"metadata": {"uid": UID.format(number), "resourceVersion": version}, **rest}


def event(kind: str, json_object: Mapping[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": json_object}).encode() + b"\n"


class Seen:
    """Where the objects go in these tests."""

    def __init__(self) -> None:
        self.now: dict[str, Mapping[str, Any]] = {}
        self.replaced: list[list[str]] = []
        self.unusable: list[str] = []
        self._changed = threading.Condition()

    def convert(self, json: Mapping[str, Any]) -> Mapping[str, Any]:
        if json.get("bad"):
            raise RemoteDataError("bad")
        if json.get("bug"):
            raise ZeroDivisionError("a bug of ours")
        return json

    def replace(self, objects: Iterable[Mapping[str, Any]]) -> None:
        now = {one["metadata"]["uid"]: one for one in objects}
        with self._changed:
            self.now = now
            self.replaced.append(list(now))
            self._changed.notify_all()

    def put(self, value: Mapping[str, Any]) -> None:
        with self._changed:
            self.now[value["metadata"]["uid"]] = value
            self._changed.notify_all()

    def ended(self, uid: str) -> None:
        with self._changed:
            self.now.pop(uid, None)
            self._changed.notify_all()

    def refused(self, uid: str) -> None:
        with self._changed:
            self.unusable.append(uid)
            self.now.pop(uid, None)
            self._changed.notify_all()

    def wait(self, what: Callable[[], bool]) -> None:
        until = time.monotonic() + 30
        while not what():
            assert time.monotonic() < until
            with self._changed:
                self._changed.wait(0.05)

    def wait_for(self, *numbers: int) -> None:
        self.wait(lambda: sorted(self.now) == [UID.format(number) for number in numbers])


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def loop(server: Server, seen: Seen, tmp_path: Path) -> Iterator[ListWatch[Mapping[str, Any]]]:
    config = tmp_path / "config"
    host, port = server.http.server_address[:2]
    config.write_text(
        json.dumps(
            {
                "current-context": "x",
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": f"http://{host!s}:{port}"}}],
                "users": [{"name": "u", "user": {}}],
            }
        )
    )
    api = Api(from_kubeconfig(str(config)))
    timing = Timing(list_read=5, quiet=(20, 20), backoff=(0.02, 0.1))
    loop = ListWatch("things", api, "/api/v1/things", "a=b", seen, timing)
    thread = threading.Thread(target=loop.run)
    loop.start = thread.start  # type: ignore[attr-defined]
    yield loop
    loop.stop()
    thread.join(30)
    assert not thread.is_alive()


def test_it_lists_from_the_servers_cache_and_watches_from_there(
    server: Server, seen: Seen, loop: Any
) -> None:
    server.lists = [server.page(thing(1), thing(2), version="10")]
    server.watches = [
        server.stream(
            event("ADDED", thing(3, "11")),
            event("MODIFIED", thing(1, "12", changed=True)),
            event("DELETED", thing(2, "13")),
        )
    ]
    loop.start()
    seen.wait_for(1, 3)
    assert seen.now[UID.format(1)]["changed"]
    (listed,) = server.listed
    assert listed == {"fieldSelector": "a=b", "resourceVersion": "0"}
    (watched,) = server.watched
    assert 300 <= int(watched.pop("timeoutSeconds")) <= 600  # type: ignore[attr-defined]
    assert watched == {
        "fieldSelector": "a=b",
        "resourceVersion": "10",
        "watch": "true",
        "allowWatchBookmarks": "true",
    }
    assert loop.state.up_to_date


def test_after_a_watch_ends_the_next_goes_on_behind_the_last_bookmark(
    server: Server, seen: Seen, loop: Any
) -> None:
    bookmark = {"kind": "Pod", "metadata": {"resourceVersion": "77"}}
    server.lists = [server.page()]
    server.watches = [
        server.end(event("ADDED", thing(1, "50")), event("BOOKMARK", bookmark)),
        server.stream(event("ADDED", thing(2, "78"))),
    ]
    loop.start()
    seen.wait_for(1, 2)
    assert [query["resourceVersion"] for query in server.watched] == ["10", "77"]
    assert (loop.state.lists, loop.state.bookmarks, loop.state.errors) == (1, 1, 0)


@pytest.mark.parametrize("how", ["answer", "event"])
def test_gone_versions_are_listed_again_never_back_to_an_older_state(
    server: Server, seen: Seen, loop: Any, how: str
) -> None:
    status = {"kind": "Status", "code": 410, "message": "too old resource version: 11 (99)"}
    gone = server.error(410) if how == "answer" else server.stream(event("ERROR", status))
    server.lists = [server.page(thing(1)), server.page(thing(2), version="99")]
    server.watches = [server.end(event("MODIFIED", thing(1, "11"))), gone, server.stream()]
    loop.start()
    seen.wait(lambda: len(server.watched) == 3)
    seen.wait_for(2)
    assert [query.get("resourceVersion") for query in server.listed] == ["0", "11"]
    assert server.watched[-1]["resourceVersion"] == "99"
    assert (loop.state.expired, loop.state.errors) == (1, 0)


def test_a_server_that_is_behind_is_asked_for_its_newest(
    server: Server, seen: Seen, loop: Any
) -> None:
    """Its store was restored from a backup: the version we have is in its future."""
    server.lists = [server.page(thing(1), version="500"), server.error(504), server.page(thing(2))]
    server.watches = [server.error(504, "Too large resource version"), server.stream()]
    loop.start()
    seen.wait_for(2)
    assert [query.get("resourceVersion") for query in server.listed] == ["0", "500", None]


def test_a_broken_connection_goes_on_where_it_was(server: Server, seen: Seen, loop: Any) -> None:
    server.lists = [server.page()]
    half = event("ADDED", thing(2, "12"))[:20]
    server.watches = [
        server.stream(event("ADDED", thing(1, "11")), half, hold=False),
        server.stream(event("ADDED", thing(2, "12"))),
    ]
    loop.start()
    seen.wait_for(1, 2)
    assert [query["resourceVersion"] for query in server.watched] == ["10", "11"]
    assert (loop.state.lists, loop.state.errors) == (1, 1)


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
def test_a_server_in_trouble_is_asked_again(
    server: Server, seen: Seen, loop: Any, status: int
) -> None:
    server.lists = [server.error(status, "not now"), server.error(status), server.page(thing(1))]
    server.watches = [server.error(status), server.stream()]
    loop.start()
    seen.wait_for(1)
    seen.wait(lambda: loop.state.up_to_date)
    assert str(status) in loop.state.last_error
    assert (loop.state.errors, loop.state.lists) == (3, 1)


def test_a_server_that_asks_for_time_gets_it(server: Server, seen: Seen, loop: Any) -> None:
    server.lists = [server.error(429, Retry_After="1"), server.page(thing(1))]
    server.watches = [server.stream()]
    began = time.monotonic()
    loop.start()
    seen.wait_for(1)
    assert time.monotonic() - began >= 1


@pytest.mark.parametrize(
    "line",
    [b"<html>\n", b"[]\n", b'{"type": "ADDED"}\n', event("ADDED", {"bug": True})],
    ids=["no JSON", "no object", "no event", "bug"],
)
def test_after_what_it_cannot_follow_it_lists_again(
    server: Server, seen: Seen, loop: Any, line: bytes
) -> None:
    server.lists = [server.page(thing(1)), server.page(thing(2))]
    server.watches = [server.stream(line), server.stream()]
    loop.start()
    seen.wait_for(2)
    assert loop.state.errors == 1


@pytest.mark.parametrize("body", [b"<html>", b'{"items": [{"a"', b"{}"])
def test_a_list_that_is_none_changes_nothing(
    server: Server, seen: Seen, loop: Any, body: bytes
) -> None:
    first, last = server.page(thing(1)), server.page(thing(2))
    server.lists = [first, server.body(body), server.body(body), last]
    server.watches = [server.error(410), server.stream()]
    loop.start()
    seen.wait_for(2)
    assert seen.replaced == [[UID.format(1)], [UID.format(2)]]
    assert loop.state.errors == 2


def test_objects_that_cannot_be_used_are_left_out_and_counted(
    server: Server, seen: Seen, loop: Any
) -> None:
    padding = "x" * MAX_OBJECT_BYTES
    server.lists = [server.page(thing(1), thing(2, bad=True), thing(3, padding=padding))]
    server.watches = [
        server.stream(
            event("ADDED", thing(4, "11", padding=padding)),
            event("MODIFIED", thing(1, "12", bad=True)),
            event("ADDED", thing(5, "13")),
        )
    ]
    loop.start()
    seen.wait_for(5)
    assert seen.unusable == [UID.format(number) for number in (2, 3, 4, 1)]
    assert (loop.state.refused, loop.state.errors, loop.state.lists) == (4, 0, 1)


def test_it_stops_while_the_server_is_silent(server: Server, seen: Seen, loop: Any) -> None:
    server.lists = [server.page(thing(1))]
    server.watches = [server.stream()]
    loop.start()
    seen.wait(lambda: loop.state.up_to_date)
    # The fixture stops it: it has to end long before the silence of 20 s does.
