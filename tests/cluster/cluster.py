"""A real single-node Kubernetes for these tests, in network and mount namespaces of its own."""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import json
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

REPOSITORY = Path(__file__).resolve().parents[2]
KIT = Path(__file__).with_name("kit")
BINARIES = Path(os.environ.get("GPUMEMPROF_KUBE_BIN") or REPOSITORY / "build/kube/bin").resolve()
IMAGES = Path(os.environ.get("GPUMEMPROF_KUBE_IMAGES") or REPOSITORY / "build/kube/images")
# Where the GPU operator's driver container shows its root to the node.
_DRIVER_ROOT = Path("/run/nvidia/driver")
DRIVER = _DRIVER_ROOT / "usr/lib/x86_64-linux-gnu/libcuda.so.1"
NODE_ADDRESS = "10.222.10.1"
NODE = "node-a"
_CLONE_NEWNET = 0x40000000

T = TypeVar("T")


def missing() -> str:
    """What is not there for a cluster; empty if all is. `make test-cluster` brings it."""
    if os.geteuid():
        return "root"
    commands = ("etcd", "containerd", "ctr", "runc", "iptables", "ip", "openssl", "nsenter")
    needed = {name: shutil.which(name) for name in (*commands, "bpftool")}
    for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet"):
        needed[str(BINARIES / name)] = shutil.which(BINARIES / name)
    for name in ("agent.tar", "workload.tar"):
        needed[str(IMAGES / name)] = "there" if (IMAGES / name).exists() else None
    needed[f"a machine without {_DRIVER_ROOT}"] = None if _DRIVER_ROOT.exists() else "so"
    return ", ".join(name for name, path in needed.items() if path is None)


class Failed(Exception):
    """A command failed: what it said."""


def eventually(what: str, check: Callable[[], T], seconds: float = 30, every: float = 0.2) -> T:
    """What ``check`` returns as soon as it is true; an AssertionError it raises is tried again."""
    end = time.monotonic() + seconds
    while True:
        problem = None
        try:
            found = check()
        except AssertionError as error:
            found, problem = None, error
        if found:
            return found
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {seconds:g} s") from problem
        time.sleep(every)


class Cluster:
    """``start`` and ``stop`` it; in between, everything that a user of a cluster does."""

    def __init__(self) -> None:
        # Short: it holds sockets, whose paths are limited.
        self.directory = Path(tempfile.mkdtemp(prefix="gpk"))
        self.kubeconfig = self.directory / "admin.conf"
        self.name = ""
        self._inside: concurrent.futures.ThreadPoolExecutor | None = None

    def start(self) -> None:
        DRIVER.parent.mkdir(parents=True)
        shutil.copy(REPOSITORY / "build/fakes/libcuda.so.1", DRIVER)
        images = [str(IMAGES / "agent.tar"), str(IMAGES / "workload.tar")]
        up = [str(KIT / "up.sh"), str(self.directory), str(BINARIES), *images]
        done = subprocess.run(up, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Failed(f"{done.stderr}\nlogs: {self.directory}/log")
        settings = (self.directory / "env").read_text()
        self.name = settings.split("CLUSTER_NS=")[1].split()[0]
        self._inside = concurrent.futures.ThreadPoolExecutor(1, initializer=self._enter)

    def stop_quietly(self) -> None:
        """As ``stop``, where another failure is to be told."""
        with contextlib.suppress(AssertionError):
            self.stop()

    def stop(self) -> None:
        """Stop all of it and remove it. AssertionError if something stays."""
        if self._inside:
            self._inside.shutdown()
        if (self.directory / "env").exists():
            subprocess.run([str(KIT / "down.sh"), str(self.directory)], check=False)
        shutil.rmtree(_DRIVER_ROOT)
        with contextlib.suppress(OSError):
            _DRIVER_ROOT.parent.rmdir()
        left = self.leftovers()
        shutil.rmtree(self.directory, ignore_errors=True)
        assert not left, left

    def leftovers(self) -> list[str]:
        """Processes, mounts and namespaces of this cluster."""
        mine = str(self.directory)
        left = [line for line in Path("/proc/mounts").read_text().splitlines() if mine in line]
        for command in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                text = command.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if mine in text and command.parent.name != str(os.getpid()):
                left.append(f"process {command.parent.name}: {text[:200]}")
        if self.name and Path("/run/netns", self.name).exists():
            left.append(f"network namespace {self.name}")
        left += [str(path) for path in Path("/sys/fs/cgroup").glob("**/kubepods")]
        made = self.directory / "made"
        if made.exists():
            left += [path for path in made.read_text().split() if Path(path).exists()]
        return left

    # In its network namespace

    def _enter(self) -> None:
        """Moves this thread, and the sockets that it opens from now on."""
        with Path("/run/netns", self.name).open() as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")

    def inside(self, work: Callable[[], T]) -> T:
        """Call ``work`` in a thread whose sockets are in the cluster's network."""
        assert self._inside is not None
        return self._inside.submit(work).result()

    def get(self, url: str, seconds: float = 10) -> bytes:
        """The body of a GET from the node. AssertionError for what is not 200."""

        def fetch() -> bytes:
            try:
                with urllib.request.urlopen(url, timeout=seconds) as answer:
                    return bytes(answer.read())
            except urllib.error.HTTPError as error:
                raise AssertionError(f"{url}: {error.code} {error.read(200)!r}") from None
            except OSError as error:
                raise AssertionError(f"{url}: {error}") from None

        return self.inside(fetch)

    def command(self, *command: str) -> list[str]:
        """A command line that runs in the cluster's network, as its administrator."""
        return [
            *("nsenter", f"--net=/run/netns/{self.name}", "env"),
            f"KUBECONFIG={self.kubeconfig}",
            f"PATH={BINARIES}:{os.environ['PATH']}",
            *(f"HELM_{part}_HOME={self.directory}/helm" for part in ("CACHE", "CONFIG", "DATA")),
            *command,
        ]

    def run(self, *command: str, stdin: str | None = None, seconds: float = 120) -> str:
        """Standard output of such a command. Failed if it fails."""
        done = subprocess.run(
            self.command(*command),
            capture_output=True,
            text=True,
            input=stdin,
            timeout=seconds,
            check=False,
        )
        if done.returncode:
            raise Failed(f"{shlex.join(command)}: {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    # As its user

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.run("kubectl", *arguments, stdin=stdin)

    def read(self, *arguments: str) -> dict[str, Any]:
        """An object, or a list of them under ``items``."""
        return dict(json.loads(self.kubectl("get", *arguments, "-o", "json")))

    def apply(self, *objects: dict[str, Any]) -> None:
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self.kubectl("apply", "-f", "-", stdin=text)

    def logs(self, namespace: str, pod: str, *arguments: str) -> str:
        return self.kubectl("logs", "-n", namespace, pod, *arguments)

    def pods(self, namespace: str, selector: str) -> list[dict[str, Any]]:
        """Those that are not being deleted."""
        found = self.read("pods", "-n", namespace, "-l", selector)["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    # What goes wrong with clusters

    @contextlib.contextmanager
    def api_stopped(self) -> Iterator[None]:
        """Without an API server; what etcd holds stays."""
        file = self.directory / "apiserver.pid"
        pid = int(file.read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
        os.kill(pid, signal.SIGKILL)  # SIGTERM: it would wait a minute for the watches to end
        eventually("the API server ends", lambda: _ended(pid))
        try:
            yield
        finally:
            log = (self.directory / "log" / "apiserver.log").open("ab")
            process = subprocess.Popen(
                ["nsenter", f"--net=/run/netns/{self.name}", *map(os.fsdecode, command)],
                stdout=log,
                stderr=log,
            )
            log.close()
            file.write_text(str(process.pid))
            eventually("the API answers again", self._ready, 60)

    def _ready(self) -> bool:
        try:
            return self.kubectl("get", "--raw", "/readyz") == "ok"
        except Failed:
            return False

    def forget_history(self) -> None:
        """Compact etcd: watches that go on from an older version are answered 410 Gone."""

        def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
            request = urllib.request.Request(
                f"http://127.0.0.1:2379/v3/{path}", json.dumps(body).encode()
            )
            with urllib.request.urlopen(request, timeout=10) as answer:
                return dict(json.load(answer))

        def compact() -> None:
            revision = post("kv/range", {"key": "AA=="})["header"]["revision"]
            post("kv/compaction", {"revision": revision, "physical": True})

        self.inside(compact)


def _ended(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
