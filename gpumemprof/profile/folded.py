"""A profile as folded stacks, for flamegraph.pl, inferno, speedscope and Pyroscope.

One line for each stack: frames from the root, joined by ``;``, a space, the value::

    python (4242);<module> (/app/train.py:40);main (/app/train.py:31);cudaMalloc 1048576

- The process comes first, as in perf's folded stacks, so processes stay apart.
- A Python frame is ``function (file:line)`` as in py-spy's, the file as import statements see it;
  a native frame is its name alone, as in perf's.
- In names ``;`` becomes ``:`` (as perf's tools do) and control characters become escapes.
- Lines are at most ``MAX_LINE`` bytes, since Pyroscope reads no more: long names are cut, and of
  too deep a stack the middle is left out, where a frame says how many frames are missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gpumemprof.errors import UsageError
from gpumemprof.profile.model import TYPE_NAMES, Profile
from gpumemprof.profile.numbering import FrameNumbers
from gpumemprof.profile.text import printable, short_path, valid_utf8
from gpumemprof.profile.weighted import weighted
from gpumemprof.stack.frames import Frame, FrameKind

MAX_LINE = 60_000
"""Bytes of a line, its value not included."""

MAX_NAME = 1_000
"""Characters of a frame."""


def encode(profile: Profile, sample_type: str = "") -> str:
    """The folded stacks of ``profile`` for one sample type (by default what is held,
    ``Profile.held_type``), equal ones summed, sorted.

    Stacks whose value is 0 are left out. Every sample is in it: filter by kind before, or see
    pinned host memory under its own root frame. Raises UsageError for an unknown type and for
    negative values."""
    lines: Counter[str] = Counter()
    sample_type = sample_type or profile.held_type
    if sample_type not in TYPE_NAMES:
        raise UsageError(f"there is no sample type {sample_type!r}: use {', '.join(TYPE_NAMES)}")
    column = TYPE_NAMES.index(sample_type)
    numbers = FrameNumbers()
    names: list[str] = []
    for frames, values in weighted(profile):
        if values[column]:
            stack = [numbers.number(frame) for frame in frames]
            names += [frame_text(frame) for frame in numbers.frames[len(names) :]]
            lines[_line([names[number] for number in stack])] += values[column]
    return "".join(f"{line} {value}\n" for line, value in sorted(lines.items()))


def frame_text(frame: Frame) -> str:
    """One frame as text that holds no ``;`` and no control character."""
    text = frame.name
    if frame.kind is FrameKind.PYTHON and frame.file:
        text = f"{text} ({short_path(frame.file)}:{frame.line})"
    text = valid_utf8(printable(text)).replace(";", ":").strip()
    return text[:MAX_NAME] or "[no name]"


def _line(names: list[str]) -> str:
    line = ";".join(names)
    if _size([line]) <= MAX_LINE:
        return line
    root = _fitting(names)
    leaf = _fitting(reversed(names))
    missing = f"[{len(names) - root - leaf} frames left out]"
    return ";".join([*names[:root], missing, *names[len(names) - leaf :]])


def _fitting(names: Iterable[str]) -> int:
    """How many of ``names`` fit in not quite half a line."""
    size = count = 0
    for name in names:
        size += _size([name])
        if size > MAX_LINE // 2 - 100:
            break
        count += 1
    return count


def _size(names: Iterable[str]) -> int:
    return sum(len(name.encode()) + 1 for name in names)
