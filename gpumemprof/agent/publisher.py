"""Makes the profile of each container at the end of each interval, and hands it on.

Intervals end at whole multiples of their length of the wall clock, so that all nodes tell of the
same moments. Containers are taken one after the other in small turns: the events of the probes do
not wait for a node full of containers.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gpumemprof.agent.accounts import GpuOf
from gpumemprof.agent.following import Following
from gpumemprof.agent.intervals import Carried, Told, allocations_only, boundary, held_only
from gpumemprof.export.model import ContainerProfile, Owner
from gpumemprof.process.identity import ProcessId
from gpumemprof.process.table import Process
from gpumemprof.profile.completeness import LOST
from gpumemprof.profile.model import Labels, Profile
from gpumemprof.recorder import Recorder

TURN_SECONDS = 0.05
NAMING_SECONDS = 2.0
"""How long the profiles of others wait for the names of one container's stacks, at most."""
SHIFT_NS = 1_000_000
"""Between two profiles of the same time, if the clock was set back: Pyroscope adds up those that
have equal times, to the millisecond."""


class Sink(Protocol):
    """Takes profiles: Pyroscope's queue, the local store."""

    @property
    def gives_back(self) -> bool:
        """Whether profiles that it drops come back (``Publisher.carry``), to be told with later
        ones."""
        ...

    def offer(self, profiles: Sequence[ContainerProfile]) -> None:
        """Never blocks for long."""
        ...

    def forget_where(self, off: Callable[[Owner], bool]) -> None:
        """Keep nothing of these containers, and send nothing of them."""
        ...


@dataclass(slots=True)
class _Last:
    """What was told of a container last."""

    version: tuple[object, ...]
    quiet: Profile
    """What to tell when nothing has happened since."""


class Publisher:
    """Single-threaded: call ``turn`` between the recorder's steps."""

    def __init__(
        self,
        recorder: Recorder,
        following: Following,
        sinks: Sequence[Sink],
        *,
        interval_ns: int,
        gpu_of: GpuOf,
        about: Mapping[str, str],
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._recorder, self._following, self._sinks = recorder, following, sinks
        self._interval_ns, self._gpu_of, self._about, self._clock = (
            interval_ns, gpu_of, about, clock,
        )  # fmt: skip
        self._told = Told()
        self._carried = Carried()
        self._last: dict[Owner, _Last] = {}
        self._lost: Mapping[str, int] = {}
        self._lost_now: dict[str, int] = {}
        self._driver: Mapping[ProcessId, int] = {}
        """What the driver said at the beginning of the interval's profiles."""
        self._end_ns = self._latest_ns = self._time_ns = boundary(clock(), interval_ns)
        """End of the interval that is being told, or was told last, by the clock; the latest end
        that was ever told; the time that the profiles are given."""
        self._set_back = 0
        """Times the clock was set back."""
        self._name_by: float | None = None
        self._waiting: deque[tuple[Owner, list[Process]]] = deque()
        self.counts: Counter[str] = Counter(
            profiles_made=0, intervals_missed=0, allocations_not_told=0, stacks_let_go=0
        )

    def turn(self) -> None:
        """Tell what is due, for a short while."""
        if not self._waiting:
            if not self._next_interval():
                return
            self._begin()
        end = time.monotonic() + TURN_SECONDS
        while self._waiting and time.monotonic() < end:
            owner, processes = self._waiting[0]
            if not self._are_named(processes, end):
                return
            self._waiting.popleft()
            self._publish(owner, processes)

    def _next_interval(self) -> bool:
        """Whether another interval is over, by the wall clock, which may be set."""
        end_ns = boundary(self._clock(), self._interval_ns)
        intervals = (end_ns - self._end_ns) // self._interval_ns
        if intervals in (0, -1):  # set back by less than an interval: wait for it
            return False
        if intervals > 0:
            self.counts["intervals_missed"] += intervals - 1
        else:
            self._set_back += 1
        self._end_ns = self._time_ns = end_ns
        if end_ns <= self._latest_ns:
            self._time_ns += self._set_back * SHIFT_NS
        self._latest_ns = max(self._latest_ns, end_ns)
        return True

    def _are_named(self, processes: list[Process], end: float) -> bool:
        """Look up names of stacks until ``end``: those of a large program may take seconds. Whether
        it is time for the profile."""
        now = time.monotonic()
        self._name_by = self._name_by or now + NAMING_SECONDS
        named = self._recorder.stacks.resolve_some([process.id for process in processes], end)
        if not named and now < self._name_by:
            return False
        self._name_by = None
        return True

    def flush(self, seconds: float = 5.0) -> bool:
        """The agent stops: tell what was allocated since the last interval. What is held is not
        told: it was, at the end of that interval, and readers add up what they find in a range.
        Returns whether all could be told within ``seconds``."""
        end = time.monotonic() + seconds
        self._waiting.clear()
        self._begin()
        time_ns = max(self._clock(), self._time_ns + 1)
        while self._waiting and time.monotonic() < end:
            owner, processes = self._waiting.popleft()
            profile = allocations_only(self._profile(owner, processes, time_ns))
            self._hand_on(ContainerProfile(owner, time_ns, self._interval_ns, profile, False))
        return not self._waiting

    def current(self, owner: Owner) -> Profile | None:
        """What a container holds now, and allocated since its processes began."""
        processes = self._following.processes.by_owner().get(owner)
        if processes is None:
            return None
        now_ns = self._clock()
        return self._recorder.profile_of(
            self._recorder.ledger.snapshot([process.id for process in processes]),
            processes,
            started_ns=now_ns,
            duration_ns=0,
            completeness=self._recorder.completeness(),
            about=self._about,
            labels=self._labels,
        )

    def carry(self, dropped: ContainerProfile) -> None:
        """A profile was given up on its way to where sums are made: its allocations go with the
        container's next. Of one that was switched off meanwhile nothing goes anywhere."""
        if dropped.owner in self._following.processes.by_owner():
            self._carried.put(dropped)
        else:
            self.counts["allocations_not_told"] += dropped.profile.total.alloc_objects

    def forget_process(self, process: ProcessId) -> None:
        """Nothing of it is to be told any more."""
        self._told.forget(process)

    def forget_owner(self, owner: Owner, *, off: bool) -> None:
        """A container is gone; ``off``: it was switched off, and nothing of it is to be kept."""
        self._last.pop(owner, None)
        self.counts["allocations_not_told"] += self._carried.forget(owner)
        if off:
            for sink in self._sinks:
                sink.forget_where(lambda other: other == owner)

    def _begin(self) -> None:
        lost = {
            name: number for name, number in self._recorder.completeness().items() if name in LOST
        }
        self._lost_now = {
            name: number - self._lost.get(name, 0)
            for name, number in lost.items()
            if number > self._lost.get(name, 0)
        }
        self._lost = lost
        self._driver = self._recorder.driver_bytes()
        self._waiting.extend(self._following.processes.by_owner().items())

    def _publish(self, owner: Owner, processes: list[Process]) -> None:
        # It may have been switched off since the interval ended.
        processes = [p for p in processes if self._following.processes.owner_of(p.id) == owner]
        if not processes:
            return
        ended = [process for process in processes if process.ended is not None]
        profile = self._profile(owner, processes, self._time_ns)
        self._hand_on(ContainerProfile(owner, self._time_ns, self._interval_ns, profile))
        for process in processes:
            gone = self._recorder.make_room(process.id)
            self._told.let_go(gone)
            self.counts["stacks_let_go"] += len(gone)
        if ended:
            self._following.published(ended)

    def _hand_on(self, made: ContainerProfile) -> None:
        with_carried = replace(made, profile=self._carried.add_to(made.owner, made.profile))
        if with_carried.profile.samples or with_carried.profile.failures:
            self.counts["profiles_made"] += 1
        for sink in self._sinks:
            told = with_carried if sink.gives_back else made
            if told.profile.samples or told.profile.failures:
                sink.offer([told])

    def _profile(self, owner: Owner, processes: list[Process], time_ns: int) -> Profile:
        ledger = self._recorder.ledger
        driver = self._driver
        version = tuple((p.id, p.ended, ledger.version(p.id), driver.get(p.id)) for p in processes)
        last = self._last.get(owner)
        if last is not None and last.version == version and not self._lost_now:
            profile = last.quiet
        else:
            snapshot = self._told.rest(ledger.snapshot([process.id for process in processes]))
            profile = self._recorder.profile_of(
                snapshot,
                processes,
                started_ns=time_ns - self._interval_ns,
                duration_ns=self._interval_ns,
                completeness=self._lost_now,
                about=self._about,
                labels=self._labels,
                driver=driver,
            )
            self._last[owner] = _Last(version, held_only(profile))
        return profile

    def _labels(self, process: ProcessId, device: int) -> Labels:
        index, uuid = self._gpu_of(process, device)
        return (("gpu", index), ("gpu_uuid", uuid)) if uuid else ()
