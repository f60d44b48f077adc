"""From a container's profile to requests that Pyroscope's two APIs accept.

``pprof``: one request for each service, with all five sample types. ``folded``: one request for
each service, kind, GPU and sample type, since ``/ingest`` knows no labels of samples; there is no
peak_space, a type that it refuses.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from gpumemprof.export.model import ContainerProfile, Owner
from gpumemprof.export.pyroscope import series, timeless
from gpumemprof.export.pyroscope.push import FoldedPush, PprofPush
from gpumemprof.export.pyroscope.settings import PyroscopeSettings
from gpumemprof.export.pyroscope.timeless import Timeless
from gpumemprof.profile import folded, merge
from gpumemprof.profile.model import TYPE_NAMES, Labels, Sample

FOLDED_TYPES = ("alloc_objects", "alloc_space", "inuse_objects", "inuse_space")

_CACHED_BYTES = 16 << 20
_CACHED_OWNERS = 1024
_KEPT_INTERVALS = 20
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Encoded:
    """One request to be, and what is lost if it is never delivered: samples with nothing but
    the allocations of the interval."""

    push: PprofPush | FoldedPush
    undelivered: tuple[Sample, ...]


@dataclass(slots=True)
class _Known:
    """What was encoded last for an owner."""

    samples: tuple[Sample, ...]
    interval_ns: int
    time_ns: int
    encoded: tuple[Encoded, ...]
    size: int
    most: int
    """How many samples of a push to try next time."""


@dataclass(slots=True)
class Encoder:
    """Encodes the profiles of many containers; what did not change is not encoded again."""

    settings: PyroscopeSettings
    encoded: int = 0
    """Profiles that were encoded."""
    unchanged: int = 0
    """Profiles that were as before."""
    negative: int = 0
    """Samples with a negative value, taken for 0."""
    pruned: int = 0
    """Stacks that were summed into one to keep within the limits."""
    _known: OrderedDict[Owner, _Known] = field(default_factory=OrderedDict)
    _size: int = 0
    _most: int = 0

    def encode(self, container: ContainerProfile) -> tuple[Encoded, ...]:
        """The requests of a profile; none if it has nothing but zeros."""
        owner, samples = container.owner, container.profile.samples
        known = self._known.get(owner)
        if (
            known is not None
            and known.interval_ns == container.interval_ns
            and known.samples == samples
        ):
            self.unchanged += 1
            known.time_ns = container.time_ns
            self._known.move_to_end(owner)
            return known.encoded
        self.encoded += 1
        self.negative += series.negative(samples)
        self._most = self.settings.max_samples if known is None else known.most
        make = self._pprof if self.settings.format == "pprof" else self._folded
        encoded = tuple(one for part in series.parts(samples) for one in make(part, container))
        self._remember(container, encoded)
        return encoded

    def forget(self, off: Callable[[Owner], bool]) -> None:
        """Keep nothing of these owners."""
        for owner in [owner for owner in self._known if off(owner)]:
            self._forget(owner)

    def _pprof(self, part: series.Part, container: ContainerProfile) -> Iterator[Encoded]:
        samples = series.reduced(part.samples)
        if not samples:
            return
        labels = {
            **series.labels(container.owner, part.pinned, self.settings.labels),
            "__name__": series.METRIC,
            "__delta__": "false",
        }

        def make(kept: tuple[Sample, ...]) -> tuple[Timeless, int]:
            packed = timeless.pack(series.profile_of(kept, container.interval_ns))
            return packed, packed.size

        lost = series.undelivered(part.samples, range(len(TYPE_NAMES)))
        yield Encoded(PprofPush(labels, self._fitting(samples, make)), lost)

    def _folded(self, part: series.Part, container: ContainerProfile) -> Iterator[Encoded]:
        labels = series.labels(container.owner, part.pinned, self.settings.labels)
        service = labels.pop("service_name")  # the application's name becomes it
        for told, group in series.by_labels(part.samples).items():
            pairs = ",".join(
                f"{name}={value}" for name, value in sorted({**labels, **dict(told)}.items())
            )
            # Without labels: with them each stack would get root frames that tell whose it is.
            bare = tuple(Sample(s.stack, (), s.values) for s in series.reduced(group))
            for sample_type in FOLDED_TYPES:
                text = self._folded_text(bare, sample_type)
                if text:
                    yield Encoded(
                        FoldedPush(f"{service}.{sample_type}{{{pairs}}}", text),
                        series.undelivered(group, (TYPE_NAMES.index(sample_type),)),
                    )

    def _folded_text(self, samples: tuple[Sample, ...], sample_type: str) -> bytes:
        column = TYPE_NAMES.index(sample_type)
        shown = tuple(sample for sample in samples if sample.values[column])

        def make(kept: tuple[Sample, ...]) -> tuple[bytes, int]:
            text = folded.encode(series.profile_of(kept, 0), sample_type).encode()
            return text, len(text)

        return self._fitting(shown, make) if shown else b""

    def _fitting(
        self, samples: tuple[Sample, ...], make: Callable[[tuple[Sample, ...]], tuple[_T, int]]
    ) -> _T:
        """What ``make`` makes of as many of the largest samples as the limits allow, the others
        summed into one of each combination of labels."""
        most = self._most
        kept = _largest(samples, most)
        made, size = make(kept)
        while size > self.settings.max_bytes and most > 1:
            most = max(1, min(most, len(kept)) * self.settings.max_bytes * 9 // (size * 10))
            kept = _largest(samples, most)
            made, size = make(kept)
        self._most = min(self._most, most)
        self.pruned += len(samples) - len(kept)
        return made

    def _remember(self, container: ContainerProfile, encoded: tuple[Encoded, ...]) -> None:
        self._forget(container.owner)
        samples = container.profile.samples
        size = sum(one.push.stored for one in encoded) + 200 * len(samples)
        self._known[container.owner] = _Known(
            samples,
            container.interval_ns,
            container.time_ns,
            encoded,
            size,
            # It may have grown too much by chance: a little more each time.
            most=min(self._most * 5 // 4 + 1, self.settings.max_samples),
        )
        self._size += size
        while self._known and (
            self._size > _CACHED_BYTES
            or len(self._known) > _CACHED_OWNERS
            or self._is_old(container)
        ):
            self._forget(next(iter(self._known)))

    def _is_old(self, now: ContainerProfile) -> bool:
        oldest = next(iter(self._known.values()))
        return now.time_ns - oldest.time_ns > _KEPT_INTERVALS * now.interval_ns

    def _forget(self, owner: Owner) -> None:
        known = self._known.pop(owner, None)
        if known is not None:
            self._size -= known.size


def _largest(samples: tuple[Sample, ...], most: int) -> tuple[Sample, ...]:
    """At most ``most`` samples with the same sums of each combination of labels (more than
    ``most`` only if there are more of these)."""
    if len(samples) <= most:
        return samples
    groups: dict[Labels, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.labels, []).append(sample)
    by_weight = sorted(map(merge.weight, samples), reverse=True)
    least = by_weight[max(most - len(groups), 0)]
    kept: list[Sample] = []
    for labels, group in groups.items():
        large = sum(merge.weight(sample) > least for sample in group)
        pruned = merge.prune(series.profile_of(tuple(group), 0), large + 1).samples
        kept += (Sample(sample.stack, labels, sample.values) for sample in pruned)
    return tuple(kept)
