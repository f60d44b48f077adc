"""A container's memory over time, and its failed allocations: bounded, exact where it matters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gpumemprof.export.model import Owner
from gpumemprof.export.thinning import Item, to_let_go
from gpumemprof.ledger.events import MemoryKind
from gpumemprof.profile.merge import PINNED_KIND, label
from gpumemprof.profile.model import Failure, Profile
from gpumemprof.report.functions import owner as owning_frame

KINDS: tuple[str, ...] = tuple(kind.value for kind in MemoryKind)
"""The order of ``Point.in_use``."""

_PINNED = KINDS.index(PINNED_KIND)
_UNKNOWN_KIND = KINDS.index(MemoryKind.DEVICE.value)
"""A kind that we do not know is shown rather than lost, as in ``merge.gpu_only``."""

MAX_NOTES = 64
"""Failed allocations noted of one container: the first half and the latest half."""
MAX_TEXT = 300
"""Characters of a name in a note."""


class Point(NamedTuple):
    """What a container held at one time, and without a change until ``until_ns``. Times are wall
    clock, sizes bytes."""

    time_ns: int
    until_ns: int
    in_use: tuple[int, ...]
    """By kind, in the order of ``KINDS``."""
    peak: int
    """GPU bytes: the sum of its processes' own peaks so far."""
    pinned_peak: int
    most: int
    """Most GPU bytes in use at this point, and at those let go after the point before it."""
    failures: int
    """Failed allocations since the point before it."""

    @property
    def gpu(self) -> int:
        """GPU bytes in use."""
        return sum(self.in_use) - self.in_use[_PINNED]

    @property
    def pinned(self) -> int:
        """Pinned host bytes in use."""
        return self.in_use[_PINNED]

    def same(self, other: Point) -> bool:
        """Whether the two tell of the same state, and nothing happened between them."""
        return (
            self.in_use == other.in_use
            and self.peak == other.peak
            and self.pinned_peak == other.pinned_peak
            and not other.failures
        )


class FailureNote(NamedTuple):
    """A failed allocation in short. ``profile_ns``: the time of the profile that has all of it.
    The rest is as in the profile's ``Failure``; ``function``: who asked for the memory."""

    time_ns: int
    profile_ns: int
    error: int
    call: str
    kind: str
    device: str
    requested: int
    free: int | None
    total: int | None
    in_use: int
    function: str


def point_of(profile: Profile, time_ns: int) -> Point:
    """The point that ``profile`` tells of."""
    in_use = [0] * len(KINDS)
    peak = [0] * len(KINDS)
    columns: dict[str | None, int] = dict(zip(KINDS, range(len(KINDS)), strict=True))
    for sample in profile.samples:
        column = columns.get(label(sample.labels, "kind"), _UNKNOWN_KIND)
        in_use[column] += sample.values.inuse_space
        peak[column] += sample.values.peak_space
    gpu = sum(in_use) - in_use[_PINNED]
    return Point(
        time_ns=time_ns,
        until_ns=time_ns,
        in_use=tuple(in_use),
        peak=sum(peak) - peak[_PINNED],
        pinned_peak=peak[_PINNED],
        most=gpu,
        failures=len(profile.failures),
    )


def note_of(failure: Failure, profile_ns: int) -> FailureNote:
    """The note of one failure of the profile stored for ``profile_ns``."""
    frame = owning_frame(failure.stack)
    texts = {
        key: (label(failure.labels, key) or "")[:MAX_TEXT] for key in ("call", "kind", "device")
    }
    return FailureNote(
        time_ns=failure.time_ns,
        profile_ns=profile_ns,
        error=failure.error,
        requested=failure.requested,
        free=failure.free,
        total=failure.total,
        in_use=failure.in_use,
        function=(frame.name if frame else "")[:MAX_TEXT],
        **texts,
    )


class History:
    """Points and notes of one container."""

    __slots__ = ("notes", "owner", "points")

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.points: list[Point] = []
        self.notes: list[FailureNote] = []

    @property
    def last_ns(self) -> int:
        """Until when it is known; 0 before the first point."""
        return self.points[-1].until_ns if self.points else 0

    def add(self, point: Point) -> bool:
        """Add a point; False if it only says that all is as before."""
        points = self.points
        if points and point.time_ns >= points[-1].time_ns and points[-1].same(point):
            points[-1] = points[-1]._replace(until_ns=point.until_ns)
            return False
        # Clocks are set back at times. A history is short: the place is found from its end.
        at = len(points)
        while at and points[at - 1].time_ns > point.time_ns:
            at -= 1
        if at and points[at - 1].time_ns == point.time_ns:
            points[at - 1] = point
        else:
            points.insert(at, point)
        return True

    def extend(self, until_ns: int) -> None:
        """The last point held until then."""
        if self.points and until_ns > self.points[-1].until_ns:
            self.points[-1] = self.points[-1]._replace(until_ns=until_ns)

    def note(self, note: FailureNote) -> None:
        """Note a failure; of too many, those in the middle are let go."""
        self.notes.append(note)
        if len(self.notes) > MAX_NOTES:
            del self.notes[MAX_NOTES // 2]

    @property
    def highest(self) -> Point | None:
        """The latest point with the highest peak: the profile of that time knows it best."""
        return max(self.points, key=lambda point: (point.peak, point.time_ns), default=None)

    def thin(self, keep: int, now_ns: int) -> int:
        """Let points go until ``keep`` are left; returns how many went. ``most`` and ``failures``
        of those that go are kept in the point after them."""
        highest = self.highest
        items = [Item("", p.time_ns, 1, p is highest) for p in self.points]
        gone = {item.time_ns for item in to_let_go(items, len(self.points) - keep, now_ns)}
        self.points = list(_without(self.points, gone))
        return len(gone)


def _without(points: list[Point], gone: set[int]) -> Iterator[Point]:
    most = failures = 0
    for point in points:
        most, failures = max(most, point.most), failures + point.failures
        if point.time_ns not in gone:
            yield point._replace(most=most, failures=failures)
            most = failures = 0
