"""What the local store knows of itself, and of one owner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpumemprof.export.history import History
from gpumemprof.export.store_files import BLOCK, blocks

COUNTERS: dict[str, str] = {
    "profiles_written": "profiles were stored",
    "profiles_unchanged": "profiles were like the one before and not stored again",
    "profiles_thinned": "profiles were let go to stay within the size",
    "profiles_not_written": "profiles could not be stored",
    "points_thinned": "points of history were let go",
    "owners_evicted": "containers were let go with all that was known of them",
    "owners_forgotten": "containers were removed because they were switched off",
    "errors": "times the disk refused",
    "damaged": "stored files or lines could not be read",
    "foreign": "files in the store are not ours and were left alone",
}
"""What the store counts since its start, by name, worded to follow a number."""


@dataclass(frozen=True, slots=True)
class StoreState:
    """How the store is. ``bytes``: of the disk, in whole blocks. ``error``: a sentence, empty
    while all is well. ``counters``: see ``COUNTERS``."""

    bytes: int
    max_bytes: int
    owners: int
    profiles: int
    error: str
    counters: Mapping[str, int]


class Owned:
    """What the store knows of one owner. ``profiles``: time → bytes on disk; ``failing``: those
    with failed allocations."""

    __slots__ = (
        "digest",
        "failing",
        "history",
        "journal",
        "made",
        "profiles",
        "size",
        "until",
        "unwritten",
    )

    def __init__(self, history: History) -> None:
        self.history = history
        self.profiles: dict[int, int] = {}
        self.size = 0
        self.failing: set[int] = set()
        self.journal = 0
        """Bytes of its file."""
        self.made = False
        """Whether it has a directory."""
        self.unwritten = False
        """Whether the journal lacks something, or has too much."""
        self.until = history.last_ns
        """As far as the journal tells."""
        self.digest: int | None = None
        """Of the profile that was put in last."""

    def add_profile(self, time_ns: int, size: int) -> None:
        """A profile of ``size`` bytes is stored."""
        self.drop_profile(time_ns)
        self.profiles[time_ns] = blocks(size)
        self.size += blocks(size)

    def drop_profile(self, time_ns: int) -> None:
        """It is not, any more."""
        self.size -= self.profiles.pop(time_ns, 0)
        self.failing.discard(time_ns)

    @property
    def bytes(self) -> int:
        """All it takes of the disk."""
        return self.size + self.rest

    @property
    def rest(self) -> int:
        """What it takes without profiles: directory, owner, journal."""
        return blocks(self.journal) + 2 * BLOCK if self.made else 0
