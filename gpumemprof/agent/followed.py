"""The processes of the node that use CUDA, each with what was decided of it: a table to look at."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from gpumemprof.agent.placing import HELD, Placement, State
from gpumemprof.export.model import Owner
from gpumemprof.kube.model import ContainerRef
from gpumemprof.process.identity import ProcessId
from gpumemprof.process.table import Process


@dataclass(slots=True)
class Followed:
    """One program of one process. Times are monotonic seconds."""

    process: Process
    ref: ContainerRef | None
    """Its container; None outside of any."""
    placement: Placement = HELD
    since: float = field(default_factory=time.monotonic)
    ended_since: float | None = None
    """Since when it has ended and its pod could have become known."""


class FollowedProcesses:
    """All that are followed, running ones and those whose end is not told yet."""

    def __init__(self) -> None:
        self._by_id: dict[ProcessId, Followed] = {}

    def add(self, followed: Followed) -> None:
        """Follow one more."""
        self._by_id[followed.process.id] = followed

    def pop(self, process: ProcessId) -> Followed | None:
        """Follow it no longer."""
        return self._by_id.pop(process, None)

    def get(self, process: ProcessId) -> Followed | None:
        """What is known of a process."""
        return self._by_id.get(process)

    def __iter__(self) -> Iterator[Followed]:
        """All, as they are now."""
        return iter(tuple(self._by_id.values()))

    def of_pid(self, pid: int) -> list[Followed]:
        """The programs that a process ran, oldest first."""
        return [followed for followed in self if followed.process.id.pid == pid]

    def owner_of(self, process: ProcessId) -> Owner | None:
        """Whose a process is, if it is on."""
        followed = self._by_id.get(process)
        return None if followed is None else followed.placement.owner

    def state_of(self, pid: int) -> State | None:
        """Of a running process; None if it is not followed."""
        running = [f for f in self.of_pid(pid) if f.process.ended is None]
        return running[0].placement.state if running else None

    def by_owner(self) -> Mapping[Owner, list[Process]]:
        """The processes of each container that are on, ended ones until they are published."""
        found: dict[Owner, list[Process]] = {}
        for followed in self:
            if followed.placement.state is State.ON and followed.placement.owner is not None:
                found.setdefault(followed.placement.owner, []).append(followed.process)
        return found

    @property
    def running(self) -> Collection[int]:
        """Pids of those that run."""
        return {f.process.id.pid for f in self._by_id.values() if f.process.ended is None}

    @property
    def running_owners(self) -> Collection[Owner]:
        """Containers of which a process that is on runs."""
        return frozenset(
            owner
            for owner, processes in self.by_owner().items()
            if any(process.ended is None for process in processes)
        )

    def states(self) -> Mapping[str, int]:
        """State → running processes."""
        found = dict.fromkeys((state.value for state in State), 0)
        for followed in self:
            if followed.process.ended is None:
                found[followed.placement.state.value] += 1
        return found
