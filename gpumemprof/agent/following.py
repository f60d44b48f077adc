"""Which processes of the node are recorded, and for whom: every process that uses CUDA is placed as
it appears, and again whenever pods or the switch change.

Off means off: what was recorded of a process before it was known to be off is thrown away, and
nothing of it was published before.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpumemprof.agent.accounts import Accounts
from gpumemprof.agent.followed import Followed, FollowedProcesses
from gpumemprof.agent.placing import HELD, OFF, Cluster, Placement, State, place
from gpumemprof.errors import ProbeError, ProcessGone
from gpumemprof.export.model import Owner
from gpumemprof.kube.cgroup import read_container
from gpumemprof.kube.model import ContainerRef
from gpumemprof.process import procfs
from gpumemprof.process.identity import ProcessId
from gpumemprof.process.program import program_name
from gpumemprof.process.table import Process
from gpumemprof.recorder import Recorder

log = logging.getLogger(__name__)

HELD_SECONDS = 1.0
"""How often processes that wait for their pod are looked at, beside when something changed."""
GONE_SECONDS = 120.0
"""How long a process that has ended waits for its pod to be known, while the API answers."""
NOWHERE = ContainerRef("")
"""Of a process that ended before it could be asked."""
IDLE_OWNER_SECONDS = 600.0
"""How long the counters of programs outside of pods outlive their last process."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """``held``: processes that are recorded before their pod is known. ``owners``: containers."""

    held: int = 256
    owners: int = 512


class Following:
    """Decides for each process; gives the recorder's and the accounts' state to match."""

    def __init__(
        self,
        recorder: Recorder,
        cluster: Cluster,
        accounts: Accounts,
        node: str,
        *,
        bounds: Bounds | None = None,
        on_dropped: Callable[[ProcessId], None] = lambda _: None,
        on_closed: Callable[[Owner, bool], None] = lambda _owner, _off: None,
    ) -> None:
        """``on_dropped``: a process is no longer followed. ``on_closed``: nor is a container; the
        second argument tells whether it was switched off, so that nothing of it is to be kept."""
        self._recorder, self._cluster, self._accounts, self._node = (
            recorder, cluster, accounts, node,
        )  # fmt: skip
        self._bounds = bounds or Bounds()
        self._on_dropped, self._on_closed = on_dropped, on_closed
        self.processes = FollowedProcesses()
        self._idle_since: dict[Owner, float] = {}
        self._has_new_room = False
        """A container was let go: one that was beyond the bound may take its place."""
        self._next_look = 0.0
        self.counts: Counter[str] = Counter(
            held_dropped=0, held_without_pod=0, owners_overflowed=0, switches_failed=0
        )
        recorder.on_new = self.new

    # Processes come

    def new(self, process: Process) -> None:
        """A process, or a new program of one, is recorded from now on, if it may be."""
        known = self.processes.get(process.id)
        if known is not None:
            # Calls arrived after its end was told: its end will be told again.
            known.process = process
            return
        placement = HELD if process.recorded else OFF
        followed = Followed(process, self._ref_of(process), placement)
        self.processes.add(followed)
        self._settle(followed)

    def _ref_of(self, process: Process) -> ContainerRef | None:
        pid, start_ns, _ = process.id
        with contextlib.suppress(ProcessGone):
            ref = read_container(pid)
            # Looked at after that: the kernel moves one that ends to the root of its (version 1)
            # hierarchies, where it is in no container, and its pid may be another's by now.
            stat = procfs.read_stat(pid)
            if stat.start_ns == start_ns and (ref is not None or not stat.exiting):
                return ref
        # It ended already. Another program of the same process tells, or the parent that it began
        # as a copy of; else nobody knows, and it must not be taken for one outside of containers.
        known = [f for f in self.processes.of_pid(pid) if f.process.id.start_ns == start_ns]
        if known:
            return known[-1].ref
        parent = None if process.parent is None else self.processes.get(process.parent)
        return NOWHERE if parent is None or parent.ref is None else parent.ref

    def reconsider(self) -> None:
        """Pods or the switch changed."""
        self._has_new_room = False
        for followed in self.processes:
            self._settle(followed)
        for owner in self._accounts.owners:
            if not self._accounts.has_processes(owner) and self.is_off(owner):
                self._close(owner, off=True)

    def is_off(self, owner: Owner) -> bool:
        """Whether nothing is to be kept of a container, which may have no process now. May be asked
        by other threads."""
        found = self._cluster.find(ContainerRef("", owner.pod_uid)) if owner.pod_uid else None
        return self._cluster.is_off(owner) if found is None else not self._cluster.allows(found[0])

    def turn(self) -> None:
        """What time brings: processes that still wait, and those that are gone."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + HELD_SECONDS
        for followed in self.processes:
            if followed.placement.state is State.HELD:
                self._settle(followed)
            if followed.process.ended is not None:
                self._gone(followed, now)
        self._close_idle(now)
        if self._has_new_room:
            self.reconsider()

    def _settle(self, followed: Followed) -> None:
        process = followed.process
        waited = time.monotonic() - followed.since
        program = program_name(process.command, process.comm)
        placement = place(self._cluster, self._node, followed.ref, program, waited)
        if placement.state is State.HELD and followed.ref == NOWHERE:
            self.counts["held_without_pod"] += followed.placement.state is State.HELD
            placement = OFF  # it never will be known
        elif placement.state is State.HELD and not self._may_hold(followed):
            placement = OFF
        elif placement.owner is not None and not self._has_room(placement.owner):
            self.counts["owners_overflowed"] += followed.placement.state is not State.OFF
            placement = OFF
        before = followed.placement
        if before.owner is not None and placement.state is State.HELD:
            # Its pod is gone, and it still ends: its container is known.
            placement = OFF if self._cluster.is_off(before.owner) else before
        if placement.state is before.state and placement.state is not State.ON:
            self._enforce(followed)
            return
        if placement.state is before.state:
            return  # whose it is does not change, and its container's name may have come late
        followed.placement = placement
        if placement.state is State.OFF:
            self._switch_off(followed, before)
        elif before.state is State.OFF:
            self._switch_on(followed)
        if placement.owner is not None and followed.placement.state is State.ON:
            self._accounts.assign(process.id, placement.owner)
            self._idle_since.pop(placement.owner, None)

    def _may_hold(self, followed: Followed) -> bool:
        """Of a process that is off nothing is recorded again before it is known to be on."""
        if followed.placement.state is State.OFF:
            return False
        held = sum(f.placement.state is State.HELD for f in self.processes)
        if held <= self._bounds.held:
            return True
        self.counts["held_dropped"] += 1
        return False

    def _has_room(self, owner: Owner) -> bool:
        owners = self._accounts.owners
        return owner in owners or len(owners) < self._bounds.owners

    def _enforce(self, followed: Followed) -> None:
        """Off it is, also if the process is new to us and on in the kernel's table."""
        if followed.placement.state is State.OFF and followed.process.recorded:
            self._switch_off(followed, followed.placement)

    def _switch_off(self, followed: Followed, before: Placement) -> None:
        process = followed.process
        try:
            self._recorder.switch_off(process)
        except ProbeError as error:
            # It goes on in the kernel; what comes of it is ignored.
            self.counts["switches_failed"] += 1
            log.warning("process %d: %s", process.id.pid, error)
        self._accounts.forget(process.id, None)
        self._on_dropped(process.id)
        if before.owner is not None and not self._accounts.has_processes(before.owner):
            self._close(before.owner, off=True)

    def _switch_on(self, followed: Followed) -> None:
        process = followed.process
        if process.ended is not None:
            followed.placement = OFF
            return
        try:
            self._recorder.switch_on(process)
        except ProbeError as error:
            followed.placement = OFF
            process.recorded = False
            self.counts["switches_failed"] += 1
            log.warning("process %d: %s", process.id.pid, error)

    # Processes go

    def _gone(self, followed: Followed, now: float) -> None:
        """One that is on stays until its last profile is made (``published``)."""
        state = followed.placement.state
        if state is State.HELD:
            if followed.ended_since is None or not self._cluster.up_to_date:
                followed.ended_since = now
            if now - followed.ended_since < GONE_SECONDS:
                return
            self.counts["held_without_pod"] += 1
        elif state is State.ON:
            return
        self.processes.pop(followed.process.id)
        self._recorder.forget(followed.process)
        self._accounts.forget(followed.process.id, None)
        self._on_dropped(followed.process.id)

    def published(self, processes: Iterable[Process]) -> None:
        """The profile that tells the end of these processes was made: they are forgotten."""
        for process in processes:
            if self.processes.pop(process.id) is None:
                continue
            last = self._recorder.ledger.snapshot([process.id])
            self._accounts.forget(process.id, last)
            self._recorder.forget(process)
            self._on_dropped(process.id)

    def _close_idle(self, now: float) -> None:
        for owner in self._accounts.owners:
            if self._accounts.has_processes(owner):
                continue
            since = self._idle_since.setdefault(owner, now)
            gone = (
                self._cluster.find(ContainerRef("", owner.pod_uid)) is None
                if owner.pod_uid
                else now - since >= IDLE_OWNER_SECONDS
            )
            if gone:
                self._close(owner, off=False)

    def _close(self, owner: Owner, *, off: bool) -> None:
        self._accounts.close(owner)
        self._idle_since.pop(owner, None)
        self._has_new_room = True
        self._on_closed(owner, off)
