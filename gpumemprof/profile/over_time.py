"""Arithmetic on series: step functions of bytes over time. Pure functions."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

Points = Sequence[tuple[int, int]]
"""(time in ns, bytes from then on), times rising; 0 bytes before the first."""


def total(parts: Iterable[Points]) -> list[tuple[int, int]]:
    """The sum of several step functions, at every time at which one of them changes."""
    changes = heapq.merge(*map(_changes, parts))
    summed: list[tuple[int, int]] = []
    held = 0
    for time_ns, change in changes:
        held += change
        if summed and summed[-1][0] == time_ns:
            summed[-1] = time_ns, held
        else:
            summed.append((time_ns, held))
    return summed


def _changes(points: Points) -> Iterable[tuple[int, int]]:
    held = 0
    for time_ns, size in points:
        yield time_ns, size - held
        held = size


def highest(points: Points, start: int, end: int, columns: int) -> list[int]:
    """The most bytes in each of ``columns`` equal parts of [start, end]; what lies outside of it
    counts to its first and last part. What was held before a change counts to its part as well,
    unless the part begins with the change."""
    most = [0] * columns
    held, at = 0, 0
    for time_ns, size in points:
        column = column_of(time_ns, start, end, columns)
        begins = (time_ns - start) * columns % max(end - start, 1) == 0
        for between in range(at + 1, column if begins else column + 1):
            most[between] = held
        most[column] = max(most[column], size)
        held, at = size, column
    for after in range(at + 1, columns):
        most[after] = held
    return most


def column_of(time_ns: int, start: int, end: int, columns: int) -> int:
    """In which of ``columns`` equal parts of [start, end] a time is, from 0."""
    column = (time_ns - start) * columns // max(end - start, 1)
    return min(max(column, 0), columns - 1)
