"""The agent's local store: profiles and history of each container, within a size.

What is kept: every profile that differs from the one before it, and for each interval a point of
history. When the size is reached, what is old is thinned (thinning.py). Profiles with failed
allocations, the one that knows a container's highest peak, and its first and last are kept longest.

A disk that is full, read-only, or used by another agent does not stop anything: history goes on in
memory, ``state`` says what is wrong, and writing is tried again each time.
"""

from __future__ import annotations

import bisect
import errno
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpumemprof.errors import GpumemprofError, RemoteDataError, UsageError
from gpumemprof.export.history import FailureNote, History, Point, note_of, point_of
from gpumemprof.export.model import ContainerProfile, Owner
from gpumemprof.export.store_files import Found, StoreFiles, journal_lines, owner_id
from gpumemprof.export.store_state import COUNTERS, Owned, StoreState
from gpumemprof.export.thinning import Item, to_let_go
from gpumemprof.profile import pprof
from gpumemprof.profile.merge import prune
from gpumemprof.profile.model import Profile

log = logging.getLogger(__name__)

MIN_BYTES = 1 << 20
MAX_SAMPLES = (5_000, 1_000, 200)
"""A profile is stored with as many stacks as this; with fewer if it takes too much of the store."""
MAX_POINTS, MIN_POINTS, ALL_POINTS = 600, 50, 30_000
"""Points of history kept of one container, in memory too: ``ALL_POINTS`` shared out."""
KEEP_FAILURES = 32
"""Profiles with failures of one container that are kept longest, the latest."""
UNTIL_NS = 600 * 10**9
"""How often it is written down that nothing changed."""
MAX_JOURNAL = 1 << 20
"""Bytes of a journal before it is written anew with what is still known."""
_REST = 0.95
"""What is left of the limit after thinning, so that it is not done each time."""
_MAX_UNPACKED = 256 << 20


class ProfileStore:
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
        self._path = Path(path)
        if self._path.exists() and not self._path.is_dir():
            raise UsageError(f"store.path: {self._path} is not a directory")
        if max_bytes < MIN_BYTES:
            raise UsageError(f"store.max_bytes: {max_bytes:,} is less than {MIN_BYTES:,}")
        if max_owners < 1:
            raise UsageError(f"store.max_owners: {max_owners} is less than 1")
        self._max_bytes = max_bytes
        self._max_owners = max_owners
        self._clock = clock
        self._lock = threading.RLock()
        self._files: StoreFiles | None = None
        self._owned: dict[str, Owned] = {}
        self._to_remove: set[str] = set()
        self._off_meanwhile: list[Callable[[Owner], bool]] = []
        self._error = ""
        self._counters = dict.fromkeys(COUNTERS, 0)
        with self._lock:
            self._on_disk(self._open)

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
            self._put_history(owned, container)
            self._keep_within()

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

    def _known(self, name: str, owner: Owner) -> Owned:
        owned = self._owned.get(name)
        if owned is None:
            owned = self._owned[name] = Owned(History(owner))
            while len(self._owned) > self._max_owners:
                others = [item for item in self._owned.items() if item[0] != name]
                oldest, _ = min(others, key=lambda item: item[1].history.last_ns)
                self._remove(oldest)
                self._counters["owners_evicted"] += 1
        return owned

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

    # The disk

    def _on_disk(self, action: Callable[..., None], *arguments: Any) -> bool:
        """Do something that the disk may refuse; whether it did it."""
        try:
            if self._files is None and action != self._open:
                self._open()
            self._remove_forgotten()
            try:
                action(*arguments)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                self._let_go(self._bytes // 10)  # others fill this disk: try with less
                action(*arguments)
        except OSError as error:
            message = f"the store in {self._path} cannot be used: {error.strerror or error}"
            if message != self._error:
                log.warning("%s", message)
            self._error = message
            self._counters["errors"] += 1
            return False
        self._error = ""
        return True

    def _open(self) -> None:
        files = StoreFiles(self._path)
        try:
            scan = files.scan()
        except OSError:
            files.close()
            raise
        self._files = files
        self._counters["damaged"] += scan.damaged
        self._counters["foreign"] += scan.foreign
        for found in scan.owners:
            self._take_in(found)
        self._off_meanwhile.clear()
        self._keep_within()

    def _take_in(self, found: Found) -> None:
        """Know again what was stored before."""
        name = owner_id(found.history.owner)
        self._counters["damaged"] += found.damaged
        self._counters["foreign"] += found.foreign
        if name in self._to_remove or any(off(found.history.owner) for off in self._off_meanwhile):
            self._to_remove.add(name)
            return
        owned = self._owned.setdefault(name, Owned(found.history))
        history, notes = owned.history, owned.history.notes
        if history is not found.history:  # it goes on since before the disk could be used
            for point in found.history.points:
                history.add(point)
            history.notes = []
            for note in (*found.history.notes, *notes):
                history.note(note)
            owned.unwritten = True
        owned.unwritten |= found.damaged > 0
        for time_ns, size in found.profiles.items():
            owned.add_profile(time_ns, size)
        owned.failing = {note.profile_ns for note in history.notes} & found.profiles.keys()
        owned.journal, owned.made = found.journal_bytes, True
        self._thin_history(owned)

    def _make(self, owned: Owned) -> StoreFiles:
        assert self._files is not None
        if not owned.made:
            self._files.write_owner(owned.history.owner)
            owned.made = True
        return self._files

    def _write_profile(self, name: str, owned: Owned, time_ns: int, data: bytes) -> None:
        self._make(owned).write_profile(name, time_ns, data)
        owned.add_profile(time_ns, len(data))
        self._counters["profiles_written"] += 1

    def _write_history(self, owned: Owned, until_ns: int, lines: list[list[Any]]) -> None:
        """Write down that the point before ``lines`` held until ``until_ns``, and ``lines``."""
        history = owned.history
        anew, owned.unwritten = owned.unwritten or owned.journal > MAX_JOURNAL, True
        files = self._make(owned)
        if anew:
            owned.journal = files.write_journal(history)
        else:
            data = journal_lines([["until", until_ns], *lines])
            files.append_journal(owner_id(history.owner), data)
            owned.journal += len(data)
        owned.until, owned.unwritten = history.last_ns, False

    # Keeping within limits

    def _thin_history(self, owned: Owned) -> None:
        keep = max(MIN_POINTS, min(MAX_POINTS, ALL_POINTS // len(self._owned)))
        if len(owned.history.points) > keep:
            self._counters["points_thinned"] += owned.history.thin(keep * 4 // 5, self._clock())
            owned.unwritten = True

    @property
    def _bytes(self) -> int:
        return sum(owned.bytes for owned in self._owned.values())

    def _keep_within(self) -> None:
        total = self._bytes
        if total > self._max_bytes:
            self._on_disk(self._let_go, total - int(self._max_bytes * _REST))

    def _let_go(self, excess: int) -> None:
        assert self._files is not None
        for item in to_let_go(self._items(), excess, self._clock()):
            self._files.remove_profile(item.group, item.time_ns)
            self._owned[item.group].drop_profile(item.time_ns)
            self._counters["profiles_thinned"] += 1
            excess -= item.size
        while excess > 0 and self._owned:  # journals alone are too much
            name, oldest = min(self._owned.items(), key=lambda item: item[1].history.last_ns)
            excess -= oldest.rest
            self._remove(name)
            self._counters["owners_evicted"] += 1

    def _items(self) -> Iterator[Item]:
        for name, owned in self._owned.items():
            fixed = set(sorted(owned.failing)[-KEEP_FAILURES:])
            highest = owned.history.highest
            if highest is not None:
                fixed.add(highest.time_ns)
            for time_ns, size in owned.profiles.items():
                yield Item(name, time_ns, size, time_ns in fixed)

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

    def _remove(self, name: str) -> None:
        owned = self._owned.pop(name)
        if owned.made:
            self._to_remove.add(name)

    def _remove_forgotten(self) -> None:
        for name in tuple(self._to_remove) if self._files is not None else ():
            assert self._files is not None
            self._files.remove_owner(name)
            self._to_remove.discard(name)

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
