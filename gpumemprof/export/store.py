"""The agent's local store: profiles and history of each container, within a size.

What is kept: every profile that differs from the one before it, and for each interval a point of
history. When the size is reached, what is old is thinned (thinning.py). Profiles with failed
allocations, the one that knows a container's highest peak, and its first and last are kept longest.

A disk that is full, read-only, or used by another agent does not stop anything: history goes on in
memory, ``state`` says what is wrong, and writing is tried again each time. What is stored already
stays: only ``max_bytes`` thins it.
"""

from __future__ import annotations

import bisect
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpumemprof.errors import GpumemprofError, RemoteDataError, UsageError
from gpumemprof.export.history import FailureNote, Point, note_of, point_of
from gpumemprof.export.model import ContainerProfile, Owner
from gpumemprof.export.store_files import owner_id
from gpumemprof.export.store_owners import StoredOwners
from gpumemprof.export.store_state import Owned, StoreState
from gpumemprof.profile import pprof
from gpumemprof.profile.merge import prune
from gpumemprof.profile.model import Profile

log = logging.getLogger(__name__)

MIN_BYTES = 1 << 20
MAX_SAMPLES = (5_000, 1_000, 200)
"""A profile is stored with as many stacks as this; with fewer if it takes too much of the store."""
UNTIL_NS = 600 * 10**9
"""How often it is written down that nothing changed."""
_MAX_UNPACKED = 256 << 20


class ProfileStore(StoredOwners):
    """Keeps profiles in ``path``. Any thread may call any method; ``put`` writes files, and is
    for one thread at a time."""

    def __init__(
        self,
        path: str | Path,
        max_bytes: int,
        clock: Callable[[], int] = time.time_ns,
        max_owners: int = 200,
    ) -> None:
        """``max_bytes``: of the disk, all files together. ``clock``: wall clock, ns.
        ``max_owners``: beyond it, the one not heard of for longest goes.

        Raises UsageError for values that cannot be meant; what the disk refuses is told by
        ``state``."""
        path = Path(path)
        if path.exists() and not path.is_dir():
            raise UsageError(f"store.path: {path} is not a directory")
        if max_bytes < MIN_BYTES:
            raise UsageError(f"store.max_bytes: {max_bytes:,} is less than {MIN_BYTES:,}")
        if max_owners < 1:
            raise UsageError(f"store.max_owners: {max_owners} is less than 1")
        self._lock = threading.RLock()
        super().__init__(path, max_bytes, max_owners, clock)

    def close(self) -> None:
        """Write down what is not yet, and let others use the directory."""
        with self._lock:
            if self._files is not None:
                for owned in self._owned.values():
                    if owned.unwritten or owned.until < owned.history.last_ns:
                        self._on_disk(self._write_history, owned, owned.history.last_ns, [])
                self._files.close()
                self._files = None

    # Putting in

    def put(self, container: ContainerProfile) -> None:
        """Keep what a container did in an interval. Never raises for what the disk refuses.

        A profile that tells not what is held (``snapshot`` false) is kept for its failures only.
        """
        profile, time_ns = container.profile, container.time_ns
        if not container.snapshot and not profile.failures:
            return
        name = owner_id(container.owner)
        digest = _digest(profile) if container.snapshot else None
        with self._lock:
            owned = self._owned.get(name)
            unchanged = (
                owned is not None
                and owned.profiles
                and digest is not None
                and digest == owned.digest
                and not profile.failures
            )
        data = None if unchanged else self._encode(profile)
        refused = ""
        with self._lock:
            owned = self._known(name, container.owner)
            if unchanged:
                self._counters["profiles_unchanged"] += 1
            elif data and self._on_disk(self._write_profile, name, owned, time_ns, data):
                owned.digest = digest
                if profile.failures:
                    owned.failing.add(time_ns)
            else:
                self._counters["profiles_not_written"] += 1
                refused = self._error if data else ""
            self._put_history(owned, container)
            self._keep_within()
            # A full disk may take a line of history, or let go of something, and still no profile.
            self._error = self._error or refused

    def _put_history(self, owned: Owned, container: ContainerProfile) -> None:
        history, until = owned.history, owned.history.last_ns
        lines: list[list[Any]] = []
        if container.snapshot:
            point = point_of(container.profile, container.time_ns)
            if history.add(point):
                lines.append(["point", *point])
        for failure in container.profile.failures:
            note = note_of(failure, container.time_ns)
            history.note(note)
            lines.append(["failure", *note])
        self._thin_history(owned)
        if not lines:
            until = history.last_ns
        if lines or owned.unwritten or until - owned.until >= UNTIL_NS:
            self._on_disk(self._write_history, owned, until, lines)

    def _encode(self, profile: Profile) -> bytes | None:
        """The profile's bytes; None for one that cannot be stored."""
        data = None
        for limit in MAX_SAMPLES:
            try:
                data = pprof.encode(prune(profile, limit))
            except GpumemprofError as error:
                log.warning("a profile cannot be stored: %s", error)
                return None
            if len(data) <= self._max_bytes // 8:
                return data
        log.warning("a profile of %d bytes is too large for the store", len(data or b""))
        return None

    # Forgetting

    def forget(self, namespace: str) -> int:
        """Remove everything of a namespace; returns of how many containers (forget_where)."""
        return self.forget_where(lambda owner: owner.namespace == namespace)

    def forget_where(self, off: Callable[[Owner], bool]) -> int:
        """Remove everything of the owners for which ``off`` is true, what was recorded while they
        were on too; returns how many there were.

        It is gone for readers at once. If the disk refuses to remove it, ``state`` says so and it
        is tried again with whatever is done next."""
        with self._lock:
            names = [name for name, owned in self._owned.items() if off(owned.history.owner)]
            for name in names:
                self._remove(name)
            self._counters["owners_forgotten"] += len(names)
            if self._files is None:  # there may be more, which we cannot see yet
                self._off_meanwhile.append(off)
            self._on_disk(lambda: None)
            return len(names)

    # Reading

    def owners(self) -> list[Owner]:
        """Everyone of whom something is kept."""
        with self._lock:
            return [owned.history.owner for owned in self._owned.values()]

    def history(self, owner: Owner) -> list[Point]:
        """What ``owner`` held over time, oldest first; empty if nothing is known."""
        with self._lock:
            owned = self._owned.get(owner_id(owner))
            return list(owned.history.points) if owned else []

    def failures(self, owner: Owner) -> list[FailureNote]:
        """The failed allocations that are still noted, in the order they were told."""
        with self._lock:
            owned = self._owned.get(owner_id(owner))
            return list(owned.history.notes) if owned else []

    def times(self, owner: Owner) -> list[int]:
        """The times of the stored profiles, oldest first. A time in between had the profile
        before it: unchanged ones are not stored again."""
        with self._lock:
            owned = self._owned.get(owner_id(owner))
            return sorted(owned.profiles) if owned else []

    def time_at(self, owner: Owner, time_ns: int) -> int | None:
        """The time of the profile that tells of ``time_ns``: the last stored before it, else the
        first one."""
        times = self.times(owner)
        at = bisect.bisect_right(times, time_ns)
        return times[max(at - 1, 0)] if times else None

    def peak_time(self, owner: Owner) -> int | None:
        """The time of the stored profile that knows the highest peak of ``owner``."""
        with self._lock:
            owned = self._owned.get(owner_id(owner))
            if owned is None or not owned.profiles:
                return None
            highest = owned.history.highest
            at = max(owned.profiles) if highest is None else highest.time_ns
            return min(owned.profiles, key=lambda time_ns: abs(time_ns - at))

    def load(self, owner: Owner, time_ns: int) -> Profile | None:
        """The profile stored for ``time_ns``; None if there is none (any more).

        Raises RemoteDataError if its file is damaged; it is then removed and counted."""
        data = self.load_bytes(owner, time_ns)
        if data is None:
            return None
        try:
            return pprof.decode(data, max_unpacked=_MAX_UNPACKED)
        except UsageError as error:
            self._damaged(owner_id(owner), time_ns)
            raise RemoteDataError(f"the stored profile is damaged: {error}") from error

    def load_bytes(self, owner: Owner, time_ns: int) -> bytes | None:
        """The same as gzipped pprof, as it is on disk."""
        name = owner_id(owner)
        with self._lock:
            owned = self._owned.get(name)
            if owned is None or time_ns not in owned.profiles or self._files is None:
                return None
            files = self._files
        try:
            return files.read_profile(name, time_ns)
        except FileNotFoundError:
            pass  # thinned meanwhile, or removed by others
        except (OSError, RemoteDataError):
            self._damaged(name, time_ns)
        with self._lock:
            if (owned := self._owned.get(name)) is not None:
                owned.drop_profile(time_ns)
        return None

    def _damaged(self, name: str, time_ns: int) -> None:
        with self._lock:
            self._counters["damaged"] += 1
            owned = self._owned.get(name)
            if owned is not None and self._files is not None:
                owned.drop_profile(time_ns)
                self._on_disk(self._files.remove_profile, name, time_ns)

    def state(self) -> StoreState:
        """How the store is."""
        with self._lock:
            return StoreState(
                bytes=self._bytes,
                max_bytes=self._max_bytes,
                owners=len(self._owned),
                profiles=sum(len(owned.profiles) for owned in self._owned.values()),
                error=self._error,
                counters=dict(self._counters),
            )


def _digest(profile: Profile) -> int | None:
    """Tells whether two profiles of one container, one after the other, are the same; None for one
    that is like no other because something was allocated in its interval.

    Frames are left out but for their number, since looking at all of them costs more than all
    else here: what is held cannot move from one stack to another without an allocation."""
    samples = profile.samples
    if any(sample.values.alloc_objects or sample.values.alloc_space for sample in samples):
        return None
    return hash(tuple((sample.labels, sample.values, len(sample.stack)) for sample in samples))
