"""Stacks with a weight each, from the root: what folded text and speedscope are made of."""

from __future__ import annotations

from collections.abc import Iterator

from gpumemprof.errors import UsageError
from gpumemprof.profile.model import SAMPLE_TYPES, Profile, Sample
from gpumemprof.stack.frames import Frame

TYPE_NAMES = tuple(name for name, _ in SAMPLE_TYPES)


def weighted(profile: Profile, sample_type: str) -> Iterator[tuple[tuple[Frame, ...], int]]:
    """(frames from the root, value) for each sample whose value is not 0.

    The first frames are notes that say whose memory it is, because processes must not merge:
    ``namespace/pod`` if the sample has one, then ``comm (pid)`` as far as known, then
    ``[pinned host memory]`` for what is no GPU memory.
    Raises UsageError for an unknown type, and for negative values, which cannot be drawn."""
    if sample_type not in TYPE_NAMES:
        raise UsageError(f"there is no sample type {sample_type!r}: use {', '.join(TYPE_NAMES)}")
    column = TYPE_NAMES.index(sample_type)
    for sample in profile.samples:
        value = sample.values[column]
        if value < 0:
            raise UsageError("a profile with negative values (a difference) cannot be drawn")
        if value:
            frames = (*_owner(sample), *reversed(sample.stack))
            yield frames or (Frame.note("no stack"),), value


def _owner(sample: Sample) -> Iterator[Frame]:
    labels = dict(sample.labels)
    for name in (
        "/".join(filter(None, (labels.get("namespace"), labels.get("pod")))),
        " ".join(
            filter(None, (labels.get("comm"), f"({labels['pid']})" if "pid" in labels else ""))
        ),
    ):
        if name:
            yield Frame(name)
    if labels.get("kind") == "pinned_host":
        yield Frame.note("pinned host memory")
