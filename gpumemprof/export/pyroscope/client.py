"""One connection to Pyroscope: sends a request and says what became of it."""

from __future__ import annotations

import base64
import email.utils
import enum
import logging
import os
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import requests
import urllib3.exceptions
from requests.auth import AuthBase

import gpumemprof
from gpumemprof.errors import UsageError
from gpumemprof.export.pyroscope.push import Request
from gpumemprof.export.pyroscope.settings import PyroscopeSettings
from gpumemprof.profile.text import printable

log = logging.getLogger(__name__)

RENEW_SECONDS = 60.0
"""How often the credentials are read again while the server takes them."""
MAX_RETRY_AFTER = 300.0
"""Seconds; a server may ask for more, it does not get it."""

_MAX_SHOWN = 300
_MAX_READ = 4 << 10


class Result(enum.Enum):
    """What became of a request, and so what to do."""

    DELIVERED = "delivered"
    REJECTED = "rejected"
    """It will never be taken: drop it."""
    THROTTLED = "throttled"
    """The tenant's rate is used up: everything waits, then try again."""
    FAILED = "failed"
    """The server could not, or finds this profile broken: try it again later, others meanwhile."""
    UNAUTHORIZED = "unauthorized"
    """No credentials, wrong ones, or no tenant: everything waits for somebody to put it right."""
    UNREACHABLE = "unreachable"
    """Nothing was sent: everything waits."""
    UNKNOWN = "unknown"
    """Sent, but there was no answer: it may be stored. Try again with the same time, of which the
    server keeps one."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """``detail``: one line without secrets, empty if delivered. ``retry_after``: seconds that the
    server asked to wait, at most ``MAX_RETRY_AFTER``."""

    result: Result
    detail: str = ""
    retry_after: float | None = None


STATUS = MappingProxyType(
    {
        401: Result.UNAUTHORIZED,
        407: Result.UNAUTHORIZED,
        408: Result.FAILED,
        425: Result.FAILED,
        429: Result.THROTTLED,
        # 500 is a broken profile (for ever) or a storage that is starting.
        500: Result.FAILED,
        # A gateway gave up waiting for a server that may have stored it.
        502: Result.UNKNOWN,
        504: Result.UNKNOWN,
    }
)
"""Other codes: 2xx is delivered, 5xx failed, all else (400, 403, 404, 405, 413, 415, 422, and
redirects, which are not followed since they would get the credentials) rejected."""


class Client:
    """Keeps one connection open. For one thread; ``close`` it.

    Raises UsageError if a certificate or key cannot be read."""

    def __init__(
        self, settings: PyroscopeSettings, renewed: Callable[[], PyroscopeSettings] | None = None
    ) -> None:
        """``renewed``: the settings with the password or token as they are now; may raise
        UsageError. Asked every ``RENEW_SECONDS``, and when the server refuses the old ones: secrets
        are rotated while we run."""
        self._settings = settings
        self._renewed, self._renewed_at = renewed, time.monotonic()
        self._not_renewed = ""
        for name in ("ca_file", "cert_file", "key_file"):
            path: Path | None = getattr(settings, name)
            if path is not None and not os.access(path, os.R_OK):
                raise UsageError(f"pyroscope.{name}: {path} cannot be read")
        self._verify = str(settings.ca_file) if settings.ca_file else not settings.insecure
        self._session = requests.Session()
        if settings.cert_file and settings.key_file:
            self._session.cert = (str(settings.cert_file), str(settings.key_file))
        self._session.auth = _Authorization(settings)
        self._session.headers["User-Agent"] = f"gpumemprof/{gpumemprof.__version__}"
        if settings.tenant:
            self._session.headers["X-Scope-OrgID"] = settings.tenant

    def send(self, request: Request) -> Outcome:
        """POST ``request``. Never raises for what a server or a network does."""
        if time.monotonic() - self._renewed_at >= RENEW_SECONDS:
            self._renew()
        outcome = self._post(request)
        if outcome.result is Result.UNAUTHORIZED and self._renew():
            outcome = self._post(request)
        return outcome

    def _renew(self) -> bool:
        """Read the credentials again; whether they are others. The old ones are kept while there
        are none: files that are being written are empty."""
        if self._renewed is None:
            return False
        self._renewed_at = time.monotonic()
        try:
            settings, problem = self._renewed(), ""
            if self._settings.secrets and not settings.secrets:
                raise UsageError("the file is empty")
        except UsageError as error:
            settings, problem = self._settings, str(error)
        if problem and problem != self._not_renewed:
            log.warning("the credentials for Pyroscope stay as they were: %s", problem)
        self._not_renewed = problem
        if settings.secrets == self._settings.secrets:
            return False
        self._settings = settings
        self._session.auth = _Authorization(settings)
        log.info("the credentials for Pyroscope have changed")
        return True

    def _post(self, request: Request) -> Outcome:
        settings = self._settings
        try:
            with self._session.post(
                settings.url + request.target,
                data=request.body,
                headers={"Content-Type": request.content_type},
                timeout=settings.timeout,
                # Told at each call: what the session holds would yield to the environment.
                verify=self._verify,
                allow_redirects=False,
                stream=True,
            ) as response:
                return self._answered(response)
        except (requests.RequestException, OSError) as error:
            result, reason = _not_answered(error)
            return Outcome(result, self._line(reason))

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def _answered(self, response: requests.Response) -> Outcome:
        status = response.status_code
        text = self._text(response)
        if 200 <= status < 300:
            if "html" in response.headers.get("Content-Type", ""):
                return Outcome(
                    Result.REJECTED, f"HTTP {status} with a web page: this is not Pyroscope"
                )
            return Outcome(Result.DELIVERED)
        result = STATUS.get(status, Result.FAILED if status >= 500 else Result.REJECTED)
        if 300 <= status < 400:
            text = "redirects are not followed: pyroscope.url must be where it leads to"
        return Outcome(
            result,
            self._line(f"HTTP {status}: {text}" if text else f"HTTP {status}"),
            _retry_after(response.headers.get("Retry-After")),
        )

    def _text(self, response: requests.Response) -> str:
        """The beginning of the answer; the rest of a long one is not read."""
        try:
            data = response.raw.read(_MAX_READ, decode_content=True)
        except (urllib3.exceptions.HTTPError, OSError):
            return ""
        return str(data.decode("utf-8", "replace"))

    def _line(self, text: str) -> str:
        return printable(self._settings.hide(" ".join(text.split())))[:_MAX_SHOWN]


class _Authorization(AuthBase):
    """Sets our header or none. Without it requests would look for one in ~/.netrc."""

    def __init__(self, settings: PyroscopeSettings) -> None:
        self._header = ""
        if settings.token:
            self._header = f"Bearer {settings.token}"
        elif settings.user:
            pair = f"{settings.user}:{settings.password}".encode()
            self._header = f"Basic {base64.b64encode(pair).decode('ascii')}"

    def __call__(self, r: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._header:
            r.headers["Authorization"] = self._header
        return r


def _retry_after(text: str | None) -> float | None:
    """Seconds, from the header's number or date."""
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    # The comparisons are false for NaN.
    return min(seconds, MAX_RETRY_AFTER) if seconds > 0 else 0.0 if seconds <= 0 else None


_ERRORS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], Result, str], ...] = (
    (
        (requests.exceptions.ProxyError, urllib3.exceptions.ProxyError),
        Result.UNREACHABLE,
        "the proxy cannot be used",
    ),
    (urllib3.exceptions.NameResolutionError, Result.UNREACHABLE, "its name cannot be resolved"),
    (urllib3.exceptions.NewConnectionError, Result.UNREACHABLE, "no connection"),
    (
        (requests.ConnectTimeout, urllib3.exceptions.ConnectTimeoutError),
        Result.UNREACHABLE,
        "no connection within the time allowed",
    ),
    (requests.Timeout, Result.UNKNOWN, "no answer within the time allowed"),
    (requests.ConnectionError, Result.UNKNOWN, "the connection ended before the answer"),
    (Exception, Result.UNREACHABLE, "the request cannot be made"),
)
"""The first row with an error that is among the causes tells whether anything can have arrived."""


def _not_answered(error: BaseException) -> tuple[Result, str]:
    """Whether anything can have arrived, and why there is no answer. The texts of these errors
    are not shown: they may hold a proxy's password."""
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, ssl.SSLError):
            return _tls(cause)
    numbers = (cause.errno for cause in causes if isinstance(cause, OSError))
    system = [os.strerror(number) for number in numbers if number and number > 0]
    result, reason = next(
        (result, reason)
        for kind, result, reason in _ERRORS
        if any(isinstance(cause, kind) for cause in causes)
    )
    return result, f"{reason} ({system[0].lower()})" if system else reason


def _tls(error: ssl.SSLError) -> tuple[Result, str]:
    if isinstance(error, ssl.SSLCertVerificationError):
        return Result.UNREACHABLE, f"TLS: {error.verify_message}"
    reason = error.reason or ""
    # One side refused the other before any request was taken.
    refused = "ALERT" in reason or "WRONG_VERSION" in reason or "UNSUPPORTED" in reason
    result = Result.UNREACHABLE if refused else Result.UNKNOWN
    text = reason.replace("_", " ").lower() or (error.strerror or "").partition(" (")[0]
    return result, f"TLS: {text or 'error'}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and those it wraps, each once."""
    waiting: list[object] = [error]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, BaseException) and id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += [*one.args, getattr(one, "reason", None), one.__cause__, one.__context__]
