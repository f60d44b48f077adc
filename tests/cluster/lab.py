"""The agent in the cluster, as installed with helm, and all that it tells to anybody."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import re
import signal
import subprocess
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.chart.helm_tool import CHART, helm_binary
from tests.cluster import pods
from tests.cluster.cluster import DRIVER, NODE_ADDRESS, Cluster, Failed, eventually
from tests.fakes.pyroscope_receiver import Receiver

MIB = 1 << 20
_AGENT_IMAGE = {
    "repository": "localhost/gpumemprof-test-agent",
    "tag": "latest",
    "pullPolicy": "Never",
}
_DRIVER_ROOT = str(DRIVER).removesuffix("/usr/lib/x86_64-linux-gnu/libcuda.so.1")
VALUES: Mapping[str, Any] = {
    "image": _AGENT_IMAGE,
    "interval": "2s",
    "logLevel": "debug",
    "pyroscope": {"url": f"http://{NODE_ADDRESS}:4040", "jitter": "500ms"},
    # Where the root of process 1 cannot be read, as in sandboxes that tests run in.
    "extraVolumes": [{"name": "driver", "hostPath": {"path": _DRIVER_ROOT}}],
    "extraVolumeMounts": [{"name": "driver", "mountPath": _DRIVER_ROOT, "readOnly": True}],
}


class Lab:
    """A release of the chart, and a Pyroscope on the node's address."""

    def __init__(
        self, cluster: Cluster, receiver: Receiver, *, helm: int, name: str, namespace: str
    ) -> None:
        self.cluster = cluster
        self.receiver = receiver
        self.name = name
        self.namespace = namespace
        self.notes = ""
        """What helm said when it was installed."""
        self._helm = str(helm_binary(helm))

    # What its administrator does

    def helm(self, *arguments: str, values: Mapping[str, Any] | None = None) -> str:
        text = None if values is None else json.dumps(values)
        more = [] if values is None else ["--values", "-"]
        command = [self._helm, *arguments, "--namespace", self.namespace, *more]
        return self.cluster.run(*command, stdin=text)

    def install(self, values: Mapping[str, Any]) -> None:
        self.notes = self.helm("install", self.name, str(CHART), values=values)

    def switch(self, **settings: str | None) -> None:
        """As a user does it: kubectl patch. None removes a key."""
        self.cluster.kubectl(
            "patch", "configmap", f"{self.name}-profiling", "-n", self.namespace,
            "--type", "merge", "-p", json.dumps({"data": settings}),
        )  # fmt: skip

    def settings(self) -> dict[str, str]:
        found = self.cluster.read("configmap", f"{self.name}-profiling", "-n", self.namespace)
        return dict(found.get("data") or {})

    # The agent

    def agents(self) -> list[dict[str, Any]]:
        return self.cluster.pods(self.namespace, f"app.kubernetes.io/instance={self.name}")

    def agent(self) -> dict[str, Any]:
        """Its pod, once it is ready."""

        def ready() -> dict[str, Any] | None:
            found = self.agents()
            if len(found) != 1:
                return None
            conditions = found[0]["status"].get("conditions", ())
            if {"type": "Ready", "status": "True"}.items() <= {
                key: value
                for condition in conditions
                if condition["type"] == "Ready"
                for key, value in condition.items()
            }.items():
                return found[0]
            return None

        try:
            return eventually("the agent is ready", ready, 60)
        except AssertionError:
            self._explain()
            raise

    def _explain(self) -> None:
        for pod in self.agents():
            name = pod["metadata"]["name"]
            print(json.dumps(pod["status"], indent=1))
            for more in ((), ("--previous",)):
                try:
                    print(self.cluster.logs(self.namespace, name, *more))
                except Failed as error:
                    print(error)

    def name_of_agent(self) -> str:
        return str(self.agent()["metadata"]["name"])

    def inside_agent(self, *command: str) -> bytes:
        """Standard output of a command in the agent's container."""
        full = ["kubectl", "exec", "-n", self.namespace, self.name_of_agent(), "--", *command]
        return subprocess.run(
            self.cluster.command(*full), capture_output=True, check=True, timeout=60
        ).stdout

    def process(self) -> int:
        """The agent's process id on the node."""
        uid = self.agent()["metadata"]["uid"]
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                group = (folder / "cgroup").read_text()
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if uid in group and b"gpumemprof\0agent" in command.replace(b"bin/", b"\0"):
                return int(folder.name)
        raise AssertionError("the agent has no process")

    def kill(self) -> None:
        """As the kernel does it when memory runs out. Returns when another one is ready."""
        before = self._restarts()
        os.kill(self.process(), signal.SIGKILL)
        eventually("the agent is started again", lambda: self._restarts() > before)
        self.agent()

    def _restarts(self) -> int:
        return sum(
            status["restartCount"]
            for pod in self.agents()
            for status in pod["status"].get("containerStatuses", ())
        )

    # What the agent tells

    def metrics_text(self) -> bytes:
        address = self.agent()["status"]["podIP"]
        return self.cluster.get(f"http://{address}:9464/metrics")

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples that have these labels."""
        return sum(
            sample.value
            for family in text_string_to_metric_families(self.metrics_text().decode())
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def allocated(self, **labels: str) -> int:
        return int(self.metric("gpumemprof_memory_allocated_bytes_total", **labels))

    def in_use(self, **labels: str) -> int:
        return int(self.metric("gpumemprof_memory_in_use_bytes", **labels))

    def pushed(self, **labels: str) -> int:
        """Bytes that all pushed profiles say were allocated."""
        return self.receiver.total("alloc_space", **labels)

    def pushed_under(self, function: str, type_name: str = "alloc_space", **labels: str) -> int:
        """The same, at or below a function."""
        return sum(
            bytes_
            for one in self.receiver.stored(type_name, **labels)
            for stack, bytes_ in one.stacks.items()
            if function in stack
        )

    def pushed_in_use(self, **labels: str) -> int:
        """What the last profile says is held."""
        found = self.receiver.stored("inuse_space", **labels)
        last = max((one.time_ns for one in found), default=0)
        return sum(one.total for one in found if one.time_ns == last)

    def stored_files(self) -> bytes:
        """All that the local store holds, unpacked."""
        archive = self.inside_agent("tar", "-C", "/var/lib/gpumemprof", "-c", ".")
        parts = []
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            for member in tar:
                parts.append(member.name.encode())
                file = tar.extractfile(member) if member.isfile() else None
                data = file.read() if file else b""
                parts.append(data)
                if data.startswith(b"\x1f\x8b"):
                    with contextlib.suppress(EOFError, zlib.error):  # it is being written
                        parts.append(gzip.decompress(data))
        return b"\n".join(parts)

    def page(self, path: str) -> bytes:
        """What its page answers on the pod's localhost."""
        fetch = (
            "import sys, urllib.request;"
            "sys.stdout.buffer.write(urllib.request.urlopen(sys.argv[1]).read())"
        )
        return self.inside_agent("/usr/bin/python3", "-c", fetch, f"http://127.0.0.1:9465{path}")

    def everything_told(self) -> dict[str, bytes]:
        """Every byte that the agent gave away or keeps."""
        rows = json.loads(self.page("/api/workloads"))
        return {
            "pushes": self.receiver.everything(),
            "store": self.stored_files(),
            "metrics": self.metrics_text(),
            "page": b"\n".join(
                [
                    json.dumps(rows).encode(),
                    self.page("/api/agent"),
                    *(self.page(f"/api/profile?owner={row['id']}") for row in rows),
                    *(self.page(f"/api/history?owner={row['id']}") for row in rows),
                ]
            ),
            "log": self.cluster.logs(self.namespace, self.name_of_agent()).encode(),
        }

    # What the profiled users do

    def run_in(self, namespace: str, pod: str, container: str, *arguments: str) -> None:
        """Another process of a container that runs: work.py with these arguments, to its end."""
        self.cluster.kubectl(
            "exec", "-n", namespace, pod, "-c", container, "--",
            "python3", "/srv/work.py", *arguments, "--seconds", "0.5",
        )  # fmt: skip

    def running(self, namespace: str, selector: str) -> str:
        """The name of the one pod, when all of its containers hold what they are to hold."""

        def found() -> str | None:
            for pod in self.cluster.pods(namespace, selector):
                states = pod["status"].get("containerStatuses", ())
                if states and all("running" in state["state"] for state in states):
                    return str(pod["metadata"]["name"])
            return None

        return eventually(f"a pod of {namespace} with {selector} runs", found, 90)

    def state(self) -> str:
        """For reading after a failure."""
        parts = [self.cluster.kubectl("get", "pods", "-A", "-o", "wide")]
        for pod in self.agents():
            name = pod["metadata"]["name"]
            parts.append(self.cluster.logs(self.namespace, name, "--tail=60"))
        parts.append(
            self.cluster.kubectl("get", "events", "-A", "--sort-by=.lastTimestamp")[-6000:]
        )
        return "\n".join(parts)


_HELD = re.compile(r"^(prog|map|link)_id:\t(\d+)$", re.MULTILINE)


def bpf_objects_of(pid: int) -> set[tuple[str, int]]:
    """Kind and id of the BPF programs, maps and links that a process holds."""
    found: set[tuple[str, int]] = set()
    for file in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(OSError):
            found |= {(kind, int(number)) for kind, number in _HELD.findall(file.read_text())}
    return found


def bpf_object_exists(kind: str, number: int) -> bool:
    """Whether the kernel still has it; numbers are not used again."""
    command = ["bpftool", kind, "show", "id", str(number)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


__all__ = ["MIB", "VALUES", "Lab", "bpf_object_exists", "bpf_objects_of", "pods"]
