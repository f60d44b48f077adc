"""Sums over profiles, and the comparison of our stacks with a framework's own. Pure values."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpumemprof.profile.model import Profile, Sample
from gpumemprof.stack.frames import Frame, FrameKind, Stack

GPU_KINDS = frozenset({"device", "managed", "array"})
BEFORE_ATTACH = "[before attach]"

Where = Callable[[Stack], bool]


class Sums(NamedTuple):
    """Bytes and counts held now and allocated since the start."""

    bytes: int = 0
    count: int = 0
    alloc_bytes: int = 0
    alloc_count: int = 0


def label(sample: Sample, key: str) -> str:
    """The value of a label, "" where it has none."""
    return dict(sample.labels).get(key, "")


def select(
    profile: Profile,
    pid: int | None = None,
    kinds: Iterable[str] = GPU_KINDS,
    where: Where | None = None,
) -> Iterator[Sample]:
    """The samples of a process and of kinds of memory; what was held before attach is left out."""
    for sample in profile.samples:
        if pid is not None and label(sample, "pid") != str(pid):
            continue
        if label(sample, "kind") not in kinds or is_before_attach(sample):
            continue
        if where is None or where(sample.stack):
            yield sample


def is_before_attach(sample: Sample) -> bool:
    """Whether it stands for what was allocated before recording began."""
    return any(frame.name == BEFORE_ATTACH for frame in sample.stack)


def sums(samples: Iterable[Sample]) -> Sums:
    """The sum of samples."""
    total = [0, 0, 0, 0]
    for sample in samples:
        values = sample.values
        total[0] += values.inuse_space
        total[1] += values.inuse_objects
        total[2] += values.alloc_space
        total[3] += values.alloc_objects
    return Sums(*total)


def torch_allocator(stack: Stack) -> bool:
    """Whether PyTorch's CUDA caching allocator asked for it (any of its backends)."""
    return any(
        "CUDACachingAllocator" in frame.name or basename(frame.module).startswith("libc10_cuda")
        for frame in stack
    )


def through(*parts: str) -> Where:
    """Whether a stack passes through a module whose path contains one of ``parts``."""
    return lambda stack: any(part in frame.module for frame in stack for part in parts)


def basename(path: str) -> str:
    """The last part of a path."""
    return path.rsplit("/", 1)[-1]


def told(stack: Stack, frames: int = 10) -> str:
    """A stack in one line, leaf first."""
    names = [
        f"{frame.name} ({basename(frame.file)}:{frame.line})"
        if frame.kind is FrameKind.PYTHON
        else frame.name
        for frame in stack
    ]
    return " < ".join(names[:frames]) + (" < …" if len(names) > frames else "")


def largest(samples: Iterable[Sample], limit: int = 12) -> list[dict[str, Any]]:
    """What is held, by stack, largest first."""
    held = sorted(samples, key=lambda sample: -sample.values.inuse_space)
    return [
        {
            "bytes": sample.values.inuse_space,
            "count": sample.values.inuse_objects,
            "call": label(sample, "call"),
            "device": label(sample, "device"),
            "stack": told(sample.stack, 14),
        }
        for sample in held[:limit]
        if sample.values.inuse_space
    ]


# Python stacks, ours and a framework's


class PyFrame(NamedTuple):
    """A Python frame in the words that both sides have: the function's bare name."""

    name: str
    file: str
    line: int


def python_frames(stack: Sequence[Frame]) -> tuple[PyFrame, ...]:
    """The Python frames of one of our stacks, innermost first."""
    return tuple(
        PyFrame(frame.name.rsplit(".", 1)[-1], frame.file, frame.line)
        for frame in stack
        if frame.kind is FrameKind.PYTHON
    )


def their_python_frames(frames: Iterable[Mapping[str, Any]]) -> tuple[PyFrame, ...]:
    """The Python frames of a stack of ``torch.cuda.memory._snapshot()``, innermost first."""
    return tuple(
        PyFrame(frame["name"].rsplit(".", 1)[-1], frame["filename"], int(frame["line"]))
        for frame in frames
        if frame["filename"].endswith(".py") or frame["filename"].startswith("<")
    )


class Taken(NamedTuple):
    """One allocation from the driver as we saw it, in the order of time."""

    size: int
    stack: Stack


class Theirs(NamedTuple):
    """One segment as the framework's own trace has it, in the order of time."""

    action: str
    size: int
    frames: tuple[PyFrame, ...]


@dataclass(frozen=True)
class StackMatch:
    """How two traces of the same allocations compare.

    ``equal``: same frames and lines throughout; ``functions_only``: same functions, another line;
    ``missing``: theirs without an event of ours of the same size in the same place of the order.
    """

    theirs: int
    with_python: int
    equal: int
    functions_only: int
    missing: int
    unclaimed: int
    misses: tuple[dict[str, Any], ...]

    @property
    def share(self) -> float:
        """Of their events, the part that ours equal."""
        return self.equal / self.theirs if self.theirs else 0.0


def match_stacks(
    ours: Iterable[Taken], theirs: Iterable[Theirs], keep_misses: int = 20
) -> StackMatch:
    """Compares traces in the order of time. One of theirs may be several of ours, which then have
    one stack (an expandable segment grows by several physical allocations)."""
    waiting = deque(ours)
    total = with_python = equal = functions_only = missing = skipped = 0
    misses: list[dict[str, Any]] = []
    for event in theirs:
        total += 1
        with_python += bool(event.frames)
        taken, passed = _claim(waiting, event.size)
        skipped += passed
        if not taken:
            missing += 1
            misses.append(_miss(event, None))
            continue
        frames = {python_frames(one.stack) for one in taken}
        if frames == {event.frames}:
            equal += 1
            continue
        if {_functions(one) for one in frames} == {_functions(event.frames)}:
            functions_only += 1
        misses.append(_miss(event, taken[0]))
    return StackMatch(
        total, with_python, equal, functions_only, missing, len(waiting) + skipped,
        tuple(itertools.islice(misses, keep_misses)),
    )  # fmt: skip


def _claim(waiting: deque[Taken], size: int) -> tuple[list[Taken], int]:
    """The next events of ours that make up ``size``, and how many had to be passed over."""
    for start in range(min(len(waiting), 64)):
        total, end = 0, start
        while end < len(waiting) and total < size:
            total += waiting[end].size
            end += 1
        if total == size:
            found = [waiting[i] for i in range(start, end)]
            for _ in range(end):
                waiting.popleft()
            return found, start
    return [], 0


def _functions(frames: Iterable[PyFrame]) -> tuple[tuple[str, str], ...]:
    return tuple((frame.name, frame.file) for frame in frames)


def _miss(event: Theirs, taken: Taken | None) -> dict[str, Any]:
    return {
        "action": event.action,
        "size": event.size,
        "theirs": [f"{f.name} {f.file}:{f.line}" for f in event.frames],
        "ours": None
        if taken is None
        else [f"{f.name} {f.file}:{f.line}" for f in python_frames(taken.stack)],
        "our_whole_stack": None if taken is None else told(taken.stack, 60),
    }
