"""Exactly once: which allocations and failures of a process are in which interval's profile.

The ledger sums since a process began. What was told already is kept here, so that every allocation
is in one profile and no other, whatever becomes of that profile later: one that was dropped on its
way gives its allocations back (``carry``), and they are told with the container's next.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpumemprof.export.model import ContainerProfile, Owner
from gpumemprof.ledger.model import LET_GO_STACK, Aggregate, AggregateKey, Failure, LedgerSnapshot
from gpumemprof.process.identity import ProcessId
from gpumemprof.profile.merge import merge, prune
from gpumemprof.profile.model import Profile, Values

MAX_CARRIED_SAMPLES = 4096
"""Of one container; small stacks beyond that are summed in one (profile.merge.prune)."""


class Told:
    """What was put into profiles already."""

    def __init__(self) -> None:
        self._allocated: dict[ProcessId, dict[AggregateKey, tuple[int, int]]] = {}
        self._failures: dict[ProcessId, set[Failure]] = {}

    def rest(self, snapshot: LedgerSnapshot) -> LedgerSnapshot:
        """``snapshot`` with the allocations and failures not told yet; from now on they are. What
        is held stays as it is. Aggregates with nothing to tell are left out."""
        failures = tuple(self._new_failures(snapshot))
        needed = {key for failure in failures for key, _ in failure.live}
        aggregates = []
        for aggregate in snapshot.aggregates:
            rest = self._rest_of(aggregate)
            if rest.alloc_count or rest.inuse_count or rest.peak_bytes or rest.key in needed:
                aggregates.append(rest)
        return replace(snapshot, aggregates=tuple(aggregates), failures=failures)

    def _rest_of(self, aggregate: Aggregate) -> Aggregate:
        told = self._allocated.setdefault(aggregate.key.process, {})
        count, size = told.get(aggregate.key, (0, 0))
        told[aggregate.key] = aggregate.alloc_count, aggregate.alloc_bytes
        return aggregate._replace(
            alloc_count=aggregate.alloc_count - count, alloc_bytes=aggregate.alloc_bytes - size
        )

    def _new_failures(self, snapshot: LedgerSnapshot) -> Iterable[Failure]:
        stored: dict[ProcessId, set[Failure]] = {p.process: set() for p in snapshot.processes}
        for failure in snapshot.failures:
            stored.setdefault(failure.process, set()).add(failure)
            if failure not in self._failures.get(failure.process, ()):
                yield failure
        self._failures.update(stored)

    def let_go(self, keys: Iterable[AggregateKey]) -> None:
        """The ledger summed these under one stack."""
        for key in keys:
            told = self._allocated.get(key.process, {})
            count, size = told.pop(key, (0, 0))
            rest = key._replace(stack=LET_GO_STACK)
            before = told.get(rest, (0, 0))
            told[rest] = before[0] + count, before[1] + size

    def forget(self, process: ProcessId) -> None:
        """The process is no longer followed."""
        self._allocated.pop(process, None)
        self._failures.pop(process, None)


class Carried:
    """Allocations of profiles that were dropped on their way, by container."""

    def __init__(self) -> None:
        self._profiles: dict[Owner, Profile] = {}

    def put(self, dropped: ContainerProfile) -> None:
        """Keep what was allocated in it for the container's next profile."""
        rest = allocations_only(dropped.profile)
        before = self._profiles.get(dropped.owner)
        both = rest if before is None else merge([before, rest])
        self._profiles[dropped.owner] = prune(both, MAX_CARRIED_SAMPLES)

    def add_to(self, owner: Owner, profile: Profile) -> Profile:
        """``profile`` with what waits for it."""
        waiting = self._profiles.pop(owner, None)
        if waiting is None:
            return profile
        both = merge([profile, waiting])
        # It is still the profile of this interval.
        return replace(
            both,
            time_ns=profile.time_ns,
            duration_ns=profile.duration_ns,
            about=profile.about,
        )

    def forget(self, owner: Owner) -> int:
        """The container is gone; how many allocations are told to nobody."""
        waiting = self._profiles.pop(owner, None)
        return 0 if waiting is None else waiting.total.alloc_objects


def allocations_only(profile: Profile) -> Profile:
    """What was allocated, without what is held, failures and processes."""
    samples = tuple(
        replace(sample, values=Values(sample.values.alloc_objects, sample.values.alloc_space))
        for sample in profile.samples
        if sample.values.alloc_objects
    )
    return replace(
        profile,
        samples=samples,
        failures=(),
        processes=(),
        completeness={},
        series=(),
        histories=(),
    )


def held_only(profile: Profile) -> Profile:
    """What is held, without allocations and failures: of an interval in which nothing happened."""
    samples = tuple(
        replace(sample, values=sample.values._replace(alloc_objects=0, alloc_space=0))
        for sample in profile.samples
        if sample.values.inuse_objects or sample.values.inuse_space or sample.values.peak_space
    )
    return replace(profile, samples=samples, failures=(), completeness={})


def boundary(now_ns: int, interval_ns: int) -> int:
    """The last whole multiple of the interval at or before ``now_ns`` (wall clock)."""
    return now_ns - now_ns % interval_ns
