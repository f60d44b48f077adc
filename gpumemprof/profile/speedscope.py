"""A profile as speedscope's file format: one profile for each sample type, frames shared."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from gpumemprof.profile.model import SAMPLE_TYPES, TYPE_NAMES, Profile, Values
from gpumemprof.profile.numbering import FrameNumbers
from gpumemprof.profile.text import printable, short_path, valid_utf8
from gpumemprof.profile.weighted import weighted
from gpumemprof.stack.frames import Frame, FrameKind

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_UNITS = {"bytes": "bytes", "count": "none"}


def encode(profile: Profile, title: str = "gpumemprof") -> str:
    """The JSON of ``profile``, which opens with the bytes held; ``title``: of the whole.

    Stacks begin with their process; stacks whose value is 0 are left out. Every sample is in it:
    filter by kind before, or see pinned host memory under its own root frame.
    Raises UsageError for negative values."""
    numbers = FrameNumbers()
    stacks: dict[tuple[int, ...], Values] = {}
    for frames, values in weighted(profile):
        key = tuple(map(numbers.number, frames))
        known = stacks.get(key)
        stacks[key] = values if known is None else known.plus(values)
    return json.dumps(
        {
            "$schema": SCHEMA,
            "exporter": "gpumemprof",
            "name": printable(title),
            "activeProfileIndex": TYPE_NAMES.index(profile.held_type),
            "shared": {"frames": [_frame(frame) for frame in numbers.frames]},
            "profiles": [
                _profile(name, unit, [(stack, row[column]) for stack, row in stacks.items()])
                for column, (name, unit) in enumerate(SAMPLE_TYPES)
            ],
        },
        separators=(",", ":"),
    )


def _profile(
    sample_type: str, unit: str, stacks: Iterable[tuple[tuple[int, ...], int]]
) -> dict[str, Any]:
    held = [(stack, value) for stack, value in stacks if value]
    return {
        "type": "sampled",
        "name": sample_type,
        "unit": _UNITS[unit],
        "startValue": 0,
        "endValue": sum(value for _, value in held),
        "samples": [stack for stack, _ in held],
        "weights": [value for _, value in held],
    }


def _frame(frame: Frame) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": _text(frame.name) or "[no name]"}
    file = short_path(frame.file) if frame.kind is FrameKind.PYTHON else frame.file or frame.module
    if file:
        entry["file"] = _text(file)
    if frame.line > 0:
        entry["line"] = frame.line
    return entry


def _text(text: str) -> str:
    return valid_utf8(printable(text))
