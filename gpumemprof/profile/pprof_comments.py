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

``live`` of a failure are indexes of samples. A tool that merges or filters a file keeps the
comments but renumbers the samples; ``format`` tells: if it does not fit the samples (or a merge
left several), the bytes of ``live`` are moved to ``live_omitted``.
"""

from __future__ import annotations

import json
import sys
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import accumulate
from typing import Any, TypeVar

from gpumemprof.errors import UsageError
from gpumemprof.profile.completeness import lost
from gpumemprof.profile.model import Failure, Labels, ProcessInfo, Profile, Series, Values
from gpumemprof.profile.text import printable, valid_utf8
from gpumemprof.stack.frames import Frame, FrameKind

PREFIX = "#gpumemprof."
VERSION = 1
MAX_SHOWN = 500
"""Characters of a line for people."""

PINNED_HINT = (
    "pinned host memory is in this file as well and is no GPU memory: "
    "leave it out with -tagignore=kind=pinned_host"
)

_INT64 = range(-(2**63), 2**63)
T = TypeVar("T")


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
        *(("series", _series_to_json(series)) for series in profile.series),
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
            topics.setdefault(topic, []).append(_parse(topic, text))
    formats = topics.get("format", [])
    for line in formats:
        if _field(line, "version", _integer) > VERSION:
            raise UsageError("the profile was written by a newer version of gpumemprof")
    completeness: dict[str, int] = {}
    for line in topics.get("completeness", []):
        for name, count in _entries(line, _integer):
            completeness[name] = completeness.get(name, 0) + count
    about: dict[str, str] = {}
    for line in topics.get("about", []):
        for name, text in _entries(line, _text):
            about.setdefault(name, text)
    failures = tuple(_failure(line) for line in topics.get("failure", []))
    values = [sample.values for sample in profile.samples]
    if not _fits(formats, values):
        failures = tuple(_without_live(failure) for failure in failures)
    for failure in failures:
        if any(not 0 <= index < len(values) for index, _ in failure.live):
            raise _damaged("failure")
    return replace(
        profile,
        completeness=completeness,
        about=about,
        processes=tuple(_process(line) for line in topics.get("process", [])),
        failures=failures,
        series=tuple(_series(line) for line in topics.get("series", [])),
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


def _series_to_json(series: Series) -> dict[str, Any]:
    steps: list[int] = []
    last_time = last_size = 0
    for time_ns, size in series.points:
        steps += time_ns - last_time, size - last_size
        last_time, last_size = time_ns, size
    return {"labels": series.labels, "points": steps}


# What follows reads JSON that anybody may have written: every value is checked for its type.


def _damaged(topic: str) -> UsageError:
    return UsageError(f"the profile is damaged: its note about {topic!r} cannot be read")


def _parse(topic: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(printable(topic)[:40]) from error


def _field(line: Any, name: str, read_value: Callable[[Any], T]) -> T:
    if not isinstance(line, dict) or name not in line:
        raise _damaged(name)
    try:
        return read_value(line[name])
    except (TypeError, ValueError) as error:
        raise _damaged(name) from error


def _entries(line: Any, read_value: Callable[[Any], T]) -> Iterator[tuple[str, T]]:
    if not isinstance(line, dict):
        raise _damaged("counters")
    for name in line:
        yield valid_utf8(name), _field(line, name, read_value)


def _integer(value: Any) -> int:
    if type(value) is not int or value not in _INT64:
        raise TypeError
    return value


def _optional_integer(value: Any) -> int | None:
    return None if value is None else _integer(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return valid_utf8(value)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError
    return value


def _labels(value: Any) -> Labels:
    return tuple((_text(key), _text(text)) for key, text in map(_list, _list(value)))


def _pairs(value: Any) -> tuple[tuple[int, int], ...]:
    return tuple((_integer(index), _integer(size)) for index, size in map(_list, _list(value)))


def _frame(value: Any) -> Frame:
    name, kind, file, line, module = _list(value)
    return Frame(_text(name), FrameKind(kind), _text(file), _integer(line), _text(module))


def _failure(line: Any) -> Failure:
    return Failure(
        time_ns=_field(line, "time_ns", _integer),
        labels=_field(line, "labels", _labels),
        error=_field(line, "error", _integer),
        requested=_field(line, "requested", _integer),
        free=_field(line, "free", _optional_integer),
        total=_field(line, "total", _optional_integer),
        in_use=_field(line, "in_use", _integer),
        stack=_field(line, "stack", lambda value: tuple(map(_frame, _list(value)))),
        live=_field(line, "live", _pairs),
        live_omitted=_field(line, "live_omitted", _integer),
    )


def _series(line: Any) -> Series:
    return Series(_field(line, "labels", _labels), _field(line, "points", _points))


def _points(value: Any) -> tuple[tuple[int, int], ...]:
    """Times rise and bytes are not negative, so that whoever draws them need not look."""
    numbers = list(map(_integer, _list(value)))
    if len(numbers) % 2 or any(step < 1 for step in numbers[2::2]):
        raise ValueError
    points = tuple(zip(accumulate(numbers[::2]), accumulate(numbers[1::2]), strict=True))
    if points and (points[-1][0] not in _INT64 or not _are_sizes(size for _, size in points)):
        raise ValueError
    return points


def _are_sizes(values: Iterable[int]) -> bool:
    return all(0 <= value < 2**63 for value in values)


def _process(line: Any) -> ProcessInfo:
    return ProcessInfo(
        pid=_field(line, "pid", _integer),
        comm=_field(line, "comm", _text),
        command=_field(line, "command", _text),
        started=_field(line, "started", _integer),
        ended=_field(line, "ended", _optional_integer),
        end_reason=_field(line, "end_reason", _text),
        in_use=_field(line, "in_use", _integer),
        peak=_field(line, "peak", _integer),
        pinned_in_use=_field(line, "pinned_in_use", _integer),
        pinned_peak=_field(line, "pinned_peak", _integer),
        driver=_field(line, "driver", _optional_integer),
    )
