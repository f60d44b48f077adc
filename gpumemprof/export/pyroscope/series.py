"""Whose series it is: the labels of a push, and which samples are in it. Pure values.

One container has two services, so that pinned host memory is never added to GPU memory::

    gpu/<namespace>/<workload>            device, managed and array memory
    pinned_host/<namespace>/<workload>    pinned host memory

A process of no pod is ``gpu/_host/<program>``. Samples keep two labels, ``kind`` and ``gpu``: the
server makes a series of each combination (at most 3 kinds on the node's GPUs), while a process id
as a label would make one of each process. Function, file and line stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpumemprof.export.model import ContainerProfile, Owner
from gpumemprof.profile.merge import PINNED_KIND, label
from gpumemprof.profile.model import Labels, Profile, Sample, Values
from gpumemprof.profile.numbering import FrameNumbers
from gpumemprof.stack.frames import Frame, Stack

METRIC = "memory"
"""``__name__``: it makes the profile types ``memory:inuse_space:bytes:space:bytes`` and so on."""

HOST = "_host"
"""Stands for the namespace of what runs in no pod; no namespace can have this name."""

MAX_DEPTH = 1000
"""Frames of a stack. Of deeper ones the server would drop the leaf, which matters most."""

MAX_VALUE = 512
"""Characters of a label's value; the server takes 2,048 bytes."""

_LEAF_FRAMES = 700
_MOST = 2**63 - 1
_KEPT = ("gpu", "kind")
_UNSAFE = re.compile(r"[^A-Za-z0-9_./+@:=-]")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_./-]")


class Part(NamedTuple):
    """What of one container goes to one service. ``samples``: as they were recorded."""

    pinned: bool
    samples: tuple[Sample, ...]


def parts(samples: Iterable[Sample]) -> list[Part]:
    """GPU memory and pinned host memory, those that have samples. A kind that we do not know is
    taken for GPU memory: it is shown rather than lost."""
    found: dict[bool, list[Sample]] = {False: [], True: []}
    for sample in samples:
        found[label(sample.labels, "kind") == PINNED_KIND].append(sample)
    return [Part(pinned, tuple(some)) for pinned, some in found.items() if some]


def service(owner: Owner, pinned: bool) -> str:
    """The service_name. Only letters, digits and ``_-./``: the folded API takes no other."""
    name = "/".join(
        ("pinned_host" if pinned else "gpu", owner.namespace or HOST, owner.workload or "unknown")
    )
    return _NOT_IN_NAMES.sub("_", name)[:MAX_VALUE]


def labels(owner: Owner, pinned: bool, extra: Mapping[str, str]) -> dict[str, str]:
    """The labels of a series, without those that are empty."""
    found = {
        **extra,
        "namespace": owner.namespace,
        "pod": owner.pod,
        "container": owner.container,
        "node": owner.node,
    }
    clean = {name: safe(value) for name, value in found.items() if value}
    return {**clean, "service_name": service(owner, pinned)}


def safe(value: str) -> str:
    """A label's value that needs no quotes anywhere: other characters become ``_``."""
    return _UNSAFE.sub("_", value)[:MAX_VALUE]


def reduced(samples: Iterable[Sample]) -> tuple[Sample, ...]:
    """Samples with the labels that are sent, equal ones summed. Negative values, for which the
    server would drop the whole sample, become 0, and samples of zeros are left out."""
    sums: dict[tuple[tuple[int, ...], Labels], tuple[Stack, Values]] = {}
    frames = FrameNumbers()
    for sample in samples:
        values = Values(*(min(max(value, 0), _MOST) for value in sample.values))
        if any(values):
            stack, kept = _bounded(sample.stack), _kept(sample.labels)
            key = (frames.numbers(stack), kept)
            known = sums.get(key)
            sums[key] = (stack, values) if known is None else (stack, _sum(known[1], values))
    return tuple(Sample(stack, key[1], values) for key, (stack, values) in sums.items())


def by_labels(samples: Iterable[Sample]) -> dict[Labels, list[Sample]]:
    """Samples by those of their labels that are sent."""
    groups: dict[Labels, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(_kept(sample.labels), []).append(sample)
    return groups


def negative(samples: Iterable[Sample]) -> int:
    """How many samples have a negative value, which only a mistake of ours could make."""
    return sum(min(sample.values) < 0 for sample in samples)


def profile_of(samples: tuple[Sample, ...], duration_ns: int) -> Profile:
    """A profile with nothing but samples: no command lines, processes, failures or counters."""
    return Profile(samples=samples, time_ns=0, duration_ns=duration_ns)


def undelivered(samples: Iterable[Sample], columns: Iterable[int]) -> tuple[Sample, ...]:
    """What is lost for good if a push is dropped: the allocations of its interval, in the sample
    types at ``columns`` (what is in use will be told again by the next profile)."""
    kept = [column for column in columns if column < _ALLOCATED]
    lost = []
    for sample in samples:
        row = [0] * len(sample.values)
        for column in kept:
            row[column] = max(sample.values[column], 0)
        if any(row):
            lost.append(Sample(sample.stack, sample.labels, Values(*row)))
    return tuple(lost)


def dropped(
    owner: Owner, time_ns: int, interval_ns: int, samples: tuple[Sample, ...]
) -> ContainerProfile:
    """What an owner's next profile has to tell of a push that was dropped: its ``undelivered``."""
    profile = Profile(samples=samples, time_ns=time_ns - interval_ns, duration_ns=interval_ns)
    return ContainerProfile(owner, time_ns, interval_ns, profile, snapshot=False)


_ALLOCATED = 2  # the first columns of Values: alloc_objects and alloc_space


def _kept(labels: Labels) -> Labels:
    return tuple((name, safe(value)) for name, value in labels if name in _KEPT and value)


def _sum(a: Values, b: Values) -> Values:
    return Values(*(min(value, _MOST) for value in a.plus(b)))


def _bounded(stack: Stack) -> Stack:
    if not stack:
        return (Frame.note("no stack"),)
    if len(stack) <= MAX_DEPTH:
        return stack
    missing = len(stack) - MAX_DEPTH + 1
    note = Frame.note(f"{missing} frames left out")
    root = MAX_DEPTH - 1 - _LEAF_FRAMES
    return (*stack[:_LEAF_FRAMES], note, *stack[-root:])
