"""A TCP relay on loopback that can be cut, or fall silent as a broken network does."""

from __future__ import annotations

import contextlib
import select
import socket
import threading


class Relay:
    """Forwards connections to ``port`` until closed."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._refusing = False
        self._wake, self._woken = socket.socketpair()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """End all connections, and new ones at once, until ``mend``."""
        self._refusing = True
        for one in list(self._pairs):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Forward again."""
        self._refusing = False

    def fall_silent(self) -> None:
        """Nothing is forwarded any more, and nothing closed: for connections that are open."""
        for one in list(self._pairs):
            self._pairs.pop(one, None)
        self._wake.send(b"x")

    def close(self) -> None:
        self._closing = True
        self._wake.send(b"x")
        self._thread.join()
        for one in (self._listener, self._wake, self._woken):
            one.close()

    def _run(self) -> None:
        opened: set[socket.socket] = set()
        while not self._closing:
            watched = [self._listener, self._woken, *self._pairs]
            for ready in select.select(watched, [], [])[0]:
                if ready is self._woken:
                    self._woken.recv(16)
                elif ready is self._listener:
                    opened |= self._accept()
                elif ready in self._pairs:
                    self._forward(ready)
        for one in opened:
            one.close()

    def _accept(self) -> set[socket.socket]:
        client, _ = self._listener.accept()
        if self._refusing:
            client.close()
            return set()
        try:
            server = socket.create_connection(("127.0.0.1", self._target), 5)
        except OSError:
            client.close()
            return set()
        self._pairs[client], self._pairs[server] = server, client
        return {client, server}

    def _forward(self, ready: socket.socket) -> None:
        other = self._pairs[ready]
        try:
            data = ready.recv(65_536)
            if data:
                other.sendall(data)
                return
        except OSError:
            pass
        for one in (ready, other):
            self._pairs.pop(one, None)
            one.close()
