"""Runs Debian's own Prometheus on this machine, and what it scrapes."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

PATIENCE_SECONDS = 60.0
"""How long we wait for what must happen; it only bounds a test that fails."""

Answer = Callable[[str], tuple[bytes, str]]
"""From the header Accept to a body and its content type."""

Vector = dict[frozenset[tuple[str, str]], float]
"""An instant result: labels, without the name, to the number."""


def installed() -> bool:
    return shutil.which("prometheus") is not None and shutil.which("promtool") is not None


@contextlib.contextmanager
def serving(answer: Answer) -> Iterator[tuple[str, list[str]]]:
    """An HTTP server whose ``/metrics`` is ``answer``. Gives its address, and a list that grows by
    the content type of each answer."""
    types: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body, content_type = answer(self.headers.get("Accept", ""))
            types.append(content_type)
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}", types
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Prometheus:
    """A client of a server that ``running`` started."""

    def __init__(self, address: str) -> None:
        self._address = address

    def get(self, path: str, **parameters: str) -> Any:
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"http://{self._address}{path}?{query}") as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error

    def query(self, expression: str, at: float | None = None) -> Vector:
        """The instant result at a time (seconds since the epoch; None: now)."""
        when = {} if at is None else {"time": repr(at)}
        data = self.get("/api/v1/query", query=expression, **when)
        if data["resultType"] == "scalar":
            return {frozenset(): float(data["result"][1])}
        result: Vector = {}
        for series in data["result"]:
            labels = {name: text for name, text in series["metric"].items() if name != "__name__"}
            result[frozenset(labels.items())] = float(series["value"][1])
        return result

    def until(self, expression: str, wanted: Callable[[Vector], bool]) -> Vector:
        """Ask again until the result is as wanted."""
        end = time.monotonic() + PATIENCE_SECONDS
        while not wanted(result := self.query(expression)):
            assert time.monotonic() < end, f"{expression} stays {result}"
            time.sleep(0.2)
        return result


@contextlib.contextmanager
def running(directory: Path, scrapes: list[Mapping[str, object]]) -> Iterator[Prometheus]:
    """Prometheus with these scrape configurations, scraping each second."""
    config = directory / "prometheus.yml"
    scraping = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    config.write_text(yaml.safe_dump({"global": scraping, "scrape_configs": scrapes}))
    subprocess.run(["promtool", "check", "config", config], check=True, capture_output=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    log = directory / "prometheus.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address={address}",
                "--log.level=warn",
            ],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://{address}/-/ready").close()
                break
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        yield Prometheus(address)
    finally:
        process.terminate()
        process.wait()
