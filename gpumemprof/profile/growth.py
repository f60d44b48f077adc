"""Stacks whose bytes in use rise steadily: the slow leak, with its evidence. Pure functions.

What counts is the *floor* of a stack: the bytes that it held at some time and never went below
afterwards. It never falls, and temporary memory, however much and however often, is not in it.
A stack grows steadily if

- its floor rose by ``LEAST`` bytes at least, and by clearly more than its bytes jump from one
  observation to the next;
- it rose in three of the four quarters of the time at least, the last one included, by no more
  than ``MAX_SHARE`` in one of them, and by ``LATER_SHARE`` at least in the later two: what is taken
  at once, or while warming up, or by a cache that fills, rises early and then less and less;
- nothing was given back at any time that is large beside the rise: so falls a sawtooth;
- that is so from the beginning, or from the first or second quarter on, with what was before as a
  warm-up.

The rate is the Theil-Sen slope (the median of the slopes between all pairs of observations) of the
floor, which a few odd observations do not move.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import median

from gpumemprof.profile.model import Labels, Profile
from gpumemprof.stack.frames import Stack

Points = Sequence[tuple[int, int]]
"""(wall clock ns, bytes in use), in the order of time."""

MIN_POINTS = 12
"""Observations that a steady rise must be seen in."""
LEAST = 1 << 20
"""Bytes that a floor must have risen by."""
MAX_SHARE = 0.6
"""Of the rise, in one quarter of the time."""
LATER_SHARE = 1 / 3
"""Of the rise, in the later half of the time."""
MAX_FALL = 0.5
"""Bytes given back at most, from any time to any later one, of the rise."""
QUARTERS = 4
MIN_SHARE = 1 / 16
"""Of the rise, in a quarter that counts as risen."""
NOISE = 4
"""The rise must be so many times the usual jump between two observations."""
MAX_POINTS = 64
"""Observations looked at; of more, every second, third, … is."""

MINUTE_NS = 60 * 10**9


@dataclass(frozen=True, slots=True)
class Trend:
    """How the bytes in use rose. ``points``: what was observed from ``since_ns`` on; ``grown``:
    bytes by which the floor rose; ``rising``: the share of steps between observations in which the
    bytes did not fall. Two points only are a difference, and no steady rise."""

    points: tuple[tuple[int, int], ...]
    bytes_per_minute: float
    grown: int
    rising: float

    @property
    def since_ns(self) -> int:
        """Wall clock, ns."""
        return self.points[0][0]

    @property
    def until_ns(self) -> int:
        """Wall clock, ns."""
        return self.points[-1][0]


@dataclass(frozen=True, slots=True)
class Growth:
    """A stack that grows. ``labels``: its process, call, kind and device."""

    stack: Stack
    labels: Labels
    trend: Trend


def growth(snapshots: Iterable[Profile]) -> list[Growth]:
    """The stacks that grow steadily over several profiles of one workload, fastest first.

    A profile tells what was in use at its end. A stack is followed from the first profile that has
    it; where a later one has not, it holds nothing."""
    ordered = sorted(snapshots, key=_end)
    followed: dict[tuple[Stack, Labels], list[tuple[int, int]]] = {}
    for snapshot in ordered:
        held: dict[tuple[Stack, Labels], int] = {}
        for sample in snapshot.samples:
            key = sample.stack, sample.labels
            size = sample.values.inuse_space
            if size or key in followed:
                held[key] = held.get(key, 0) + size
        for key, size in held.items():
            followed.setdefault(key, []).append((_end(snapshot), size))
        for key in followed.keys() - held.keys():
            followed[key].append((_end(snapshot), 0))
    return _growing((stack, labels, points) for (stack, labels), points in followed.items())


def growth_within(profile: Profile) -> list[Growth]:
    """The stacks that grew steadily while ``profile`` was recorded, fastest first."""
    return _growing(
        (profile.samples[each.sample].stack, profile.samples[each.sample].labels, each.points)
        for each in profile.histories
    )


def between(before: Profile, after: Profile) -> Trend | None:
    """How the bytes in use of one process changed between two of its profiles (two points, so
    ``rising`` says nothing); None if they are of other processes, or not one after the other.

    Which kinds of memory is the caller's choice."""
    if not same_processes(before, after) or _end(before) >= _end(after):
        return None
    points = tuple((_end(each), each.total.inuse_space) for each in (before, after))
    return difference(points)


def same_processes(before: Profile, after: Profile) -> bool:
    """Whether both are of the same running processes (equal pids that started at equal times)."""
    was, now = (
        {(process.pid, process.started) for process in profile.processes}
        for profile in (before, after)
    )
    return bool(was) and was == now


def difference(points: Points) -> Trend:
    """From the first to the last of ``points``, whose times differ."""
    (since, was), (until, now) = points[0], points[-1]
    rate = (now - was) * MINUTE_NS / (until - since)
    return Trend((points[0], points[-1]), rate, now - was, float(now >= was))


def trend(points: Points, least: int = LEAST) -> Trend | None:
    """The steady rise of ``points``, or None if there is none; ``least``: bytes."""
    points = _bounded(points)
    for start in (0, len(points) // 4, len(points) // 2):
        if len(points) - start < MIN_POINTS:
            return None
        found = _steady(points, start, least)
        if found is not None:
            return found
    return None


def _steady(points: Points, start: int, least: int) -> Trend | None:
    window = points[start:]
    sizes = [size for _, size in window]
    floor = [*accumulate(reversed(sizes), min)][::-1]
    grown = floor[-1] - floor[0]
    jump = median(abs(after - before) for before, after in pairwise(sizes))
    # Of a steady rise each of the steps is a jump, too.
    usual = max(jump - grown / (len(sizes) - 1), 0)
    if grown < max(least, NOISE * usual):
        return None
    last = len(floor) - 1
    ends = [last * quarter // QUARTERS for quarter in range(QUARTERS + 1)]
    rises = [floor[b] - floor[a] for a, b in pairwise(ends)]
    risen = [rise >= MIN_SHARE * grown for rise in rises]
    if sum(risen) < QUARTERS - 1 or not risen[-1] or max(rises) > MAX_SHARE * grown:
        return None
    if sum(rises[QUARTERS // 2 :]) < LATER_SHARE * grown or _fall(points) > MAX_FALL * grown:
        return None
    slope = _theil_sen([(when, low) for (when, _), low in zip(window, floor, strict=True)])
    if slope <= 0:
        return None
    falls = sum(after < before for before, after in pairwise(sizes))
    return Trend(tuple(window), slope * MINUTE_NS, grown, 1 - falls / (len(sizes) - 1))


def _fall(points: Points) -> int:
    """The most by which the bytes went down from any time to any later one."""
    sizes = [size for _, size in points]
    return max(most - size for most, size in zip(accumulate(sizes, max), sizes, strict=True))


def _theil_sen(points: Points) -> float:
    """Bytes per ns."""
    slopes = [
        (b - a) / (later - earlier)
        for at, (earlier, a) in enumerate(points)
        for later, b in points[at + 1 :]
        if later > earlier
    ]
    return median(slopes) if slopes else 0.0


def _bounded(points: Points) -> Points:
    """In the order of time, at most ``MAX_POINTS``, the last one among them."""
    step = -(-len(points) // MAX_POINTS)
    return points if step <= 1 else points[(len(points) - 1) % step :: step]


def _growing(followed: Iterable[tuple[Stack, Labels, Points]]) -> list[Growth]:
    found = []
    for stack, labels, points in followed:
        rising = trend(points)
        if rising is not None:
            found.append(Growth(stack, labels, rising))
    return sorted(found, key=lambda each: -each.trend.bytes_per_minute)


def _end(profile: Profile) -> int:
    return profile.time_ns + profile.duration_ns
