"""A node with some containers, served as an agent does: for tests, and to look at.

python -m tests.unit.agent_examples        # http://127.0.0.1:9465 until Ctrl-C
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from gpumemprof.errors import GpumemprofError
from gpumemprof.export.model import (
    AgentView,
    ContainerProfile,
    FailureKey,
    MemoryKey,
    MemoryUse,
    Owner,
    PushStatus,
)
from gpumemprof.export.server import AgentServer, Health
from gpumemprof.export.store import ProfileStore
from gpumemprof.profile.merge import PINNED_KIND, label
from gpumemprof.profile.model import Failure, Profile, Sample, Values
from tests.unit.profile_examples import (
    ENTRY,
    GIB,
    GRADIENTS,
    KV_CACHE,
    MALLOC,
    MIB,
    SECOND,
    STAGING,
    WEIGHTS,
    labels,
    python,
)
from tests.unit.store_examples import HOST, INTERVAL, LEAK, SERVER, TRAINER

JOB = Owner("ml-team", "eval-28931-k7x", "eval", "eval", "node-1", "uid-eval")
HOSTILE = Owner(
    "ml-team",
    "</script><img src=x onerror=alert(1)>",
    "\u202ehostile",
    "x" * 400,
    "node-1",
    "uid-x",
)
GROW = (*MALLOC, python("KVCache.grow", 58, "/app/cache.py"), *ENTRY)
HOUR = 3600 * SECOND


class ExampleAgent:
    """Answers with what tests put in."""

    def __init__(self) -> None:
        self.profiles: dict[Owner, Profile] = {}
        self.state = AgentView(0, "node-1")
        self.pushed: PushStatus | None = None
        self.well = Health()
        self.busy = False

    def health(self) -> Health:
        return self.well

    def view(self) -> AgentView:
        return self.state

    def push(self) -> PushStatus | None:
        return self.pushed

    def current(self, owner: Owner) -> Profile | None:
        if self.busy:
            raise GpumemprofError("the agent is busy")
        return self.profiles.get(owner)

    def see(self, owner: Owner, profile: Profile, time_ns: int, failures: int = 0) -> None:
        """``owner`` holds what ``profile`` tells."""
        self.profiles[owner] = profile
        memory, failed = dict(self.state.memory), dict(self.state.failures)
        for sample in profile.samples:
            kind = label(sample.labels, "kind") or ""
            key = MemoryKey(owner, kind, "" if kind == PINNED_KIND else "0", "")
            use = memory.get(key, MemoryUse())
            memory[key] = use._replace(
                in_use=use.in_use + sample.values.inuse_space,
                peak=use.peak + sample.values.peak_space,
                allocations=use.allocations + sample.values.alloc_objects,
            )
            if failures and kind == "device":
                failed[FailureKey(key, 2)] = failures
        self.state = replace(
            self.state,
            time_ns=time_ns,
            memory=memory,
            failures=failed,
            running={*self.state.running, owner},
        )

    def end(self, owner: Owner) -> None:
        """Its last process has ended; its counters are told for some time."""
        self.profiles.pop(owner, None)
        memory = {
            key: use._replace(in_use=0) if key.owner == owner else use
            for key, use in self.state.memory.items()
        }
        self.state = replace(self.state, memory=memory, running={*self.state.running} - {owner})


def metrics(accept: str) -> tuple[bytes, str]:
    return f"# {accept}\n".encode(), "text/plain; version=0.0.4"


def llama(hours: float, step: int) -> Profile:
    """A server: weights, a cache, and a prefix cache that leaks 40 MiB an hour."""
    leaked = int(hours * 40) * MIB + 64 * MIB
    busy = (step * 7919) % 13
    rows = [
        (WEIGHTS, labels(), Values(0, 0, 290, 13 * GIB, 13 * GIB)),
        (KV_CACHE, labels(), Values(0, 0, 48, 48 * GIB, 48 * GIB)),
        (LEAK, labels(), Values(4, 4 * MIB, leaked // MIB, leaked, leaked)),
        (GROW, labels(), Values(busy, busy * 64 * MIB, busy, busy * 64 * MIB, 13 * 64 * MIB)),
        (
            STAGING,
            labels(call="cudaHostAlloc", kind="pinned_host"),
            Values(8, 2 * GIB, 8, 2 * GIB, 2 * GIB),
        ),
    ]
    return Profile(tuple(Sample(*row) for row in rows), 0, INTERVAL)


def training(step: int) -> Profile:
    """Gradients that come and go."""
    gradients = (0, 9, 9, 4)[step % 4] * GIB
    rows = [
        (WEIGHTS, labels(pid=77), Values(0, 0, 290, 7 * GIB, 7 * GIB)),
        (GRADIENTS, labels(pid=77), Values(40, 9 * GIB, gradients // GIB, gradients, 9 * GIB)),
    ]
    return Profile(tuple(Sample(*row) for row in rows), 0, INTERVAL)


def failed(time_ns: int) -> Failure:
    return Failure(
        time_ns=time_ns,
        labels=labels(),
        error=2,
        requested=20 * GIB,
        free=512 * MIB,
        total=80 * GIB,
        in_use=62 * GIB,
        stack=GROW,
        live=((1, 48 * GIB), (0, 13 * GIB)),
        live_omitted=GIB,
    )


def fill(store: ProfileStore, agent: ExampleAgent, now: int, hours: int = 30) -> None:
    """Hours of a node's life, up to ``now``."""
    start = (now - hours * HOUR) // INTERVAL * INTERVAL
    ticks = hours * HOUR // INTERVAL
    coarse = [*range(0, ticks - 240, 20), *range(ticks - 240, ticks + 1)]
    for tick in coarse:
        at = start + tick * INTERVAL
        server = llama(tick * INTERVAL / HOUR, tick)
        if tick in coarse[200:202] or tick == ticks - 60:
            server = replace(server, failures=(failed(at - SECOND),))
        store.put(ContainerProfile(SERVER, at, INTERVAL, replace(server, time_ns=at - INTERVAL)))
        if tick > ticks - 960:
            store.put(
                ContainerProfile(
                    TRAINER, at, INTERVAL, replace(training(tick), time_ns=at - INTERVAL)
                )
            )
        if ticks - 2000 < tick < ticks - 1000:
            store.put(
                ContainerProfile(JOB, at, INTERVAL, replace(training(1), time_ns=at - INTERVAL))
            )
    agent.see(SERVER, replace(server, time_ns=at - INTERVAL), at, failures=3)
    agent.see(TRAINER, replace(training(ticks), time_ns=at - INTERVAL), at)
    agent.see(
        HOST, Profile((Sample(WEIGHTS, labels(pid=9), Values(1, MIB, 1, MIB, MIB)),), at, 0), at
    )


def serve(
    agent: ExampleAgent, store: ProfileStore | None, page_port: int = 0, metrics_port: int = 0
) -> AgentServer:
    return AgentServer(
        agent,
        metrics,
        store,
        metrics_listen=("127.0.0.1", metrics_port),
        page_listen=("127.0.0.1", page_port),
    )


def main() -> None:
    now = time.time_ns()
    with tempfile.TemporaryDirectory() as path:
        store = ProfileStore(Path(path) / "store", 64 * MIB)
        agent = ExampleAgent()
        fill(store, agent, now)
        agent.state = replace(
            agent.state,
            about={"gpumemprof": "0.1.0", "loader": "libbpf 1.5", "kernel": "6.18.0"},
            counters={"events": 120_000, "stacks_lost": 17},
            api={"pods": False},
        )
        server = serve(agent, store, int(sys.argv[1]) if len(sys.argv) > 1 else 9465)
        print(f"http://127.0.0.1:{server.page_port}", flush=True)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        try:
            signal.pause()
        except KeyboardInterrupt:
            pass
        finally:
            server.close()
            store.close()


if __name__ == "__main__":
    main()
