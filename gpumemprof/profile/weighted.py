"""Stacks from the root, with their process: what folded text and speedscope are made of."""

from __future__ import annotations

from collections.abc import Iterator

from gpumemprof.errors import UsageError
from gpumemprof.profile.model import Labels, Profile, Sample, Values
from gpumemprof.stack.frames import Frame


def weighted(profile: Profile) -> Iterator[tuple[tuple[Frame, ...], Values]]:
    """(frames from the root, values) for each sample.

    The first frames are notes that say whose memory it is, because processes must not merge:
    ``namespace/pod`` if the sample has one, then ``comm (pid)`` as far as known, then
    ``[pinned host memory]`` for what is no GPU memory.
    Raises UsageError for negative values, which cannot be drawn."""
    owners: dict[Labels, tuple[Frame, ...]] = {}
    for sample in profile.samples:
        if min(sample.values) < 0:
            raise UsageError("a profile with negative values (a difference) cannot be drawn")
        if sample.labels not in owners:
            owners[sample.labels] = tuple(_owner(sample))
        frames = (*owners[sample.labels], *reversed(sample.stack))
        yield frames or (Frame.note("no stack"),), sample.values


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
