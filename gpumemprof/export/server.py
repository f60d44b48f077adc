"""What the agent answers: its health and metrics to the cluster, its page to who sits at localhost.

=====================  =========================================================================
on the pod's address
``/healthz``           200 while the agent's loop turns, else 503 and why
``/readyz``            200 when it records, else 503 and what is missing
``/metrics``           for Prometheus
on localhost
``/``                  the page
``/api/agent``         node, versions, problems in sentences, state of the store
``/api/workloads``     a row for each container
``/api/history``       ``owner``: its points, times with a profile, failed allocations
``/api/profile``       ``owner``, ``time``: for the viewer (report/html)
``/api/profile.pb.gz`` the same as pprof; ``/api/folded`` (``type``): as folded stacks
``/api/diff``          ``owner``, ``before``, ``after``: what changed, for the viewer
``/api/growth``        ``owner``, ``since``: stacks whose memory rises steadily
=====================  =========================================================================

``owner``: an ``id`` from ``/api/workloads``. ``time``: ``current``, ``peak``, or ns since the
epoch: then the last profile stored before it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import resources
from typing import Protocol

from gpumemprof.errors import GpumemprofError
from gpumemprof.export import page_data, page_growth
from gpumemprof.export.http_request import HttpError, Request, Response, Route, as_json
from gpumemprof.export.http_server import HttpServer, Listener
from gpumemprof.export.model import AgentView, Owner, PushStatus
from gpumemprof.export.store import ProfileStore
from gpumemprof.profile import folded, pprof
from gpumemprof.profile.merge import gpu_only
from gpumemprof.profile.model import Profile
from gpumemprof.report import html

Address = tuple[str, int]
Metrics = Callable[[str], tuple[bytes, str]]
"""Value of the header ``Accept`` → body and content type."""

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
_SCRIPTS = (
    "times.js", "chart.js", "workloads.js", "details_parts.js", "details.js", "main.js",
)  # fmt: skip
"""The page's own, in the order in which they are put together after the viewer's ``_SHARED``."""
_SHARED = ("units.js", "dom.js", "controls.js")


@dataclass(frozen=True, slots=True)
class Health:
    """Empty texts: all is well; otherwise a sentence that says what is not."""

    not_alive: str = ""
    """The loop does not turn: restart the agent."""
    not_ready: str = ""
    """It does not record yet: probes are not attached, or the pods are not known."""


class Sources(Protocol):
    """Where answers come from. Called from the server's threads, several at a time."""

    def health(self) -> Health:
        """How the agent is. Never waits: it must answer while all else hangs."""

    def view(self) -> AgentView:
        """The state as of the last interval."""

    def push(self) -> PushStatus | None:
        """How sending goes; None where nothing is pushed."""

    def current(self, owner: Owner) -> Profile | None:
        """What ``owner`` holds now, alloc_* since it was first seen; None if it does not run.
        Waits for the agent's loop, some seconds at most. Raises GpumemprofError if that does not
        answer."""


class AgentServer:
    """Serves from its making until ``close``."""

    def __init__(
        self,
        sources: Sources,
        metrics: Metrics,
        store: ProfileStore | None,
        *,
        metrics_listen: Address,
        page_listen: Address | None,
    ) -> None:
        """``page_listen`` None: no page. Raises UsageError, which names the setting
        (``metrics.listen``, ``page.listen``), if an address cannot be listened on."""
        listeners = [Listener("metrics.listen", *metrics_listen, _pod_routes(sources, metrics))]
        if page_listen is not None:
            page = _Page(sources, store)
            listeners.append(
                Listener(
                    "page.listen", *page_listen, page.routes(), local=True, headers=_PAGE_HEADERS
                )
            )
        self._http = HttpServer(listeners)
        self.metrics_port = self._http.ports[0]
        self.page_port = self._http.ports[1] if page_listen is not None else None

    def close(self) -> None:
        """Stop answering."""
        self._http.close()


def _pod_routes(sources: Sources, metrics: Metrics) -> dict[str, Route]:
    def alive(request: Request) -> Response:
        return _health(sources.health().not_alive)

    def ready(request: Request) -> Response:
        health = sources.health()
        return _health(health.not_alive or health.not_ready)

    def measured(request: Request) -> Response:
        return Response(*metrics(request.header("accept")))

    return {
        "/healthz": Route(alive, quick=True),
        "/readyz": Route(ready, quick=True),
        "/metrics": Route(measured),
    }


def _health(problem: str) -> Response:
    text = page_data.clean(problem) or "ok"
    return Response(f"{text}\n".encode(), "text/plain; charset=utf-8", 503 if problem else 200)


class _Page:
    def __init__(self, sources: Sources, store: ProfileStore | None) -> None:
        self._sources = sources
        self._store = store
        self._heavy = threading.Lock()
        """A profile may take 30 MiB while it is looked at, so that is done one at a time."""

    def routes(self) -> dict[str, Route]:
        files = {
            "/": _text(_own("index.html"), "html"),
            "/page.css": _text(_own("page.css"), "css"),
            "/page.js": _text(_script(), "javascript"),
            "/viewer.css": _text(html.assets()["viewer.css"], "css"),
            "/viewer.js": _text(html.assets()["viewer.js"], "javascript"),
        }
        answers: Mapping[str, Callable[[Request], Response]] = {
            "agent": self._agent,
            "workloads": self._workloads,
            "history": self._history,
            "profile": self._profile,
            "profile.pb.gz": self._pprof,
            "folded": self._folded,
            "diff": self._diff,
            "growth": self._growth,
        }
        return {
            **{path: Route(partial(_same, file)) for path, file in files.items()},
            **{f"/api/{name}": Route(answer) for name, answer in answers.items()},
        }

    def _agent(self, request: Request) -> Response:
        view, push = self._sources.view(), self._sources.push()
        health = self._sources.health()
        not_ready = health.not_alive or health.not_ready
        return as_json(page_data.agent(view, push, self._store, not_ready))

    def _workloads(self, request: Request) -> Response:
        return as_json(page_data.workloads(self._sources.view(), self._store))

    def _history(self, request: Request) -> Response:
        owner = self._owner(request)
        if self._store is None:
            return as_json(page_data.history((), (), ()))
        store = self._store
        return as_json(
            page_data.history(store.history(owner), store.times(owner), store.failures(owner))
        )

    def _profile(self, request: Request) -> Response:
        owner = self._owner(request)
        when = request.query.get("time", "current")
        view = "peak_space" if when == "peak" else ""
        with self._heavy:
            return as_json(html.data(self._at(owner, when), page_data.described(owner), view))

    def _pprof(self, request: Request) -> Response:
        with self._heavy:
            profile = self._at(self._owner(request), request.query.get("time", "current"))
            data = pprof.encode(profile)
        return Response(data, "application/gzip", headers=_download("gpumemprof.pb.gz"))

    def _folded(self, request: Request) -> Response:
        with self._heavy:
            profile = self._at(self._owner(request), request.query.get("time", "current"))
        text = folded.encode(gpu_only(profile), request.query.get("type", ""))
        return Response(text.encode(), "text/plain; charset=utf-8")

    def _diff(self, request: Request) -> Response:
        owner = self._owner(request)
        with self._heavy:
            before, after = (
                self._at(owner, request.query.get(name, "current")) for name in ("before", "after")
            )
            return as_json(html.diff_data(before, after, page_data.described(owner)))

    def _growth(self, request: Request) -> Response:
        owner = self._owner(request)
        since_ns = _nanoseconds(request.query.get("since", "0"))
        if self._store is None:
            raise HttpError(404, "growth is seen over time, and nothing is stored")
        with self._heavy:
            return as_json(page_growth.stacks(self._store, owner, since_ns))

    def _owner(self, request: Request) -> Owner:
        name = request.query.get("owner", "")
        owner = page_data.find(self._sources.view(), self._store, name)
        if owner is None:
            raise HttpError(404, "this container is not known (any more)")
        return owner

    def _at(self, owner: Owner, when: str) -> Profile:
        profile = self._current(owner) if when == "current" else None
        if profile is None and self._store is not None:
            time_ns = self._stored_time(self._store, owner, when)
            profile = None if time_ns is None else self._store.load(owner, time_ns)
        if profile is None and when == "peak":
            profile = self._current(owner)  # it tells what was held at the peak, too
        if profile is None:
            raise HttpError(404, "there is no profile of this container for that time")
        return profile

    def _current(self, owner: Owner) -> Profile | None:
        try:
            return self._sources.current(owner)
        except HttpError:
            raise
        except GpumemprofError as error:
            raise HttpError(503, str(error), (("Retry-After", "5"),)) from error

    def _stored_time(self, store: ProfileStore, owner: Owner, when: str) -> int | None:
        if when == "current":  # it ended: the last that is known
            times = store.times(owner)
            return times[-1] if times else None
        if when == "peak":
            return store.peak_time(owner)
        return store.time_at(owner, _nanoseconds(when))


def _nanoseconds(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise HttpError(400, "a time must be current, peak, or ns since the epoch")
    return int(text)


def _same(response: Response, request: Request) -> Response:
    return response


def _script() -> str:
    """The page's script: one function, like the viewer's, whose helpers it shares."""
    shared = resources.files(html) / "assets"
    parts = [(shared / name).read_text("utf-8") for name in _SHARED] + [*map(_own, _SCRIPTS)]
    return "(function () {\n'use strict';\n" + "\n".join(parts) + "\n})();\n"


def _own(name: str) -> str:
    return (resources.files(__package__) / "page" / name).read_text("utf-8")


def _text(text: str, kind: str) -> Response:
    return Response(text.encode(), f"text/{kind}; charset=utf-8")


def _download(name: str) -> tuple[tuple[str, str], ...]:
    return (("Content-Disposition", f'attachment; filename="{name}"'),)
