"""Where profiles are pushed and how, checked. Secrets are in no representation and no message."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from gpumemprof.errors import UsageError

FORMATS = ("pprof", "folded")

_TENANT = re.compile(r"[A-Za-z0-9!_.*'()-]{1,150}")
_LABEL_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,254}")
_MAX_LABELS = 16
_OURS = frozenset({"namespace", "pod", "container", "node", "service_name", "kind", "gpu"})
_HIDDEN = "hidden"


@dataclass(frozen=True, slots=True)
class PyroscopeSettings:
    """One Pyroscope server. Raises UsageError that names the field.

    ``url``: its base, perhaps with a path prefix; a user and password in it are taken out and
    become ``user`` and ``password``. ``format``: ``pprof`` goes to the push API, ``folded`` to
    ``/ingest``. ``tenant``: the X-Scope-OrgID header. Either ``user`` and ``password`` or a bearer
    ``token``. ``ca_file``: trusted instead of the system's certificates; ``insecure``: the server's
    certificate is not checked. ``timeout``: seconds for connecting, and again between two pieces
    of the answer. ``jitter``: seconds after a profile's time over which pushes are spread; less
    than the time shift of the dashboards (5 s), or they read too little. ``labels``: added to every
    series.

    Limits, far below the server's own: ``max_samples`` and ``max_bytes`` (not compressed) of one
    push, ``queue_items`` and ``queue_bytes`` of those that wait, ``bytes_per_second`` (not
    compressed, as the server counts) that this node sends at most.
    """

    url: str
    format: str = "pprof"
    tenant: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    insecure: bool = False
    timeout: float = 10.0
    jitter: float = 4.0
    labels: Mapping[str, str] = field(default_factory=dict)
    max_samples: int = 8000
    max_bytes: int = 512 << 10
    queue_items: int = 4096
    queue_bytes: int = 32 << 20
    bytes_per_second: int = 1 << 20

    def __post_init__(self) -> None:
        for name in ("password", "token"):
            # What a file holds ends with a line end.
            object.__setattr__(self, name, getattr(self, name).strip())
        self._take_credentials_out()
        if self.format not in FORMATS:
            raise _wrong("format", f"must be one of {', '.join(FORMATS)}")
        if self.tenant and not _TENANT.fullmatch(self.tenant):
            raise _wrong("tenant", "may have 150 letters, digits and any of !-_.*'()")
        self._check_authentication()
        if bool(self.cert_file) != bool(self.key_file):
            raise _wrong("cert_file", "and key_file go together")
        if self.insecure and self.ca_file:
            raise _wrong("insecure", "and ca_file exclude each other")
        for name, least, most in _BOUNDS:
            if not least <= getattr(self, name) <= most:
                raise _wrong(name, f"must be between {least:,} and {most:,}")
        self._check_labels()

    def _take_credentials_out(self) -> None:
        if not self.url.isascii() or not self.url.isprintable() or " " in self.url:
            raise _wrong("url", "may have printable ASCII characters only")
        try:
            parts = urlsplit(self.url)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise _wrong("url", "cannot be understood") from None
        if parts.scheme not in ("http", "https") or not host or port == 0:
            raise _wrong("url", "must be like http://pyroscope:4040 or https://host/prefix")
        if parts.query or parts.fragment:
            raise _wrong("url", "must have nothing after a ? or #")
        credentials, at, place = parts.netloc.rpartition("@")
        if at:
            if self.user or self.password or self.token:
                raise _wrong("url", "has a user, and so have user, password or token: give one")
            user, _, password = credentials.partition(":")
            object.__setattr__(self, "user", unquote(user))
            object.__setattr__(self, "password", unquote(password))
        base = urlunsplit((parts.scheme, place, parts.path.rstrip("/"), "", ""))
        object.__setattr__(self, "url", base)

    def _check_authentication(self) -> None:
        if self.token and (self.user or self.password):
            raise _wrong("token", "and user or password exclude each other")
        if self.password and not self.user:
            raise _wrong("password", "needs user")
        if ":" in self.user or not self.user.isprintable():
            raise _wrong("user", "may have neither ':' nor control characters")
        if not self.password.isprintable():
            raise _wrong("password", "may have no control characters")
        if not self.token.isascii() or not self.token.isprintable() or " " in self.token:
            raise _wrong("token", "may have printable ASCII characters only")

    def _check_labels(self) -> None:
        if len(self.labels) > _MAX_LABELS:
            raise _wrong("labels", f"may be {_MAX_LABELS} at most: the server counts 30 in all")
        for name in self.labels:
            if not _LABEL_NAME.fullmatch(name):
                raise _wrong("labels", f"has the name {name!r}: use letters, digits and _")
            if name in _OURS:
                raise _wrong("labels", f"has the name {name!r}, which every series has already")
        object.__setattr__(self, "labels", MappingProxyType(dict(self.labels)))

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must never be shown, as it is and as it is sent."""
        pair = base64.b64encode(f"{self.user}:{self.password}".encode()).decode("ascii")
        password = (pair, self.password, quote(self.password)) if self.password else ()
        return (*password, *filter(None, (self.token,)))

    def hide(self, text: str) -> str:
        """``text`` without any of the secrets, in case a server repeats them."""
        for secret in self.secrets:
            text = text.replace(secret, _HIDDEN)
        return text


_BOUNDS: tuple[tuple[str, float, float], ...] = (
    ("timeout", 0.1, 120),
    ("jitter", 0, 600),
    ("max_samples", 16, 16_000),
    ("max_bytes", 16 << 10, 2 << 20),
    ("queue_items", 1, 1_000_000),
    ("queue_bytes", 1 << 10, 1 << 40),
    ("bytes_per_second", 1 << 10, 1 << 40),
)


def _wrong(name: str, rule: str) -> UsageError:
    return UsageError(f"pyroscope.{name} {rule}")
