"""The JSON in comments of a pprof file (pprof_comments.py), read.

Anybody may have written it: every value is checked for its type. What cannot be read raises
UsageError, from ``field``, ``entries`` and ``parse``; readers of single values raise TypeError or
ValueError, which those turn into it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any, TypeVar

from gpumemprof.errors import UsageError
from gpumemprof.profile.model import Failure, History, Labels, ProcessInfo, Series
from gpumemprof.profile.text import printable, valid_utf8
from gpumemprof.stack.frames import Frame, FrameKind

_INT64 = range(-(2**63), 2**63)
T = TypeVar("T")

MAX_POINTS = 1 << 20
"""Points of all series and histories of a file."""


def damaged(topic: str) -> UsageError:
    """The error for a line that cannot be read."""
    return UsageError(f"the profile is damaged: its note about {topic!r} cannot be read")


def parse(topic: str, text: str) -> Any:
    """The JSON of a line."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise damaged(printable(topic)[:40]) from error


def field(line: Any, name: str, read_value: Callable[[Any], T]) -> T:
    """One value of an object."""
    if not isinstance(line, dict) or name not in line:
        raise damaged(name)
    try:
        return read_value(line[name])
    except (TypeError, ValueError) as error:
        raise damaged(name) from error


def entries(line: Any, read_value: Callable[[Any], T]) -> Iterator[tuple[str, T]]:
    """Names and values of an object."""
    if not isinstance(line, dict):
        raise damaged("counters")
    for name in line:
        yield valid_utf8(name), field(line, name, read_value)


def integer(value: Any) -> int:
    """An integer of 64 bits."""
    if type(value) is not int or value not in _INT64:
        raise TypeError
    return value


def _optional_integer(value: Any) -> int | None:
    return None if value is None else integer(value)


def string(value: Any) -> str:
    """A text."""
    if not isinstance(value, str):
        raise TypeError
    return valid_utf8(value)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError
    return value


def _labels(value: Any) -> Labels:
    return tuple((string(key), string(text)) for key, text in map(_list, _list(value)))


def _pairs(value: Any) -> tuple[tuple[int, int], ...]:
    return tuple((integer(index), integer(size)) for index, size in map(_list, _list(value)))


def _frame(value: Any) -> Frame:
    name, kind, file, line, module = _list(value)
    return Frame(string(name), FrameKind(kind), string(file), integer(line), string(module))


def failure_of(line: Any) -> Failure:
    """A ``Failure``."""
    return Failure(
        time_ns=field(line, "time_ns", integer),
        labels=field(line, "labels", _labels),
        error=field(line, "error", integer),
        requested=field(line, "requested", integer),
        free=field(line, "free", _optional_integer),
        total=field(line, "total", _optional_integer),
        in_use=field(line, "in_use", integer),
        stack=field(line, "stack", lambda value: tuple(map(_frame, _list(value)))),
        live=field(line, "live", _pairs),
        live_omitted=field(line, "live_omitted", integer),
    )


def series_of(line: Any) -> Series:
    """A ``Series``."""
    return Series(field(line, "labels", _labels), field(line, "points", _points))


def refuse_too_many_points(lines: Iterable[Any]) -> None:
    """Raises UsageError if the lines of series and histories have more than ``MAX_POINTS``."""
    steps = (line.get("points") for line in lines if isinstance(line, dict))
    if sum(len(each) for each in steps if isinstance(each, list)) > 2 * MAX_POINTS:
        raise UsageError(f"the profile has more than {MAX_POINTS:,} points in time, the limit")


def history_of(line: Any) -> History:
    """A ``History``."""
    return History(field(line, "sample", integer), field(line, "points", _points))


def _points(value: Any) -> tuple[tuple[int, int], ...]:
    """Times rise and bytes are not negative, so that whoever draws them need not look."""
    numbers = list(map(integer, _list(value)))
    if len(numbers) % 2 or any(step < 1 for step in numbers[2::2]):
        raise ValueError
    points = tuple(zip(accumulate(numbers[::2]), accumulate(numbers[1::2]), strict=True))
    if points and (points[-1][0] not in _INT64 or not _are_sizes(size for _, size in points)):
        raise ValueError
    return points


def _are_sizes(values: Iterable[int]) -> bool:
    return all(0 <= value < 2**63 for value in values)


def process_of(line: Any) -> ProcessInfo:
    """A ``ProcessInfo``."""
    return ProcessInfo(
        pid=field(line, "pid", integer),
        comm=field(line, "comm", string),
        command=field(line, "command", string),
        started=field(line, "started", integer),
        ended=field(line, "ended", _optional_integer),
        end_reason=field(line, "end_reason", string),
        in_use=field(line, "in_use", integer),
        peak=field(line, "peak", integer),
        pinned_in_use=field(line, "pinned_in_use", integer),
        pinned_peak=field(line, "pinned_peak", integer),
        driver=field(line, "driver", _optional_integer),
    )
