"""What changed between two profiles. Pure functions on the model.

Stacks match by the functions on them, not by lines: a function is told by its name and its file
as import statements see it; a native one by its name and its library, without directories and
version (two containers, or two versions of CUDA, have the same code at different places). Where
several stacks differ in lines only, those with equal lines match first; the others match in the
order of their lines, or by the nearest lines if one side has more of them.

Processes, pods and devices are not compared: two runs have other pids, and two replicas other GPUs.
Which kinds of memory are compared is the caller's choice (merge.py): GPU memory and pinned host
memory are never to be mixed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpumemprof.errors import UsageError
from gpumemprof.profile.merge import merge
from gpumemprof.profile.model import Profile, Sample, Values
from gpumemprof.profile.numbering import FrameNumbers
from gpumemprof.profile.text import short_path
from gpumemprof.stack.frames import FrameKind, Stack

BASE_LABEL = ("pprof::base", "true")
"""The label by which pprof tells the samples of ``-diff_base`` from the others."""
MAX_COMPARED = 10_000
"""Pairs of stacks of equal functions whose lines are compared for the nearest."""

_VERSION = re.compile(r"\.so[.\d]*$")


class FunctionKey(NamedTuple):
    """What makes a function the same one in two profiles; ``place``: file or library."""

    kind: FrameKind
    name: str
    place: str


def function_key(kind: FrameKind, name: str, file: str, module: str) -> FunctionKey:
    """The key of a frame's or a table row's function."""
    if kind is FrameKind.NATIVE:
        place = _VERSION.sub(".so", module.rpartition("/")[2])
    else:
        place = short_path(file)
    return FunctionKey(kind, name, place)


@dataclass(frozen=True, slots=True)
class StackChange:
    """One stack in two profiles, as it is in the second, or as it was if it is gone."""

    stack: Stack
    before: Values
    after: Values


def compare(before: Profile, after: Profile) -> list[StackChange]:
    """All stacks of both, summed over processes and devices: those of ``after`` in its order, then
    those that are gone."""
    keys = _Keys()
    sums: dict[_Key, tuple[Stack, Values, Values]] = {}
    for sample in after.samples:
        key = keys.of(sample.stack)
        stack, _, then = sums.get(key, (sample.stack, Values(), Values()))
        sums[key] = stack, Values(), then.plus(sample.values)
    for sample in align(before, after).samples:
        key = keys.of(sample.stack)
        stack, was, then = sums.get(key, (sample.stack, Values(), Values()))
        sums[key] = stack, was.plus(sample.values), then
    return [StackChange(*change) for change in sums.values()]


def align(before: Profile, after: Profile) -> Profile:
    """``before`` with each stack that ``after`` has, too, as it is there: equal stacks are equal
    values then, lines and paths included."""
    keys = _Keys()
    new, old = _by_functions(keys, after), _by_functions(keys, before)
    matched: dict[_Key, Stack] = {}
    for functions, was in old.items():
        now = new.get(functions, {})
        for lines in was.keys() & now.keys():
            matched[functions, lines] = now[lines]
        pairs = _pairs(sorted(was.keys() - now.keys()), sorted(now.keys() - was.keys()))
        for lines, other in pairs:
            matched[functions, lines] = now[other]
    samples = [
        replace(sample, stack=matched.get(keys.of(sample.stack), sample.stack))
        for sample in before.samples
    ]
    return replace(before, samples=tuple(samples))


def difference(before: Profile, after: Profile) -> Profile:
    """``after`` and, negated and labelled as pprof's ``-diff_base`` does, ``before``: pprof shows
    the difference, in per cent of the base. It has no processes, failures or series.

    Raises UsageError if one of them is a difference already."""
    for profile in (before, after):
        refuse_negative(profile)
    base = [
        Sample(
            sample.stack,
            tuple(sorted((*sample.labels, BASE_LABEL))),
            Values(*(-value for value in sample.values)),
        )
        for sample in align(before, after).samples
    ]
    only_samples = [
        replace(profile, samples=tuple(samples), processes=(), failures=(), series=())
        for profile, samples in ((after, after.samples), (before, base))
    ]
    return replace(merge(only_samples), time_ns=after.time_ns, duration_ns=after.duration_ns)


def refuse_negative(profile: Profile) -> None:
    """Raises UsageError for a profile that is a difference itself."""
    if any(min(sample.values) < 0 for sample in profile.samples):
        raise UsageError("a profile with negative values (a difference) cannot be compared")


_Functions = tuple[int, ...]
_Lines = tuple[int, ...]
_Key = tuple[_Functions, _Lines]


class _Keys:
    """Functions and lines of stacks, as numbers."""

    def __init__(self) -> None:
        self._frames = FrameNumbers()
        self._numbers: dict[FunctionKey, int] = {}
        self._of_frame: list[tuple[int, int]] = []
        self._known: dict[int, tuple[Stack, _Key]] = {}

    def of(self, stack: Stack) -> _Key:
        known = self._known.get(id(stack))
        if known is not None:
            return known[1]
        frames = [self._frames.number(frame) for frame in stack]
        for frame in self._frames.frames[len(self._of_frame) :]:
            function = function_key(frame.kind, frame.name, frame.file, frame.module)
            number = self._numbers.setdefault(function, len(self._numbers))
            self._of_frame.append((number, frame.line))
        found = [self._of_frame[frame] for frame in frames]
        key = tuple(number for number, _ in found), tuple(line for _, line in found)
        self._known[id(stack)] = stack, key  # with the stack, so that no identity is reused
        return key


def _by_functions(keys: _Keys, profile: Profile) -> dict[_Functions, dict[_Lines, Stack]]:
    found: dict[_Functions, dict[_Lines, Stack]] = {}
    for sample in profile.samples:
        functions, lines = keys.of(sample.stack)
        found.setdefault(functions, {}).setdefault(lines, sample.stack)
    return found


def _pairs(was: Sequence[_Lines], now: Sequence[_Lines]) -> Iterable[tuple[_Lines, _Lines]]:
    """Which lines became which; both in order, none in both."""
    if not now:
        return []
    if len(was) == len(now) or len(was) * len(now) > MAX_COMPARED:
        return zip(was, now, strict=False)
    free = list(now)
    pairs = []
    for lines in was:
        nearest = min(free or now, key=lambda other: _distance(lines, other))
        if free:
            free.remove(nearest)
        pairs.append((lines, nearest))
    return pairs


def _distance(a: _Lines, b: _Lines) -> int:
    return sum(abs(x - y) for x, y in zip(a, b, strict=True))
