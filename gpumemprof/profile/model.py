"""The profile: what a recording found, as one value that is stored, merged, compared and drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from gpumemprof.stack.frames import Stack


class Values(NamedTuple):
    """The five sample values of one stack, in pprof order (counts; bytes)."""

    alloc_objects: int = 0
    """Allocations made while recording."""
    alloc_space: int = 0
    """Bytes those allocations obtained."""
    inuse_objects: int = 0
    """Allocations still held at the time of the profile."""
    inuse_space: int = 0
    """Bytes still held at the time of the profile."""
    peak_space: int = 0
    """Bytes held at the moment its process held most (GPU kinds and pinned host memory each
    have a peak of their own)."""

    def plus(self, other: Values) -> Values:
        """The element-wise sum."""
        a, b, c, d, e = self
        f, g, h, i, j = other
        return Values(a + f, b + g, c + h, d + i, e + j)


SAMPLE_TYPES: tuple[tuple[str, str], ...] = (
    ("alloc_objects", "count"),
    ("alloc_space", "bytes"),
    ("inuse_objects", "count"),
    ("inuse_space", "bytes"),
    ("peak_space", "bytes"),
)
"""pprof sample types (type, unit), in the order of ``Values``."""

TYPE_NAMES: tuple[str, ...] = tuple(name for name, _ in SAMPLE_TYPES)
"""Their names: ``TYPE_NAMES.index("inuse_space")`` is the column in ``Values``."""

Labels: TypeAlias = tuple[tuple[str, str], ...]
"""Sorted (key, value) pairs: pid, comm, call, kind, device and, in a cluster, namespace, pod,
container, node."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One stack of one process, one call, one kind, one device."""

    stack: Stack
    labels: Labels
    values: Values


@dataclass(frozen=True, slots=True)
class Failure:
    """One allocation that failed, and what was live in its process then.

    ``time_ns``: wall clock, nanoseconds since the epoch. ``requested``: bytes. ``free`` and
    ``total``: bytes the driver last told the program, None if it never asked. ``in_use``: GPU
    bytes its process held. ``live``: (index into ``Profile.samples``, bytes) pairs, largest
    first; bounded, ``live_omitted`` bytes are in stacks left out.
    """

    time_ns: int
    labels: Labels
    error: int
    requested: int
    free: int | None
    total: int | None
    in_use: int
    stack: Stack
    live: tuple[tuple[int, int], ...] = ()
    live_omitted: int = 0


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One recorded process (one program run by it).

    Bytes are GPU bytes unless named pinned. ``driver``: bytes that NVML attributes to the process
    at the end of recording over all GPUs, None if not known. ``ended``: wall clock ns, None while
    it ran on; ``end_reason``: exit, exec or empty.
    """

    pid: int
    comm: str
    command: str
    started: int
    ended: int | None
    end_reason: str
    in_use: int
    peak: int
    pinned_in_use: int
    pinned_peak: int
    driver: int | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """What one process held of one kind of memory on one device over time: a step function.

    ``labels``: those of samples, without the call. ``points``: (wall clock ns, bytes held from then
    on); times rise; before the first 0 bytes are held. Where there were more changes than points,
    it is thinned: the first point, the last, and the peak (max of the bytes, with the time when it
    was first reached) are exact all the same (ledger/series.py).
    """

    labels: Labels
    points: tuple[tuple[int, int], ...]

    @property
    def peak(self) -> tuple[int, int]:
        """(time, bytes) of the first point with the most bytes; (0, 0) without points."""
        return max(self.points, key=lambda point: point[1], default=(0, 0))


@dataclass(frozen=True, slots=True)
class History:
    """What one stack held from time to time while it was recorded, to tell slow leaks by.

    ``sample``: index into ``Profile.samples``. ``points``: (wall clock ns, bytes in use then),
    times rise. Only the stacks that grew most have one (profile/build.py)."""

    sample: int
    points: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Profile:
    """A whole recording. ``time_ns``: wall clock of its start. ``completeness``: counters of what
    was lost or could not be resolved, by name; all zero means complete. ``about``: versions,
    command line, loader, kernel: for the header."""

    samples: tuple[Sample, ...]
    time_ns: int
    duration_ns: int
    processes: tuple[ProcessInfo, ...] = ()
    failures: tuple[Failure, ...] = ()
    completeness: Mapping[str, int] = field(default_factory=dict)
    about: Mapping[str, str] = field(default_factory=dict)
    series: tuple[Series, ...] = ()
    histories: tuple[History, ...] = ()

    @property
    def held_type(self) -> str:
        """The sample type that tells what is, or was, held: ``inuse_space``, or ``peak_space``
        where nothing is in use any more, as after the end of a recorded command."""
        total = self.total
        return "peak_space" if total.peak_space and not total.inuse_space else "inuse_space"

    @property
    def total(self) -> Values:
        """The sum over all samples (pinned host memory included: filter by the ``kind`` label)."""
        total = Values()
        for sample in self.samples:
            total = total.plus(sample.values)
        return total
