"""Step functions of bytes over time are added up and drawn in columns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpumemprof.profile.over_time import column_of, highest, total

POINTS = st.dictionaries(st.integers(0, 100), st.integers(0, 50), max_size=8).map(
    lambda points: sorted(points.items())
)


def at(points: list[tuple[int, int]], time_ns: int) -> int:
    """What is held then, by looking at every point."""
    return next((size for when, size in reversed(points) if when <= time_ns), 0)


def test_two_devices_add_up() -> None:
    assert total([[(1, 10), (5, 0)], [(3, 7)]]) == [(1, 10), (3, 17), (5, 7)]


def test_changes_at_one_time_are_one_point() -> None:
    assert total([[(1, 10), (5, 4)], [(5, 6)]]) == [(1, 10), (5, 10)]


@given(st.lists(POINTS, max_size=4))
def test_the_sum_is_right_at_any_time(parts: list[list[tuple[int, int]]]) -> None:
    summed = total(parts)
    for time_ns in range(102):
        assert at(summed, time_ns) == sum(at(points, time_ns) for points in parts)


def test_a_short_peak_is_seen_in_its_column() -> None:
    points = [(0, 5), (45, 90), (46, 6)]
    assert highest(points, 0, 100, 4) == [5, 90, 6, 6]


def test_a_column_shows_what_was_held_before_it_changed() -> None:
    assert highest([(0, 5), (50, 90), (75, 0)], 0, 100, 4) == [5, 5, 90, 0]


def test_what_lies_outside_counts_to_the_first_and_last_column() -> None:
    assert highest([(-7, 3), (900, 8)], 0, 100, 3) == [3, 3, 8]


def test_nothing_and_no_time_at_all_can_be_drawn() -> None:
    assert highest([], 0, 100, 3) == [0, 0, 0]
    assert highest([(5, 1)], 5, 5, 2) == [1, 1]


@given(POINTS, st.integers(1, 20))
def test_no_column_hides_the_most(points: list[tuple[int, int]], columns: int) -> None:
    drawn = highest(points, 0, 100, columns)
    assert len(drawn) == columns
    assert max(drawn) == max((size for _, size in points), default=0)
    for time_ns, size in points:
        assert drawn[column_of(time_ns, 0, 100, columns)] >= size
