"""HTTP as far as the agent speaks it: GET and HEAD without a body, one request a connection."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from gpumemprof.errors import GpumemprofError

MAX_HEAD = 16 << 10
"""Bytes of a request line and its headers."""

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_LOCAL = re.compile(r"(?:localhost|127\.0\.0\.1|\[::1\])(?::[0-9]{1,5})?\Z", re.IGNORECASE)
_GZIP_FROM = 1400
"""Bytes: below it an answer fits in a packet as it is."""


class HttpError(GpumemprofError):
    """An answer other than 200, with one sentence for the reader."""

    def __init__(
        self, status: int, message: str, headers: tuple[tuple[str, str], ...] = ()
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


@dataclass(frozen=True, slots=True)
class Request:
    """``query``: decoded; of a name given twice the last value. ``headers``: by lower-case name."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]

    def header(self, name: str) -> str:
        """The value of a header, empty if it is not there."""
        return self.headers.get(name, "")


@dataclass(frozen=True, slots=True)
class Response:
    """An answer. ``headers``: besides those of every answer."""

    body: bytes
    content_type: str
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()


class Route(NamedTuple):
    """What answers a path. ``quick``: it never waits, and may be asked where nothing must wait."""

    answer: Callable[[Request], Response]
    quick: bool = False


def as_json(value: Any, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    """``value`` as JSON."""
    body = json.dumps(value, separators=(",", ":")).encode("ascii")
    return Response(body, "application/json", status, headers)


def error(problem: HttpError) -> Response:
    """What is answered where something is wrong."""
    return as_json({"error": str(problem)}, problem.status, problem.headers)


def parse(head: bytes) -> Request:
    """The request in ``head``, its empty last line included.

    Raises HttpError for what is no request that we answer."""
    try:
        lines = head.decode("ascii").split("\r\n")[:-2]
    except UnicodeDecodeError:
        raise HttpError(400, "the request is not ASCII") from None
    parts = lines[0].split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/"):
        raise HttpError(400, "this is not an HTTP request")
    method, target, version = parts
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        raise HttpError(505, "HTTP/1.1 is spoken here")
    if method not in ("GET", "HEAD"):
        raise HttpError(405, "only GET and HEAD are answered", (("Allow", "GET, HEAD"),))
    if not target.startswith("/") or any(not " " < char < "\x7f" for char in target):
        raise HttpError(400, "the address in the request is not a path")
    url = urlsplit("http://agent" + target)
    try:
        pairs = parse_qsl(url.query, keep_blank_values=True, max_num_fields=20, errors="replace")
    except ValueError:
        raise HttpError(400, "the request has too many parameters") from None
    return Request(method, unquote(url.path), dict(pairs), _headers(lines[1:]))


def _headers(lines: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if (
            not colon
            or not _TOKEN.match(name)
            or any(char < " " and char != "\t" for char in value)
        ):
            raise HttpError(400, "a header of the request is damaged")
        name = name.lower()
        if name == "host" and name in headers:
            raise HttpError(400, "the request has two hosts")
        headers[name] = f"{headers[name]}, {value.strip()}" if name in headers else value.strip()
    return headers


def check_local(request: Request) -> None:
    """Raise HttpError unless the request is for this machine by name.

    A page on the web can give a name of its own the address 127.0.0.1 and would then be taken by
    browsers for the same site as ours; but the name is in the request."""
    if not _LOCAL.match(request.header("host")):
        raise HttpError(
            403, "this page is for localhost only: open it as http://localhost or http://127.0.0.1"
        )


def written(request: Request | None, response: Response, extra: Mapping[str, str]) -> bytes:
    """The bytes of an answer, compressed where the reader takes it."""
    body = response.body
    headers = dict(response.headers)
    headers |= {"Content-Type": response.content_type, "Connection": "close", **extra}
    if (
        request is not None
        and len(body) > _GZIP_FROM
        and "gzip" in request.header("accept-encoding")
        and "Content-Encoding" not in headers
        and response.content_type not in _COMPRESSED
    ):
        body = gzip.compress(body, 3, mtime=0)
        headers["Content-Encoding"] = "gzip"
    if response.content_type not in _COMPRESSED:
        headers["Vary"] = "Accept-Encoding"
    headers["Content-Length"] = str(len(body))
    status = HTTPStatus(response.status)
    head = [f"HTTP/1.1 {status.value} {status.phrase}"]
    head += [f"{name}: {value}" for name, value in headers.items()]
    data = ("\r\n".join(head) + "\r\n\r\n").encode("latin-1")
    return data if request is not None and request.method == "HEAD" else data + body


_COMPRESSED = frozenset({"application/gzip", "image/png"})
