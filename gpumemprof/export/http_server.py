"""A small HTTP server for the agent: bounded in connections, time and size, one thread to listen.

Whoever can reach the pod's address can open connections and leave them there. That must not keep
the kubelet from hearing that the agent is well, or it would restart it: a request has to arrive
within seconds, and when there are too many connections the oldest is dropped, those first which
have not asked yet; never the new one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import ipaddress
import logging
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpumemprof.errors import GpumemprofError, RemoteDataError, UsageError
from gpumemprof.export import http_request
from gpumemprof.export.http_request import MAX_HEAD, HttpError, Request, Route

log = logging.getLogger(__name__)

READ_SECONDS = 5.0
"""Within which a request has to arrive."""
WRITE_SECONDS = 60.0
"""Within which an answer has to be taken."""
MAX_CONNECTIONS = 32
"""Of one listener."""
WORKERS = 4
"""Requests that are answered at a time by one listener; others wait."""

_EVERY_ANSWER: Mapping[str, str] = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True)
class Listener:
    """An address and what is answered there.

    ``key``: the setting that names the address, for messages. ``host``: empty for all addresses.
    ``local``: the address must be the machine's own, and so must the name that requests are for.
    ``headers``: of every answer. ``port`` 0: any free one.
    """

    key: str
    host: str
    port: int
    routes: Mapping[str, Route]
    local: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


class HttpServer:
    """Listens from its making until ``close``, in a thread of its own."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        """Raises UsageError, which names the setting, if an address cannot be listened on."""
        with contextlib.ExitStack() as stack:
            bound = []
            for listener in listeners:
                opened = _listen(listener)
                stack.callback(opened.close)
                bound.append((listener, opened))
            stack.pop_all()
        self.ports = [opened.getsockname()[1] for _, opened in bound]
        """Of the listeners, in their order."""
        self._rooms = [_Room(listener, opened) for listener, opened in bound]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        for room in self._rooms:
            self._loop.create_task(room.open())
        self._loop.run_forever()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _end(self) -> None:
        for room in self._rooms:
            room.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # in which the connections that they held are closed

    def close(self) -> None:
        """Stop listening; requests that are being answered are dropped."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()


def _listen(listener: Listener) -> socket.socket:
    host, port = listener.host, listener.port
    where = f"{listener.key}: {f'[{host}]' if ':' in host else host}:{port}"
    if listener.local and not _is_loopback(host):
        raise UsageError(
            f"{where} is not an address of this machine alone (127.0.0.1 or [::1]): profiles are "
            "shown there to whoever asks"
        )
    try:
        if host in ("", "::"):
            try:
                return _server("::", port, socket.AF_INET6)
            except OSError:
                if host:
                    raise
                return _server("0.0.0.0", port, socket.AF_INET)  # noqa: S104 the pod's address
        ((family, _, _, _, address), *_) = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        return _server(str(address[0]), port, family)
    except (OSError, UnicodeError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{where} cannot be listened on: {reason}") from error


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _server(host: str, port: int, family: int) -> socket.socket:
    both = family == socket.AF_INET6 and host == "::" and socket.has_dualstack_ipv6()
    return socket.create_server((host, port), family=family, backlog=64, dualstack_ipv6=both)


class _Room:
    """One listener at work. All but ``_answer`` runs in the loop's thread."""

    def __init__(self, listener: Listener, opened: socket.socket) -> None:
        self._listener = listener
        self._socket = opened
        self._headers = {**_EVERY_ANSWER, **listener.headers}
        self._workers = concurrent.futures.ThreadPoolExecutor(
            WORKERS, thread_name_prefix=listener.key
        )
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], bool] = {}  # task → its request has arrived

    async def open(self) -> None:
        self._server = await asyncio.start_server(
            self._connected, sock=self._socket, limit=MAX_HEAD
        )

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._socket.close()
        self._workers.shutdown(wait=False, cancel_futures=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= MAX_CONNECTIONS:
            waiting = (task for task, arrived in self._connections.items() if not arrived)
            dropped = next(waiting, None) or next(iter(self._connections))
            del self._connections[dropped]
            dropped.cancel()
        self._connections[task] = False
        try:
            await self._exchange(task, reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError, asyncio.CancelledError):
            pass  # it left, or said too little for too long
        finally:
            self._connections.pop(task, None)
            writer.transport.abort()

    async def _exchange(
        self,
        task: asyncio.Task[None],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        request: Request | None = None
        try:
            try:
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), READ_SECONDS)
            except asyncio.LimitOverrunError:
                raise HttpError(431, f"the request has more than {MAX_HEAD:,} bytes") from None
            self._connections[task] = True
            request = http_request.parse(head)
            data = await self._data(request)
        except HttpError as problem:
            data = http_request.written(request, http_request.error(problem), self._headers)
        await asyncio.wait_for(_send(writer, data), WRITE_SECONDS)

    async def _data(self, request: Request) -> bytes:
        if self._listener.local:
            http_request.check_local(request)
        route = self._listener.routes.get(request.path)
        if route is None:
            raise HttpError(404, "there is nothing at this address")
        if route.quick:
            return self._answer(route, request)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._workers, self._answer, route, request)

    def _answer(self, route: Route, request: Request) -> bytes:
        try:
            response = route.answer(request)
        except HttpError as problem:
            response = http_request.error(problem)
        except GpumemprofError as problem:
            status = 400 if isinstance(problem, UsageError) else 500
            status = 404 if isinstance(problem, RemoteDataError) else status
            response = http_request.error(HttpError(status, str(problem)))
        except Exception:
            log.exception("%s could not be answered", request.path)
            response = http_request.error(
                HttpError(500, "the agent failed to answer: its log says why")
            )
        return http_request.written(request, response, self._headers)


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.transport.set_write_buffer_limits(high=0)  # so that drain waits until all is sent
    writer.write(data)
    await writer.drain()
    writer.close()
    await writer.wait_closed()
