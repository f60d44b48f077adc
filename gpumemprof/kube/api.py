"""Requests to the Kubernetes API, through the official client, with answers as raw streams.

The client's model objects cost many times the memory of what we read from them, and its generated
API classes 20 MB: only its configuration (credentials, proxies, rotation) and transport are used.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import urllib3
from kubernetes import config as kubernetes_config
from kubernetes.client.api_client import ApiClient
from kubernetes.client.configuration import Configuration
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException
from kubernetes.config.incluster_config import InClusterConfigLoader
from kubernetes.dynamic import DynamicClient

from gpumemprof import __version__
from gpumemprof.errors import GpumemprofError

CONNECT_SECONDS = 5.0
CHUNK_BYTES = 65_536
_KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
"""A peer that is gone is noticed after 25 s, though a watch may be silent for a minute."""

Connect = Callable[[], ApiClient]
"""Makes a client with the credentials of this moment."""


class ApiError(GpumemprofError):
    """A request was not answered, or with an error. ``status``: the HTTP status, 0 without an
    answer. ``retry_after``: seconds that the server asks to be left alone."""

    def __init__(self, message: str, status: int = 0, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def in_cluster(
    directory: Path = SERVICE_ACCOUNT, environ: Mapping[str, str] = os.environ
) -> ApiClient:
    """A client for a pod, with its service account, whose token and CA are in ``directory``, and
    the address that ``environ`` tells.

    The client reads the token again every minute, so a rotated one is taken up. Raises
    ConfigException outside a pod.
    """
    configuration = Configuration()
    InClusterConfigLoader(
        token_filename=str(directory / "token"),
        cert_filename=str(directory / "ca.crt"),
        environ=environ,
    ).load_and_set(configuration)
    return _client(configuration)


def from_kubeconfig(path: str) -> Connect:
    """A client with a kubeconfig file's current context."""

    def connect() -> ApiClient:
        configuration = Configuration()
        kubernetes_config.load_kube_config(path, client_configuration=configuration)
        return _client(configuration)

    return connect


def _client(configuration: Configuration) -> ApiClient:
    configuration.retries = False  # the loops that ask have their own pace
    client = ApiClient(configuration)
    client.user_agent = f"gpumemprof/{__version__}"
    client.rest_client.pool_manager.connection_pool_kw["socket_options"] = [
        *urllib3.connection.HTTPConnection.default_socket_options,
        *_KEEP_ALIVE,
    ]
    return client


class Quiet(ApiError):
    """Nothing came for as long as was allowed."""


class Answer:
    """The body of a successful answer, as it comes. A context manager that ends the request."""

    def __init__(self, response: urllib3.HTTPResponse) -> None:
        self._response = response

    def chunks(self) -> Iterator[bytes]:
        """What has come, as soon as it comes, at most ``CHUNK_BYTES`` at once. Raises Quiet when
        nothing came for the read timeout, ApiError when the connection broke."""
        while True:
            try:
                chunk = self._response.read1(CHUNK_BYTES)
            except urllib3.exceptions.ReadTimeoutError as error:
                raise Quiet(_reason(error)) from error
            except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
                raise ApiError(_reason(error)) from error
            if not chunk:
                return
            yield chunk

    def interrupt(self) -> None:
        """Make a read in another thread end now."""
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # it may have ended already
            self._response.shutdown()

    def __enter__(self) -> Answer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._response.close()


class Api:
    """One user of the API: for one thread at a time."""

    def __init__(self, connect: Connect = in_cluster) -> None:
        self._connect = connect
        self._client: DynamicClient | None = None

    def get(self, path: str, query: Mapping[str, str], read_timeout: float) -> Answer:
        """Ask; ``read_timeout`` (seconds) is between two pieces of the answer. Raises ApiError."""
        return Answer(self._request("get", path, query, None, read_timeout))

    def create(self, path: str, body: Mapping[str, Any], read_timeout: float = 10.0) -> None:
        """Create an object. Raises ApiError."""
        self._request("post", path, {}, body, read_timeout).close()

    def reset(self) -> None:
        """Forget connections and credentials: the next request reads the latter again."""
        client, self._client = self._client, None
        if client is not None:
            client.client.close()

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None,
        read_timeout: float,
    ) -> urllib3.HTTPResponse:
        try:
            if self._client is None:
                # No discovery: the paths are known, and it would ask for all that the server has.
                self._client = DynamicClient(self._connect(), discoverer=_no_discovery)
            response: urllib3.HTTPResponse = self._client.request(
                method,
                path,
                body=body,
                query_params=list(query.items()),
                header_params={"Accept": "application/json"},
                serialize=False,
                _request_timeout=(CONNECT_SECONDS, read_timeout),
            )
        except ApiException as error:
            raise ApiError(_told(error), error.status or 0, _retry_after(error)) from error
        except ConfigException as error:
            raise ApiError(f"no credentials for the Kubernetes API: {error}") from error
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise ApiError(_reason(error)) from error
        return response


def _no_discovery(_client: DynamicClient, _cache: object) -> None:
    return None


def _reason(error: BaseException) -> str:
    """What went wrong, without the addresses of Python objects that urllib3 shows."""
    text = str(error).rpartition("object at 0x")[2].partition(">: ")[2] or str(error)
    return f"no answer from the Kubernetes API: {text[:300] or type(error).__name__}"


def _told(error: ApiException) -> str:
    try:
        message = json.loads(error.body or "")["message"]
    except (ValueError, TypeError, KeyError):
        message = error.reason
    return f"the Kubernetes API answered {error.status}: {str(message)[:300]}"


def _retry_after(error: ApiException) -> float:
    try:
        seconds = float((error.headers or {}).get("Retry-After", 0))
    except (ValueError, TypeError):
        return 0.0
    return min(max(seconds, 0.0), 300.0)
