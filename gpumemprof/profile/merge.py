"""Profiles added up, and parts of a profile. Pure functions on the model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from gpumemprof.ledger.events import MemoryKind
from gpumemprof.profile.model import Failure, History, Labels, Profile, Sample, Values
from gpumemprof.stack.frames import Frame, Stack

GPU_KINDS = frozenset(kind.value for kind in MemoryKind if kind.on_gpu)
"""Values of the label ``kind`` that count as GPU memory."""

PINNED_KIND = MemoryKind.PINNED_HOST.value


def merge(profiles: Iterable[Profile]) -> Profile:
    """The sum: samples with equal stack and labels become one, in the order first met.

    Processes, failures, series and histories of all come one after the other (two recordings may
    each have a process 1), counters add up, different texts of ``about`` are joined by ``; ``. The
    time span reaches from the earliest start to the latest end."""
    profiles = list(profiles)
    samples: dict[tuple[Stack, Labels], int] = {}
    values: list[Values] = []
    failures: list[Failure] = []
    histories: list[History] = []
    completeness: dict[str, int] = {}
    about: dict[str, dict[str, None]] = {}  # a dict keeps the order in which texts were met
    for profile in profiles:
        new_index = []
        for sample in profile.samples:
            index = samples.setdefault((sample.stack, sample.labels), len(samples))
            new_index.append(index)
            if index == len(values):
                values.append(sample.values)
            else:
                values[index] = values[index].plus(sample.values)
        failures += [_renumbered(failure, new_index) for failure in profile.failures]
        histories += _of_samples(profile.histories, new_index)
        for name, count in profile.completeness.items():
            completeness[name] = completeness.get(name, 0) + count
        for name, text in profile.about.items():
            about.setdefault(name, {})[text] = None
    start = min((profile.time_ns for profile in profiles), default=0)
    end = max((profile.time_ns + profile.duration_ns for profile in profiles), default=0)
    return Profile(
        samples=tuple(
            Sample(stack, labels, row) for (stack, labels), row in zip(samples, values, strict=True)
        ),
        time_ns=start,
        duration_ns=end - start,
        processes=tuple(process for profile in profiles for process in profile.processes),
        failures=tuple(failures),
        completeness=completeness,
        about={name: "; ".join(texts) for name, texts in about.items()},
        series=tuple(series for profile in profiles for series in profile.series),
        histories=tuple(histories),
    )


def select(profile: Profile, keep: Callable[[Sample], bool]) -> Profile:
    """``profile`` with the samples for which ``keep`` is true and their histories; all else stays.
    What was live at a failure in samples that go is in its ``live_omitted``."""
    kept: list[Sample] = []
    new_index: list[int | None] = []
    for sample in profile.samples:
        stays = keep(sample)
        new_index.append(len(kept) if stays else None)
        if stays:
            kept.append(sample)
    return replace(
        profile,
        samples=tuple(kept),
        failures=tuple(_renumbered(failure, new_index) for failure in profile.failures),
        histories=tuple(_of_samples(profile.histories, new_index)),
    )


def labelled(profile: Profile, keep: Callable[[Labels], bool]) -> Profile:
    """``profile`` with the samples and series for whose labels ``keep`` is true; all else stays."""
    part = select(profile, lambda sample: keep(sample.labels))
    return replace(part, series=tuple(s for s in profile.series if keep(s.labels)))


def gpu_only(profile: Profile) -> Profile:
    """Without pinned host memory. A kind that we do not know is taken for GPU memory: it is shown
    rather than lost."""
    return labelled(profile, lambda labels: label(labels, "kind") != PINNED_KIND)


def of_kinds(profile: Profile, kinds: Collection[str]) -> Profile:
    """Samples and series whose label ``kind`` is one of ``kinds``."""
    return labelled(profile, lambda labels: label(labels, "kind") in kinds)


def of_process(profile: Profile, pid: int) -> Profile:
    """Samples, series, processes and failures of one pid."""
    text = str(pid)
    part = labelled(profile, lambda labels: label(labels, "pid") == text)
    return replace(
        part,
        processes=tuple(process for process in part.processes if process.pid == pid),
        failures=tuple(f for f in part.failures if label(f.labels, "pid") == text),
    )


def prune(profile: Profile, max_samples: int) -> Profile:
    """At most ``max_samples`` samples with the same totals, for stores with a limit.

    Samples are kept by the largest of their byte values. The others are summed under a note
    ``[small stacks left out]``, apart for each kind of memory and each pod, and, if there is room,
    for each GPU of the node, or even for each process and device. ``max_samples`` is raised to what
    that needs. Their number is counted as ``stacks_pruned``."""
    if len(profile.samples) <= max_samples:
        return profile
    order = sorted(range(len(profile.samples)), key=lambda i: weight(profile.samples[i]))
    for names in (_PROCESS_LABELS, _GPU_LABELS, _POD_LABELS):
        shared = [_only(sample.labels, names) for sample in profile.samples]
        room = max_samples - len(set(shared))
        if room >= max_samples // 2:
            break
    small = set(order[: len(order) - max(room, 0)])
    parts = [
        Sample((LEFT_OUT,), shared[index], sample.values) if index in small else sample
        for index, sample in enumerate(profile.samples)
    ]
    told = tuple(history for history in profile.histories if history.sample not in small)
    pruned = merge([replace(profile, samples=tuple(parts), histories=told)])
    counters = {**pruned.completeness, "stacks_pruned": len(small)}
    return replace(pruned, completeness=counters, duration_ns=profile.duration_ns)


LEFT_OUT = Frame.note("small stacks left out")
_POD_LABELS = frozenset({"kind", "namespace", "pod", "container", "node"})
_GPU_LABELS = _POD_LABELS | {"gpu", "gpu_uuid"}
_PROCESS_LABELS = _GPU_LABELS | {"pid", "comm", "device"}  # an ordinal means nothing without a pid


def label(labels: Labels, name: str) -> str | None:
    """The value of one label, None if it is not there."""
    return next((text for key, text in labels if key == name), None)


def _only(labels: Labels, names: Collection[str]) -> Labels:
    return tuple((key, text) for key, text in labels if key in names)


def weight(sample: Sample) -> int:
    """By which ``prune`` keeps samples: the largest of its values in bytes."""
    return max(sample.values.inuse_space, sample.values.peak_space, sample.values.alloc_space)


def _of_samples(histories: Iterable[History], new_index: Sequence[int | None]) -> Iterator[History]:
    """The histories of samples that stay."""
    for history in histories:
        sample = new_index[history.sample]
        if sample is not None:
            yield replace(history, sample=sample)


def _renumbered(
    failure: Failure, new_index: Sequence[int | None] | Mapping[int, int | None]
) -> Failure:
    live: dict[int, int] = {}
    omitted = failure.live_omitted
    for old, size in failure.live:
        new = new_index[old]
        if new is None:
            omitted += size
        else:
            live[new] = live.get(new, 0) + size
    largest_first = sorted(live.items(), key=lambda pair: -pair[1])
    return replace(failure, live=tuple(largest_first), live_omitted=omitted)
