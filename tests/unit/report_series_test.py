"""Memory over time, in a terminal and in a pipe."""

from __future__ import annotations

import io
import re
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from profile_examples import GIB, HELD_OVER_TIME, MIB, SECOND, START, TRAINING, labels, profiles
from rich.cells import cell_len
from rich.console import Console

from gpumemprof.profile.model import Profile, Series
from gpumemprof.report.series import print_series
from gpumemprof.report.table import make_console


def series(*points: tuple[float, int], **fields: object) -> Series:
    """Points in seconds from the start."""
    told = tuple(pair for pair in labels(**fields) if pair[0] != "call")  # type: ignore[arg-type]
    return Series(told, tuple((START + int(at * SECOND), size) for at, size in points))


def recording(*found: Series, seconds: int = 48, **fields: object) -> Profile:
    return replace(
        TRAINING,
        series=found,
        duration_ns=seconds * SECOND,
        **{"failures": (), **fields},  # type: ignore[arg-type]
    )


def failed(at: float, **fields: object):
    told = labels(**fields)  # type: ignore[arg-type]
    return replace(TRAINING.failures[0], time_ns=START + int(at * SECOND), labels=told)


def piped(profile: Profile, limit: int = 20, encoding: str = "utf-8") -> str:
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    print_series(profile, make_console(out), limit)
    out.seek(0)
    return out.read()


def in_terminal(profile: Profile, width: int) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None)
    print_series(profile, console, 20)
    return out.getvalue()


def chart_of(text: str, name: str) -> str:
    """The 48 columns of a line in a pipe."""
    (line,) = [line for line in text.splitlines() if re.match(rf"{re.escape(name)}  ", line)]
    return line.rpartition("  ")[0][-48:]


class TestALine:
    def test_it_rises_and_falls_with_what_is_held(self):
        text = piped(recording(series((0, 2 * GIB), (12, 4 * GIB), (24, 8 * GIB), (36, 1 * GIB))))
        assert chart_of(text, "python (4242)") == "▂" * 12 + "▄" * 12 + "▲" + "█" * 11 + "▁" * 12

    def test_it_tells_the_peak_and_when_it_was_reached(self):
        text = piped(recording(series((3, 2 * GIB), (12.5, 8 * GIB), (13, GIB))))
        assert "8.00 GiB at 12.5 s" in text
        assert text.startswith("\nMemory over time, 0 to 48.0 s (▲ peak)\n")

    def test_a_peak_of_a_millisecond_is_seen(self):
        text = piped(recording(series((0, GIB), (30, 8 * GIB), (30.001, GIB))))
        assert chart_of(text, "python (4242)")[30] == "▲"

    def test_little_is_more_than_nothing(self):
        text = piped(recording(series((0, 8 * GIB), (24, 1), (36, 0), (47, 1))))
        assert chart_of(text, "python (4242)").endswith("▁" * 12 + " " * 11 + "▁")

    def test_a_failed_allocation_is_marked(self):
        text = piped(recording(series((0, GIB)), failures=(failed(40.5),)))
        assert chart_of(text, "python (4242)")[40] == "×"
        assert "(▲ peak, × failed allocation)" in text


class TestWhichLines:
    def test_gpu_memory_and_pinned_host_memory_are_apart(self):
        text = piped(TRAINING)
        assert "python (4242)         " in text
        assert re.search(r"python \(4242\) pinned +▲█+ +2.00 GiB at 2.0 s", text)

    def test_kinds_of_gpu_memory_on_one_device_are_one_line(self):
        text = piped(recording(series((1, GIB)), series((2, 2 * GIB), kind="managed")))
        assert "3.00 GiB at 2.0 s" in text
        assert len(text.splitlines()) == 3

    def test_each_device_has_a_line_if_there_are_several(self):
        text = piped(recording(series((1, GIB)), series((2, 2 * GIB), device=1)))
        assert re.findall(r"^python \(4242\) device (\d)", text, re.MULTILINE) == ["1", "0"]

    def test_a_failure_is_marked_on_its_device(self):
        both = series((1, GIB)), series((2, 2 * GIB), device=1)
        text = piped(recording(*both, failures=(failed(20, device=1),)))
        assert "×" in chart_of(text, "python (4242) device 1")
        assert "×" not in chart_of(text, "python (4242) device 0")

    def test_a_failure_on_a_device_that_holds_nothing_is_marked_where_memory_is_held(self):
        text = piped(recording(series((1, GIB)), failures=(failed(20, device=3),)))
        assert "×" in chart_of(text, "python (4242)")

    def test_the_largest_come_first_and_the_rest_is_counted(self):
        many = [series((1, (n + 1) * MIB), pid=n) for n in range(14)]
        text = piped(recording(*many))
        assert re.findall(r"^python \((\d+)\)", text, re.MULTILINE)[:2] == ["13", "12"]
        assert "and 4 more lines (--format json has all)" in text
        assert "and 12 more lines" in piped(recording(*many), limit=2)

    def test_a_profile_that_does_not_tell_has_no_chart(self):
        assert piped(recording()) == ""
        assert piped(recording(series((1, 0)))) == ""

    def test_a_pod_is_named(self):
        pod = (*HELD_OVER_TIME.labels, ("namespace", "ml"), ("pod", "trainer-0"))
        text = piped(recording(Series(tuple(sorted(pod)), ((START, GIB),))))
        assert "ml/trainer-0 python (4242)" in text


class TestTerminals:
    def test_one_that_knows_no_blocks_gets_ascii(self):
        profile = recording(series((0, 2 * GIB), (24, 8 * GIB)), failures=(failed(47.5),))
        text = piped(profile, encoding="latin-1")
        assert chart_of(text, "python (4242)") == ":" * 24 + "^" + "@" * 22 + "x"
        assert "(^ peak, x failed allocation)" in text
        assert text.isascii()

    @settings(deadline=None)
    @given(st.integers(60, 200))
    def test_no_line_is_wider(self, width):
        long = series((1, GIB), pid=7)
        named = replace(long, labels=(("comm", "a-program-with-a-long-name" * 3), ("pid", "7")))
        text = in_terminal(recording(series((1, GIB)), named, failures=(failed(5),)), width)
        assert len(text.splitlines()) == 4
        assert max(map(cell_len, text.splitlines())) <= width

    def test_eighty_columns_are_used(self):
        text = in_terminal(TRAINING, 80)
        assert all(cell_len(line) <= 80 for line in text.splitlines())
        assert max(cell_len(line) for line in text.splitlines()) > 70

    def test_names_of_programs_do_nothing_to_the_terminal(self):
        hostile = (("comm", "a\x1b[31m\n[bold]x\u202e"), ("pid", "7"))
        text = piped(recording(Series(hostile, ((START, GIB),))))
        assert r"a\x1b[31m\n[bold]x\u202e (7)" in text

    @settings(deadline=None)
    @given(profiles())
    def test_any_profile_can_be_drawn(self, profile):
        in_terminal(profile, 80)
        piped(profile)
