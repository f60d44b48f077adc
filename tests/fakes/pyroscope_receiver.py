"""A Pyroscope that is stricter than the real one: it refuses what that refuses, remembers what that
loses without saying so, and keeps every byte it ever got.

In a test: ``with Receiver() as receiver:`` and ``receiver.url``, ``.violations``, ``.totals()``.
On its own, for a cluster: ``python -m tests.fakes.pyroscope_receiver --port 4040``, and then
``GET /test/pushes``, ``/test/totals``, ``/test/violations``, ``/test/raw`` (everything, for leak
searches), ``POST /test/answer`` with ``{"status": 429, "times": 3, "headers": {}}``.
"""

from __future__ import annotations

import argparse
import base64
import json
import ssl
import threading
import time
import zlib
from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

from tests.fakes import pyroscope_rules as rules

MAX_BODY = 16 << 20


@dataclass
class Answer:
    """What to answer instead of the truth. ``store``: whether the push is taken all the same.
    Status 0: end the connection without an answer; -1: do not answer until the receiver ends."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""
    store: bool = False


@dataclass(frozen=True)
class Got:
    """One request, whatever became of it."""

    at: float
    target: str
    headers: dict[str, str]
    body: bytes
    unpacked: bytes
    status: int
    reason: str
    peer: int
    """The sender's port, one for each connection."""


class Receiver:
    """Listens on a port of the loopback, or of ``host``."""

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        prefix: str = "",
        tenants: bool = False,
        basic: tuple[str, str] | None = None,
        token: str = "",
        limit_rate: bool = True,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.prefix = prefix
        self.tenants = tenants
        self.limit_rate = limit_rate
        self.authorization = ""
        if basic:
            pair = base64.b64encode(":".join(basic).encode()).decode()
            self.authorization = f"Basic {pair}"
        elif token:
            self.authorization = f"Bearer {token}"
        self.got: list[Got] = []
        self.violations: list[str] = []
        self.answers: deque[Answer] = deque()
        self.released = threading.Event()
        self._stored: dict[tuple[str, object], rules.Stored] = {}
        self._tokens: dict[str, tuple[float, float]] = {}
        self._changed = threading.Condition()
        self._server = ThreadingHTTPServer((host, port), _handler(self))
        self._server.daemon_threads = True
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://{host}:{self._server.server_address[1]}{prefix}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, status: int, times: int = 1, **options) -> None:
        """Answer the next requests with ``status``, whatever they are."""
        self.answers.extend(Answer(status, **options) for _ in range(times))

    # What it got

    def stored(self, type_name: str = "", **labels: str) -> list[rules.Stored]:
        """What queries would find, duplicates of one series and time once, the oldest first."""
        with self._changed:
            found = [
                one
                for one in self._stored.values()
                if type_name in ("", one.type_id.split(":")[1])
                and labels.items() <= dict(one.labels).items()
            ]
        return sorted(found, key=lambda one: one.time_ns)

    def total(self, type_name: str, **labels: str) -> int:
        """The sum over all times and series that have these labels."""
        return sum(one.total for one in self.stored(type_name, **labels))

    def totals(self) -> dict[str, Counter[str]]:
        """Type id -> service name -> sum over all times."""
        found: dict[str, Counter[str]] = {}
        for one in self.stored():
            found.setdefault(one.type_id, Counter())[dict(one.labels)["service_name"]] += one.total
        return found

    def wait_for(self, requests: int, seconds: float = 20) -> None:
        """Until so many requests have been answered. Raises AssertionError if they do not come."""
        with self._changed:
            came = self._changed.wait_for(lambda: len(self.got) >= requests, seconds)
        assert came, f"{len(self.got)} requests, not {requests}"

    def everything(self) -> bytes:
        """Every byte that came in, and what it unpacks to, for leak searches."""
        return b"\n".join(
            part
            for got in self.got
            for part in (got.target.encode(), repr(got.headers).encode(), got.body, got.unpacked)
        )

    # What it does

    def take(self, target: str, headers: dict[str, str], body: bytes, peer: int) -> Answer:
        """Judge one POST."""
        answer = self.answers.popleft() if self.answers else None
        accepted = None
        status, reason = 200, ""
        try:
            if answer is None or answer.store:
                accepted = self._accept(target, headers, body)
            if answer is not None:
                status, reason = answer.status, answer.body
        except rules.Refused as refused:
            status, reason = refused.status, str(refused)
        unpacked = rules.opened(body)
        tenant = headers.get("x-scope-orgid", "anonymous")
        with self._changed:
            if accepted is not None:
                self.violations += accepted.violations
                for one in accepted.stored:
                    self._stored[tenant, one.key] = one
            self.got.append(Got(time.time(), target, headers, body, unpacked, status, reason, peer))
            self._changed.notify_all()
        return Answer(status, answer.headers if answer else {}, reason)

    def _accept(self, target: str, headers: dict[str, str], body: bytes) -> rules.Accepted:
        parts = urlsplit(target)
        path = parts.path.removeprefix(self.prefix) if self.prefix else parts.path
        if self.authorization and headers.get("authorization") != self.authorization:
            raise rules.Refused(401, "wrong credentials")
        if self.tenants and not headers.get("x-scope-orgid"):
            raise rules.Refused(401, "no org id")
        if self.prefix and path == parts.path:
            raise rules.Refused(404, "404 page not found")
        if path == "/push.v1.PusherService/Push":
            if headers.get("content-type") != "application/json":
                raise rules.Refused(415, "unsupported content type")
            if headers.get("content-encoding") == "gzip":
                body = zlib.decompress(body, 16 + zlib.MAX_WBITS)
            accepted = rules.push(body, time.time_ns())
        elif path == "/ingest":
            accepted = rules.ingest(dict(parse_qsl(parts.query)), body, time.time_ns())
        else:
            raise rules.Refused(404, "404 page not found")
        self._spend(headers.get("x-scope-orgid", "anonymous"), accepted.size)
        return accepted

    def _spend(self, tenant: str, size: int) -> None:
        if not self.limit_rate:
            return
        now = time.monotonic()
        with self._changed:
            left, at = self._tokens.get(tenant, (float(rules.BURST_BYTES), now))
            left = min(left + (now - at) * rules.BYTES_PER_SECOND, rules.BURST_BYTES)
            enough = size <= left
            self._tokens[tenant] = left - size * enough, now
        if not enough:
            raise rules.Refused(429, "push rate limit (4.0 MiB) exceeded while adding")

    def query(self, path: str) -> object:
        """What the cluster test asks for."""
        if path == "/test/pushes":
            return [
                {**asdict(one), "labels": dict(one.labels), "stacks": len(one.stacks)}
                for one in self.stored()
            ]
        if path == "/test/totals":
            return self.totals()
        if path == "/test/violations":
            return self.violations
        if path == "/test/requests":
            return [
                {"at": g.at, "target": g.target, "status": g.status, "reason": g.reason}
                for g in self.got
            ]
        return None


def _handler(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 60
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            if length > MAX_BODY:
                return self._reply(413, b"", {})
            body = self.rfile.read(length)
            if self.path == "/test/answer":
                told = json.loads(body)
                receiver.answer(told.pop("status"), told.pop("times", 1), **told)
                return self._reply(200, b"{}", {})
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = receiver.take(self.path, headers, body, self.client_address[1])
            if answer.status == -1:
                receiver.released.wait()
            if answer.status <= 0:
                self.close_connection = True
                return None
            text = b"{}" if answer.status == 200 and not answer.body else answer.body.encode()
            return self._reply(answer.status, text, answer.headers)

        def do_GET(self) -> None:
            if self.path == "/test/raw":
                return self._reply(200, receiver.everything(), {})
            if self.path == "/ready":
                return self._reply(200, b"ready", {})
            found = receiver.query(self.path)
            if found is None:
                return self._reply(405 if "Push" in self.path else 404, b"", {})
            return self._reply(200, json.dumps(found).encode(), {})

        def _reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing: what came is in ``got``."""

    return Handler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=4040)
    parser.add_argument("--prefix", default="")
    parser.add_argument("--tenants", action="store_true")
    options = parser.parse_args()
    with Receiver(**vars(options)) as receiver:
        print(f"listening on {receiver.url}", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
