"""Everything an agent's results go to, made from its settings: Pyroscope, the store, HTTP."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from gpumemprof.agent.config import Settings
from gpumemprof.agent.publisher import Sink
from gpumemprof.agent.sinks import PyroscopeSink, StoreSink
from gpumemprof.errors import UsageError
from gpumemprof.export.model import ContainerProfile, Owner, PushStatus
from gpumemprof.export.prometheus import AgentCollector, Exposition
from gpumemprof.export.pyroscope.pusher import Pusher
from gpumemprof.export.pyroscope.settings import PyroscopeSettings
from gpumemprof.export.server import AgentServer, Sources
from gpumemprof.export.store import ProfileStore

log = logging.getLogger(__name__)
_MAX_SECRET = 64 << 10


class Outputs:
    """Use as a context manager: leaving ends their threads."""

    def __init__(
        self,
        settings: Settings,
        *,
        on_dropped: Callable[[ContainerProfile], None],
    ) -> None:
        """Raises UsageError that names the setting which cannot be used. ``on_dropped``: see
        Pusher."""
        self._settings = settings
        self.sinks: list[Sink] = []
        self._pyroscope: PyroscopeSink | None = None
        self._store: StoreSink | None = None
        with contextlib.ExitStack() as stack:
            if settings["store.path"] is not None:
                store = ProfileStore(
                    settings["store.path"],
                    settings["store.max_bytes"],
                    max_owners=settings["limits.containers"],
                )
                self._store = StoreSink(store)
                stack.callback(self._store.stop)
                self.sinks.append(self._store)
            if settings["pyroscope.url"]:
                self._pyroscope = PyroscopeSink(_pusher(settings, on_dropped))
                stack.callback(self._pyroscope.stop)
                self.sinks.append(self._pyroscope)
            self._close = stack.pop_all()

    def serve(self, sources: Sources) -> None:
        """Answer /metrics, /healthz and /readyz, and serve the page, from now on. Raises
        UsageError when an address cannot be listened on."""
        metrics = Exposition(
            AgentCollector(
                sources.view, sources.push, max_series=self._settings["metrics.max_series"]
            )
        )
        server = AgentServer(
            sources,
            metrics,
            None if self._store is None else self._store.store,
            metrics_listen=self._settings["metrics.listen"],
            page_listen=self._settings["page.listen"],
        )
        self._close.callback(server.close)

    def push(self) -> PushStatus | None:
        """How sending goes."""
        return None if self._pyroscope is None else self._pyroscope.status()

    @property
    def counts(self) -> Mapping[str, int]:
        """What was lost on the way."""
        return {"profiles_not_stored": 0 if self._store is None else self._store.dropped}

    def flush(self, seconds: float) -> None:
        """Send what waits."""
        if self._pyroscope is not None and not self._pyroscope.flush(seconds):
            log.warning("not everything could be pushed before the end")

    def forget_where(self, off: Callable[[Owner], bool]) -> None:
        """Keep nothing of these containers, of which some may be gone long since."""
        for sink in self.sinks:
            sink.forget_where(off)

    def __enter__(self) -> Outputs:
        """They run already."""
        return self

    def close(self) -> None:
        """End their threads; what waits for the disk is written."""
        self._close.close()

    def __exit__(self, *_: object) -> None:
        """End."""
        self.close()


def _pusher(settings: Settings, on_dropped: Callable[[ContainerProfile], None]) -> Pusher:
    return Pusher(_pyroscope(settings), on_dropped, renewed=lambda: _pyroscope(settings))


def _pyroscope(settings: Settings) -> PyroscopeSettings:
    names = ("url", "format", "tenant", "user", "ca_file", "cert_file", "key_file", "insecure",
             "timeout", "jitter", "labels")  # fmt: skip
    return PyroscopeSettings(
        **{name: settings[f"pyroscope.{name}"] for name in names},
        password=_secret(settings["pyroscope.password_file"]),
        token=_secret(settings["pyroscope.token_file"]),
    )


def _secret(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        with path.open("rb") as file:
            return file.read(_MAX_SECRET).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"{path} cannot be read: {reason}") from None
