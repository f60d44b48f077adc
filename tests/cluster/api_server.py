"""A real kube-apiserver with its etcd, on loopback, and nothing else of Kubernetes.

Its binary is looked for in ``GPUMEMPROF_KUBE_BIN``, else in ``build/kube/bin``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import urllib3

BINARIES = Path(os.environ.get("GPUMEMPROF_KUBE_BIN") or "build/kube/bin").resolve()
ADMIN_TOKEN = "admin-of-the-test"


def missing() -> str:
    """What is not there for these tests; empty if all is."""
    needed = {
        "etcd": shutil.which("etcd"),
        "openssl": shutil.which("openssl"),
        str(BINARIES / "kube-apiserver"): shutil.which(BINARIES / "kube-apiserver"),
    }
    return ", ".join(name for name, path in needed.items() if path is None)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Refused(Exception):
    """The server answered with an error."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status}: {body[:500]}")
        self.status = status


class ApiServer:
    """``start`` and ``stop`` are of the API server alone: what etcd holds stays."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.port, self._etcd, self._etcd_peer = _free_ports(3)
        self.url = f"https://127.0.0.1:{self.port}"
        self.ca = directory / "certificates" / "apiserver.crt"
        subprocess.run(
            ["openssl", "genrsa", "-out", directory / "sa.key", "2048"],
            check=True,
            capture_output=True,
        )
        (directory / "tokens.csv").write_text(f"{ADMIN_TOKEN},admin,1,system:masters\n")
        self._http: urllib3.PoolManager | None = None

    def start_etcd(self) -> None:
        url, peer = (f"http://127.0.0.1:{port}" for port in (self._etcd, self._etcd_peer))
        self._run(
            "etcd",
            "etcd",
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        )

    def start(self) -> None:
        """Returns when it answers."""
        self._run(
            "kube-apiserver",
            str(BINARIES / "kube-apiserver"),
            f"--etcd-servers=http://127.0.0.1:{self._etcd}",
            # What is older than one to two of these is gone from etcd.
            "--etcd-compaction-interval=2s",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--cert-dir={self.directory / 'certificates'}",
            "--endpoint-reconciler-type=none",
            "--service-cluster-ip-range=10.96.0.0/16",
            f"--service-account-key-file={self.directory / 'sa.key'}",
            f"--service-account-signing-key-file={self.directory / 'sa.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--token-auth-file={self.directory / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            # No controllers run here: nothing would make the default service account.
            "--disable-admission-plugins=ServiceAccount",
        )
        until = time.monotonic() + 120
        while True:
            with contextlib.suppress(Refused, urllib3.exceptions.HTTPError, OSError):
                self.admin("GET", "/readyz")
                return
            if self._processes["kube-apiserver"].poll() is not None or time.monotonic() > until:
                log = (self.directory / "kube-apiserver.log").read_text(errors="replace")
                raise RuntimeError(f"kube-apiserver did not start: {log[-3000:]}")
            time.sleep(0.2)

    def stop(self, name: str = "kube-apiserver") -> None:
        process = self._processes.pop(name, None)
        if process is not None:
            process.kill()
            process.wait()

    def close(self) -> None:
        for name in reversed(list(self._processes)):
            self.stop(name)

    def _run(self, name: str, *command: str) -> None:
        with (self.directory / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, cwd=self.directory
            )

    def admin(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """One request, with all rights. Raises Refused."""
        patch = {"Content-Type": "application/merge-patch+json"} if method == "PATCH" else {}
        if self._http is None and self.ca.exists():
            self._http = urllib3.PoolManager(ca_certs=str(self.ca), retries=False)
        if self._http is None:
            raise Refused(0, "no certificate yet")
        answer = self._http.request(
            method,
            self.url + path,
            body=json.dumps(body) if body is not None else None,
            headers={
                "Authorization": f"Bearer {ADMIN_TOKEN}",
                "Content-Type": "application/json",
                **patch,
            },
            timeout=30,
        )
        text = answer.data.decode()
        if answer.status >= 300:
            raise Refused(answer.status, text)
        return json.loads(text) if text.startswith("{") else text

    def create(self, path: str, kind: str, name: str, **rest: Any) -> Any:
        group = path.split("/")[1:]
        version = "v1" if group[0] == "api" else "/".join(group[1:3])
        body = {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **rest}
        return self.admin("POST", path, body)


@contextlib.contextmanager
def running(directory: Path) -> Iterator[ApiServer]:
    """A server that answers; it and its etcd end with the block."""
    server = ApiServer(directory)
    try:
        server.start_etcd()
        server.start()
        yield server
    finally:
        server.close()
