"""Whom the local store knows, and their files: what the disk refuses is done later, and what is
beyond the limits is let go.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpumemprof.export.history import History
from gpumemprof.export.model import Owner
from gpumemprof.export.store_files import Found, StoreFiles, journal_lines, owner_id
from gpumemprof.export.store_state import COUNTERS, Owned
from gpumemprof.export.thinning import Item, to_let_go

log = logging.getLogger(__name__)

MAX_POINTS, MIN_POINTS, ALL_POINTS = 600, 50, 30_000
"""Points of history kept of one container, in memory too: ``ALL_POINTS`` shared out."""
KEEP_FAILURES = 32
"""Profiles with failures of one container that are kept longest, the latest."""
MAX_JOURNAL = 1 << 20
"""Bytes of a journal before it is written anew with what is still known."""
_REST = 0.95
"""What is left of the limit after thinning, so that it is not done each time."""


class StoredOwners:
    """Each owner of whom something is kept, by ``owner_id``. For one thread at a time."""

    def __init__(
        self, path: Path, max_bytes: int, max_owners: int, clock: Callable[[], int]
    ) -> None:
        """See ProfileStore."""
        self._path = path
        self._max_bytes = max_bytes
        self._max_owners = max_owners
        self._clock = clock
        self._files: StoreFiles | None = None
        self._owned: dict[str, Owned] = {}
        self._to_remove: set[str] = set()
        self._off_meanwhile: list[Callable[[Owner], bool]] = []
        self._error = ""
        self._counters = dict.fromkeys(COUNTERS, 0)
        self._on_disk(self._open)

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

    # The disk

    def _on_disk(self, action: Callable[..., None], *arguments: Any) -> bool:
        """Do something that the disk may refuse; whether it did it.

        On a full disk nothing is let go: those who fill it would take that room, too, and history
        would go for nothing. Only our own limit thins (``_keep_within``)."""
        try:
            if self._files is None and action != self._open:
                self._open()
            self._remove_forgotten()
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
        keep = max(MIN_POINTS, min(MAX_POINTS, ALL_POINTS // max(len(self._owned), 1)))
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
        stored = [item for item in self._owned.items() if item[1].made]
        for name, oldest in sorted(stored, key=lambda item: item[1].history.last_ns):
            if excess <= 0:  # else journals alone are too much
                break
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

    def _remove(self, name: str) -> None:
        owned = self._owned.pop(name)
        if owned.made:
            self._to_remove.add(name)

    def _remove_forgotten(self) -> None:
        for name in tuple(self._to_remove) if self._files is not None else ():
            assert self._files is not None
            self._files.remove_owner(name)
            self._to_remove.discard(name)
