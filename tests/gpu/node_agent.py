"""``gpumemprof agent`` as a check runs it, with a Pyroscope that forgives nothing."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode

from common import gpumemprof
from prometheus_client.parser import text_string_to_metric_families
from results import Run

from gpumemprof.profile import pprof
from gpumemprof.profile.model import Profile
from tests.fakes.pyroscope_receiver import Receiver

READY_SECONDS = 30
PATIENCE = 12.0
"""How long figures may take to become what they should be: they come with the next interval, and
on which GPU a process is with the next look at NVML."""

T = TypeVar("T")


class Place(NamedTuple):
    """Where memory is, by the labels of metrics and samples."""

    kind: str
    gpu: str = ""
    gpu_uuid: str = ""


class Cpu(NamedTuple):
    """What a process used of the processors, in seconds."""

    user: float
    system: float


class Agent:
    """A running agent. All that it is asked is of one workload: the name of a program."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, ports: tuple[int, int]) -> None:
        self.process, self.log = process, log
        self._metrics_port, self._page_port = ports

    # Its answers

    def get(self, path: str, **query: str) -> bytes:
        """A page or an answer of its page."""
        return _get(self._page_port, f"{path}?{urlencode(query)}" if query else path)

    def json(self, path: str, **query: str) -> Any:
        """An answer of its page, decoded."""
        return json.loads(self.get(path, **query))

    def ready(self) -> bool:
        """Whether it says that it records."""
        try:
            _get(self._metrics_port, "/readyz")
        except OSError:
            return False
        return True

    def samples(self) -> Iterator[tuple[str, Mapping[str, str], float]]:
        """Its metrics: name, labels, value."""
        text = _get(self._metrics_port, "/metrics").decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                yield sample.name, sample.labels, sample.value

    def memory(self, workload: str, what: str) -> dict[Place, int]:
        """One of the metrics of memory (``memory_in_use_bytes``), by place."""
        return {
            Place(*(labels[name] for name in Place._fields)): int(value)
            for name, labels, value in self.samples()
            if name == f"gpumemprof_{what}" and labels["workload"] == workload
        }

    def failures(self, workload: str) -> dict[str, int]:
        """Failed allocations by error code."""
        found: Counter[str] = Counter()
        for name, labels, value in self.samples():
            if name.endswith("allocation_failures_total") and labels["workload"] == workload:
                found[labels["code"]] += int(value)
        return dict(found)

    def lost(self) -> dict[str, int]:
        """Causes of losses that happened."""
        return {
            labels["cause"]: int(value)
            for name, labels, value in self.samples()
            if name == "gpumemprof_agent_lost_total" and value
        }

    def row(self, workload: str) -> dict[str, Any] | None:
        """What the page shows of a workload, if it does."""
        rows = [row for row in self.json("/api/workloads") if row["workload"] == workload]
        return rows[0] if rows else None

    def profile(self, workload: str, when: str = "current") -> Profile:
        """A profile of it; an empty one while the agent does not know it."""
        return pprof.decode(self.pprof(workload, when) or _NOTHING)

    def pprof(self, workload: str, when: str = "current") -> bytes:
        """The same as the page hands it out; nothing while the agent does not know it."""
        row = self.row(workload)
        if row is None:
            return b""
        return self.get("/api/profile.pb.gz", owner=row["id"], time=when)

    # What it uses

    def cpu(self) -> Cpu:
        """Since it started."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks = os.sysconf("SC_CLK_TCK")
        return Cpu(int(fields[11]) / ticks, int(fields[12]) / ticks)

    def memory_mib(self) -> dict[str, float]:
        """Of /proc/PID/status."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        return {
            name: round(int(fields[name].split()[0]) / 1024, 1)
            for name in ("VmRSS", "VmHWM", "RssAnon")
        }

    def stop(self) -> int:
        """Its exit code after SIGTERM, as Kubernetes ends it."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


_NOTHING = pprof.encode(Profile((), 0, 0))


def _get(port: int, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
        body: bytes = answer.read()
    return body


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


@contextlib.contextmanager
def agent(run: Run, *arguments: str, interval: str = "2s") -> Iterator[Agent]:
    """Ready when given out: it has looked at all processes that run. Its profiles stay in OUT."""
    log, ports = run.logs / f"{run.name}-agent.err", _free_ports()
    store = run.logs / f"{run.name}-store"
    shutil.rmtree(store, ignore_errors=True)  # of a run before
    command = gpumemprof(
        "agent", "--kubernetes", "off", "--node", "gpu-node", "--interval", interval,
        "--pyroscope-jitter", "200ms",
        "--metrics-listen", f"127.0.0.1:{ports[0]}", "--page-listen", f"127.0.0.1:{ports[1]}",
        "--store-path", str(store), *arguments,
    )  # fmt: skip
    with log.open("wb") as errors:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
    try:
        started = Agent(process, log, ports)
        end = time.monotonic() + READY_SECONDS
        while not started.ready():
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the agent is not ready: {log.read_text()[-2000:]}")
            time.sleep(0.05)
        yield started
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def pushing_agent(run: Run, interval: str = "2s") -> Iterator[tuple[Agent, Receiver]]:
    """The same, pushing what it records."""
    with (
        Receiver() as receiver,
        agent(run, "--pyroscope-url", receiver.url, interval=interval) as started,
    ):
        yield started, receiver


def settled(figure: Callable[[], T], right: Callable[[T], object], seconds: float = PATIENCE) -> T:
    """The figure as soon as it is right, or as it is when the time is over."""
    end = time.monotonic() + seconds
    while True:
        try:
            now = figure()
        except urllib.error.HTTPError as error:  # a workload that is not known yet, or any more
            if time.monotonic() > end:
                raise RuntimeError(error.read().decode(errors="replace")) from error
        else:
            if right(now) or time.monotonic() > end:
                return now
        time.sleep(0.1)


def places(profile: Profile) -> dict[Place, int]:
    """Bytes in use by place."""
    found: Counter[Place] = Counter()
    for sample in profile.samples:
        labels = dict(sample.labels)
        if sample.values.inuse_space:
            place = Place(*(labels.get(name, "") for name in Place._fields))
            found[place] += sample.values.inuse_space
    return dict(found)


def pushed_in_use(receiver: Receiver, workload: str, after_ns: int) -> dict[tuple[str, str], int]:
    """Of the newest profile of a workload that ends after some time: bytes by kind and GPU; none
    if there is none yet."""
    found: dict[int, Counter[tuple[str, str]]] = {}
    for prefix in ("gpu", "pinned_host"):
        service = f"{prefix}/_host/{workload}"
        for one in receiver.stored("inuse_space", service_name=service):
            labels = dict(one.labels)
            key = labels.get("kind", ""), labels.get("gpu", "")
            if one.time_ns > after_ns:
                found.setdefault(one.time_ns, Counter())[key] += one.total
    return {key: size for key, size in found[max(found)].items() if size} if found else {}


def pushed(receiver: Receiver, workload: str, what: str) -> int:
    """The sum over all that was pushed of a workload, host memory included."""
    return sum(
        receiver.total(what, service_name=f"{prefix}/_host/{workload}")
        for prefix in ("gpu", "pinned_host")
    )
