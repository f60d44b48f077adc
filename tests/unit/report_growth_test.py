"""Slow leaks in the report."""

from __future__ import annotations

import io
import re
from dataclasses import replace

from profile_examples import KV_CACHE, MIB, SECOND, START, TRAINING, WEIGHTS, labels, python
from rich.cells import cell_len
from rich.console import Console

from gpumemprof.profile.model import History, Profile, Sample, Values
from gpumemprof.report.growth import print_growth
from gpumemprof.report.json_report import report
from gpumemprof.report.table import make_console

SAMPLES = (
    Sample(WEIGHTS, labels(), Values(1, 1, 1, 1, 1)),
    Sample(KV_CACHE, labels(), Values(1, 1, 1, 1, 1)),
    Sample(KV_CACHE, labels(kind="pinned_host"), Values(1, 1, 1, 1, 1)),
)


def recording(*rates: int) -> Profile:
    """Looks at each sample every 10 s, for 5 minutes; rates in MiB a minute."""
    histories = tuple(
        History(
            at, tuple((START + n * 10 * SECOND, (100 + n * rate) * MIB // 6) for n in range(31))
        )
        for at, rate in enumerate(rates)
    )
    return replace(TRAINING, samples=SAMPLES, failures=(), histories=histories)


def shown(profile: Profile, width: int | None = None, limit: int = 20) -> str:
    out = io.StringIO()
    terminal = Console(file=out, width=width, force_terminal=True, color_system=None)
    print_growth(profile, terminal if width else make_console(out), limit)
    return out.getvalue()


def rows_of(text: str) -> list[list[str]]:
    lines = text.partition("file:line\n")[2].splitlines()
    return [re.split(r"  +", line.strip()) for line in lines]


def test_a_leak_is_told_with_its_evidence() -> None:
    assert rows_of(shown(recording(0, 12))) == [
        ["+12.0 MiB", "60.0 MiB", "5 min 0 s", "30 of 30", "KVCache.__init__", "/app/cache.py:20"]
    ]


def test_the_fastest_comes_first() -> None:
    text = shown(recording(6, 12))
    assert "Growing: 2 stacks whose memory in use rises steadily" in text
    assert [row[0] for row in rows_of(text)] == ["+12.0 MiB", "+6.00 MiB"]


def test_pinned_host_memory_says_so() -> None:
    ((*_, function, _),) = rows_of(shown(recording(0, 0, 3)))
    assert function == "KVCache.__init__ (pinned host memory)"


def test_where_nothing_grows_there_is_no_section() -> None:
    assert shown(recording(0, 0)) == ""
    assert shown(replace(TRAINING, histories=())) == ""


def test_what_is_not_shown_is_counted() -> None:
    assert "and 1 more stack (--format json has all)" in shown(recording(6, 12), limit=1)


def test_eighty_columns_suffice() -> None:
    assert all(cell_len(line) <= 80 for line in shown(recording(6, 12, 3), 80).splitlines())


SAME_FUNCTION = tuple(
    Sample((*KV_CACHE[:4], python(name, line), *KV_CACHE[4:]), labels(pid), Values(1, 1, 1, 1, 1))
    for name, line, pid in (("prefill", 8, 4242), ("decode", 9, 4242), ("decode", 9, 77))
)


def test_equal_functions_are_told_apart_by_the_nearest_caller_that_differs() -> None:
    first, beneath_first, second, beneath_second = rows_of(
        shown(replace(recording(6, 12), samples=SAME_FUNCTION))
    )
    assert (first[0], beneath_first) == ("+12.0 MiB", ["← decode", "/app/train.py:9"])
    assert (second[0], beneath_second) == ("+6.00 MiB", ["← prefill", "/app/train.py:8"])
    assert first[4:] == second[4:] == ["KVCache.__init__", "/app/cache.py:20"]


def test_processes_are_told_apart_by_pid() -> None:
    growing = replace(recording(0, 12, 6), samples=SAME_FUNCTION)
    assert [row[4:] for row in rows_of(shown(growing))] == [
        ["4242", "KVCache.__init__", "/app/cache.py:20"],
        ["77", "KVCache.__init__", "/app/cache.py:20"],
    ]
    assert all(cell_len(line) <= 80 for line in shown(growing, 80).splitlines())


def test_json_has_the_points() -> None:
    fastest, slower = report(recording(6, 12))["growth"]
    assert fastest["bytes_per_minute"] == 12 * MIB
    assert (slower["grown"], slower["rising"], slower["since_ns"]) == (30 * MIB, 1.0, START)
    assert len(slower["points"]) == 31
    assert fastest["stack"][0]["name"] == "cudaMalloc"
