"""What a profile holds beyond samples, as comments of a pprof file.

Lines for people come first; viewers print them. Lines for machines begin with
``#gpumemprof.`` (viewers hide what begins with ``#``), a topic, a space and JSON:

``format``        ``{"version": 1, "samples": count, "values": CRC-32 of all sample values}``
``completeness``  counter name -> count
``about``         name -> text
``process``       one ``ProcessInfo``; a line for each
``failure``       one ``Failure``; a line for each. Frames are ``[name, kind, file, line, module]``
                  from the leaf; they are written out because tools that rewrite a file drop
                  locations that no sample uses.
``series``        one ``Series``; a line for each. ``points`` is one list of the time and bytes of
                  the first point, then of each next one how much later and how many bytes more.
``history``       one ``History``; a line for each, ``points`` as those of ``series``.

``live`` of a failure and ``sample`` of a history are indexes of samples. A tool that merges or
filters a file keeps the comments but renumbers the samples; ``format`` tells: if it does not fit
the samples (or a merge left several), the bytes of ``live`` are moved to ``live_omitted`` and
histories are left out.
"""

from __future__ import annotations

import json
import sys
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from gpumemprof.errors import UsageError
from gpumemprof.profile.completeness import lost
from gpumemprof.profile.model import Failure, Profile, Values
from gpumemprof.profile.pprof_json import (
    damaged,
    entries,
    failure_of,
    field,
    history_of,
    integer,
    parse,
    process_of,
    refuse_too_many_points,
    series_of,
    string,
)
from gpumemprof.profile.text import printable, valid_utf8

PREFIX = "#gpumemprof."
VERSION = 1
MAX_SHOWN = 500
"""Characters of a line for people."""

PINNED_HINT = (
    "pinned host memory is in this file as well and is no GPU memory: "
    "leave it out with -tagignore=kind=pinned_host"
)


def write(profile: Profile) -> list[str]:
    """The comments of ``profile``."""
    losses = [f"incomplete: {sentence}" for sentence in lost(profile.completeness)]
    lines = losses or ["complete: nothing was lost"]
    if any(("kind", "pinned_host") in sample.labels for sample in profile.samples):
        lines.append(PINNED_HINT)
    lines += [f"{key}: {value}" for key, value in sorted(profile.about.items())]
    lines = [printable(line)[:MAX_SHOWN].lstrip("#") for line in lines]
    values = [sample.values for sample in profile.samples]
    topics: list[tuple[str, Any]] = [
        ("format", {"version": VERSION, "samples": len(values), "values": _checksum(values)}),
        ("completeness", dict(profile.completeness)),
        ("about", dict(profile.about)),
        *(("process", asdict(process)) for process in profile.processes),
        *(("failure", _failure_to_json(failure)) for failure in profile.failures),
        *(
            ("series", {"labels": series.labels, "points": _steps(series.points)})
            for series in profile.series
        ),
        *(
            ("history", {"sample": history.sample, "points": _steps(history.points)})
            for history in profile.histories
        ),
    ]
    return lines + [
        f"{PREFIX}{topic} {json.dumps(_storable(value), sort_keys=True, separators=(',', ':'))}"
        for topic, value in topics
    ]


def written_by_us(comments: Iterable[str]) -> bool:
    """Whether the comments are those of a profile of ours (merged by other tools perhaps)."""
    return any(comment.startswith(f"{PREFIX}format ") for comment in comments)


def read(comments: Iterable[str], profile: Profile) -> Profile:
    """``profile`` (its samples as they are in the file) with what the comments say.

    Raises UsageError if a line of ours is damaged or of a newer version."""
    topics: dict[str, list[Any]] = {}
    for comment in comments:
        if comment.startswith(PREFIX):
            topic, _, text = comment.removeprefix(PREFIX).partition(" ")
            topics.setdefault(topic, []).append(parse(topic, text))
    formats = topics.get("format", [])
    for line in formats:
        if field(line, "version", integer) > VERSION:
            raise UsageError("the profile was written by a newer version of gpumemprof")
    completeness: dict[str, int] = {}
    for line in topics.get("completeness", []):
        for name, count in entries(line, integer):
            completeness[name] = completeness.get(name, 0) + count
    about: dict[str, str] = {}
    for line in topics.get("about", []):
        for name, text in entries(line, string):
            about.setdefault(name, text)
    failures = tuple(failure_of(line) for line in topics.get("failure", []))
    refuse_too_many_points([*topics.get("series", []), *topics.get("history", [])])
    histories = tuple(history_of(line) for line in topics.get("history", []))
    values = [sample.values for sample in profile.samples]
    if not _fits(formats, values):
        failures = tuple(_without_live(failure) for failure in failures)
        histories = ()
    for failure in failures:
        if any(not 0 <= index < len(values) for index, _ in failure.live):
            raise damaged("failure")
    if any(not 0 <= history.sample < len(values) for history in histories):
        raise damaged("history")
    return replace(
        profile,
        completeness=completeness,
        about=about,
        processes=tuple(process_of(line) for line in topics.get("process", [])),
        failures=failures,
        series=tuple(series_of(line) for line in topics.get("series", [])),
        histories=histories,
    )


def _fits(formats: Sequence[Any], values: Sequence[Values]) -> bool:
    return len(formats) == 1 and formats[0] == {
        **formats[0],
        "samples": len(values),
        "values": _checksum(values),
    }


def _checksum(values: Sequence[Values]) -> int:
    numbers = array("q", (number & (2**63 - 1) for row in values for number in row))
    if sys.byteorder == "big":
        numbers.byteswap()
    return zlib.crc32(numbers.tobytes())


def _without_live(failure: Failure) -> Failure:
    omitted = failure.live_omitted + sum(size for _, size in failure.live)
    return replace(failure, live=(), live_omitted=omitted)


def _storable(value: Any) -> Any:
    """``value`` with every text such that the reader gets it back as it is written elsewhere."""
    if isinstance(value, str):
        return valid_utf8(value)
    if isinstance(value, Mapping):
        return {valid_utf8(key): _storable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_storable(item) for item in value]
    return value


def _failure_to_json(failure: Failure) -> dict[str, Any]:
    return {
        "time_ns": failure.time_ns,
        "labels": failure.labels,
        "error": failure.error,
        "requested": failure.requested,
        "free": failure.free,
        "total": failure.total,
        "in_use": failure.in_use,
        "stack": [[f.name, f.kind.value, f.file, f.line, f.module] for f in failure.stack],
        "live": failure.live,
        "live_omitted": failure.live_omitted,
    }


def _steps(points: Iterable[tuple[int, int]]) -> list[int]:
    steps: list[int] = []
    last_time = last_size = 0
    for time_ns, size in points:
        steps += time_ns - last_time, size - last_size
        last_time, last_size = time_ns, size
    return steps
