"""The agent of a node: wires recorder, cluster, publishing and what others ask.

One thread records and decides; the API's watches, the pushes, the store and the HTTP server have
threads of their own and meet it only through queues.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from gpumemprof import __version__
from gpumemprof.agent.accounts import Accounts
from gpumemprof.agent.config import Settings
from gpumemprof.agent.discovery import Discovery
from gpumemprof.agent.following import Bounds, Following
from gpumemprof.agent.mailbox import Mailbox
from gpumemprof.agent.outputs import Outputs
from gpumemprof.agent.placing import Cluster, NoCluster
from gpumemprof.agent.publisher import Publisher
from gpumemprof.export.model import AgentView, ContainerProfile, Owner, PushStatus
from gpumemprof.export.server import Health
from gpumemprof.ledger.history import HistoryLimits
from gpumemprof.ledger.series import SeriesLimits
from gpumemprof.probe.kernel_side import LoaderChoice
from gpumemprof.probe.loader import Options
from gpumemprof.process.identity import ProcessId
from gpumemprof.process.trust import TENANTS
from gpumemprof.profile.model import Profile
from gpumemprof.recorder import Recorder, RecorderOptions
from gpumemprof.stack.merge import FrameMode

if TYPE_CHECKING:
    from gpumemprof.kube.watch import ClusterWatch

log = logging.getLogger(__name__)

DRAIN_SECONDS, MAKE_SECONDS, FLUSH_SECONDS = 1.0, 5.0, 8.0
"""How long handling the last events, making the last profiles and pushing them may take when the
agent is told to stop; Kubernetes waits 30 s, of which the store takes some (``sinks``)."""
TIDY_SECONDS = 60.0
STALL_SECONDS = 60.0
"""A loop that takes longer than this for a turn is told as unhealthy."""


class NodeAgent:
    """Records until ``run`` is told to stop. Use as a context manager: leaving detaches."""

    def __init__(self, settings: Settings, *, library_path: str = "") -> None:
        """Raises GpumemprofError when this machine cannot record, or a setting cannot be used."""
        self._settings = settings
        self._node = settings["node"] or platform.node()
        self._mailbox = Mailbox()
        self._dropped: deque[ContainerProfile] = deque()
        self._turned = time.monotonic()
        self._tidy_at = self._turned + TIDY_SECONDS
        self._changed = True
        self._switch: object = None
        """The switch that the outputs went by last."""
        with contextlib.ExitStack() as stack:
            self._watch = self._watch_cluster(stack)
            self._cluster = _cluster(self._watch)
            self._outputs = stack.enter_context(Outputs(settings, on_dropped=self._dropped.append))
            self._accounts = Accounts(self._gpu_of)
            self._recorder = stack.enter_context(Recorder(self._options(library_path)))
            self._following = Following(
                self._recorder,
                self._cluster,
                self._accounts,
                self._node,
                bounds=Bounds(settings["limits.held"], settings["limits.containers"]),
                on_dropped=self._forget_process,
                on_closed=self._forget_owner,
            )
            self._discovery = Discovery(self._recorder)
            self._publisher = Publisher(
                self._recorder,
                self._following,
                self._outputs.sinks,
                interval_ns=round(settings["interval"] * 1e9),
                gpu_of=self._gpu_of,
                about=self._about(),
            )
            self._outputs.serve(self)
            self._close = stack.pop_all()

    def _watch_cluster(self, stack: contextlib.ExitStack) -> ClusterWatch | None:
        wanted = self._settings["kubernetes"]
        if wanted == "off" or (wanted == "auto" and not self._settings["namespace"]):
            return None
        # Its client takes half a second and 16 MB to load: only where there is a cluster.
        from gpumemprof.kube.watch import ClusterWatch

        watch = ClusterWatch(
            self._node, self._settings["namespace"], self._settings["switch"], self._note_change
        )
        watch.start()
        stack.callback(watch.stop)
        return watch

    def _note_change(self) -> None:
        """Called by the watches' threads: the loop looks at it in its next turn."""
        self._changed = True

    def _options(self, library_path: str) -> RecorderOptions:
        return RecorderOptions(
            probe=Options(
                record_all=True,
                stack_bytes=self._settings["record.stack_bytes"],
                loader=LoaderChoice(self._settings["loader"]),
            ),
            frames=FrameMode(self._settings["record.frames"]),
            library_path=library_path,
            series=SeriesLimits(series=0),
            history=HistoryLimits(stacks=0),
            on_change=self._accounts.changed,
            trust=TENANTS,
            # Process 1 may be closed even to root; what started this container is the node's, too.
            root_pids=(1, os.getppid()),
        )

    # The loop

    def run(self, stopped: Callable[[], bool]) -> None:
        """Until ``stopped`` is true; then what was allocated since the last interval is sent."""
        log.info(
            "recording %s on node %s; attached by %s",
            "what the switch allows" if self._watch else "every process",
            self._node,
            self._recorder.probes.mode.value,
        )
        while not stopped():
            self._recorder.step()
            self._turn()
        self._finish()

    def _finish(self) -> None:
        """Within the time that Kubernetes waits, whatever does not answer."""
        self._mailbox.close()
        self._recorder.pause()
        self._recorder.drain(DRAIN_SECONDS)
        self._follow()
        if not self._publisher.flush(MAKE_SECONDS):
            log.warning("not every container's last allocations could be told")
        self._outputs.flush(FLUSH_SECONDS)
        self._outputs.close()  # before detaching, which takes old kernels half a minute

    def _turn(self) -> None:
        self._follow()
        self._following.turn()
        self._discovery.turn(self._following.processes.running)
        self._publisher.turn()
        self._mailbox.answer()
        if time.monotonic() > self._tidy_at:
            self._tidy_at = time.monotonic() + TIDY_SECONDS
            self._recorder.tidy()
        self._turned = time.monotonic()

    def _follow(self) -> None:
        """What other threads told: changes of pods and switch, and pushes that were given up."""
        if self._changed:
            self._changed = False
            self._following.reconsider()
        watch = self._watch
        if watch is not None and watch.synced and watch.switch is not self._switch:
            self._switch = watch.switch
            self._outputs.forget_where(self._following.is_off)
            # Children of processes that were off are known to nobody.
            self._discovery.again()
        while self._dropped:
            self._publisher.carry(self._dropped.popleft())

    def _forget_process(self, process: ProcessId) -> None:
        self._publisher.forget_process(process)

    def _forget_owner(self, owner: Owner, off: bool) -> None:
        self._publisher.forget_owner(owner, off=off)

    def _gpu_of(self, process: ProcessId, device: int) -> tuple[str, str]:
        return self._recorder.gpu_of(process, device)

    # What others ask, from any thread (export.server.Sources)

    def health(self) -> Health:
        """Whether the loop turns, and pods, switch and running processes were read once."""
        silent = time.monotonic() - self._turned
        return Health(
            f"the agent's loop has not turned for {silent:.0f} s" if silent > STALL_SECONDS else "",
            self._not_ready(),
        )

    def _not_ready(self) -> str:
        if self._watch is not None and not self._watch.synced:
            return "pods and switch were not read from the Kubernetes API yet"
        return "" if self._discovery.rounds else "running processes were not looked at yet"

    def push(self) -> PushStatus | None:
        """How sending goes."""
        return self._outputs.push()

    def view(self) -> AgentView:
        """The state now. Raises Busy."""
        return self._mailbox.ask(self._view)

    def current(self, owner: Owner) -> Profile | None:
        """What a container holds now. Raises Busy."""
        return self._mailbox.ask(lambda: self._publisher.current(owner), timeout=20.0)

    def _view(self) -> AgentView:
        memory, failures = self._accounts.view(self._recorder.ledger.snapshot)
        libraries: dict[str, int] = {}
        for probed in self._recorder.libraries.probed:
            libraries[probed.library.value] = libraries.get(probed.library.value, 0) + 1
        watch = self._watch
        errors = {} if watch is None else watch.counters()
        kernel = self._recorder.probes.counters()
        return AgentView(
            time_ns=time.time_ns(),
            node=self._node,
            memory=memory,
            failures=failures,
            running=self._following.processes.running_owners,
            owners_overflowed=self._following.counts["owners_overflowed"],
            counters={
                **self._recorder.completeness(),
                "events": kernel["events"],
                "stacks": kernel["stacks"],
                **self._following.counts,
                **self._publisher.counts,
                **self._discovery.counts,
                **self._outputs.counts,
            },
            processes=self._following.processes.states(),
            libraries=libraries,
            libraries_not_probed=len(self._recorder.libraries.problems),
            api={} if watch is None else watch.status(),
            api_errors={
                name: errors[f"{name}_errors"] for name in (() if watch is None else watch.status())
            },
            switch_rejected=errors.get("switch_invalid", 0),
            about=self._about(),
        )

    def _about(self) -> Mapping[str, str]:
        about = {**self._recorder.about(), "version": __version__}
        del about["libraries"]
        return about

    def close(self) -> None:
        """Detach and end all threads."""
        self._close.close()

    def __enter__(self) -> NodeAgent:
        """It records already."""
        return self

    def __exit__(self, *_: object) -> None:
        """Detach."""
        self.close()


def _cluster(watch: ClusterWatch | None) -> Cluster:
    if watch is None:
        return NoCluster()
    from gpumemprof.agent.cluster import WatchedCluster

    return WatchedCluster(watch)
