"""A profile as speedscope's file format: one profile for each sample type, frames shared."""

from __future__ import annotations

import json
from typing import Any

from gpumemprof.profile.model import SAMPLE_TYPES, Profile
from gpumemprof.profile.text import printable, short_path, valid_utf8
from gpumemprof.profile.weighted import TYPE_NAMES, weighted
from gpumemprof.stack.frames import Frame, FrameKind

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_UNITS = {"bytes": "bytes", "count": "none"}


def encode(profile: Profile, name: str = "gpumemprof") -> str:
    """The JSON of ``profile``, which opens with the bytes in use; ``name``: its title.

    Stacks begin with their process; stacks whose value is 0 are left out. Every sample is in it:
    filter by kind before, or see pinned host memory under its own root frame.
    Raises UsageError for negative values."""
    frames: dict[Frame, int] = {}
    profiles = [_profile(profile, type_, unit, frames) for type_, unit in SAMPLE_TYPES]
    return json.dumps(
        {
            "$schema": SCHEMA,
            "exporter": "gpumemprof",
            "name": printable(name),
            "activeProfileIndex": TYPE_NAMES.index("inuse_space"),
            "shared": {"frames": [_frame(frame) for frame in frames]},
            "profiles": profiles,
        },
        separators=(",", ":"),
    )


def _profile(
    profile: Profile, sample_type: str, unit: str, frames: dict[Frame, int]
) -> dict[str, Any]:
    samples: dict[tuple[int, ...], int] = {}
    for stack, value in weighted(profile, sample_type):
        key = tuple(frames.setdefault(frame, len(frames)) for frame in stack)
        samples[key] = samples.get(key, 0) + value
    return {
        "type": "sampled",
        "name": sample_type,
        "unit": _UNITS[unit],
        "startValue": 0,
        "endValue": sum(samples.values()),
        "samples": [list(key) for key in samples],
        "weights": list(samples.values()),
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
