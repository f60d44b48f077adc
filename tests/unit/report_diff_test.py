"""What a person reads when two profiles are compared."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from diff_examples import AFTER, BEFORE, MALLOC, METRICS, WEIGHTS, held, profile, stack
from hypothesis import given, settings
from profile_examples import GIB, MIB, SECOND, SITE, START, TRAINING, native, profiles, python
from rich.cells import cell_len
from rich.console import Console

from gpumemprof.profile.model import Profile
from gpumemprof.report import units
from gpumemprof.report.changes import Part, largest, parts, percent, status
from gpumemprof.report.diff import render
from gpumemprof.report.json_diff import report
from gpumemprof.report.table import make_console

OTHER = (MALLOC, python("elsewhere", 1, "/opt/other.py"))
PINNED = {"kind": "pinned_host"}


def shown(before: Profile = BEFORE, after: Profile = AFTER, **options: object) -> str:
    out = io.StringIO()
    render(before, after, make_console(out), **options)  # type: ignore[arg-type]
    return out.getvalue()


def rows_of(text: str) -> list[list[str]]:
    """Cells of the table of functions."""
    lines = text.partition("file:line\n")[2].splitlines()
    cells = [re.split(r"  +", line.strip()) for line in lines]
    return [row for row in cells if len(row) > 3]


def gpu(before: Profile = BEFORE, after: Profile = AFTER, type_: str = "") -> Part:
    return next(parts(before, after, type_))


class TestTable:
    def test_it_says_what_is_compared(self):
        text = shown(names=("a.pb.gz", "b.pb.gz"))
        first, second, *_ = text.splitlines()
        assert first == ("before  a.pb.gz  2026-01-01 00:00:00 UTC for 1 min 0 s  python train.py")
        assert second.endswith("python train.py --fixed")

    def test_profiles_of_two_programs_are_told_to_be_that(self):
        other = replace(AFTER, samples=(replace(AFTER.samples[0], stack=OTHER),))
        assert "have no function in common" in shown(BEFORE, other)
        assert "have no function in common" not in shown()
        assert "have no function in common" not in shown(BEFORE, replace(AFTER, samples=()))

    def test_totals_are_readable_and_exact(self):
        text = shown()
        assert re.search(r"GPU memory in use +1.18 GiB +1.00 GiB +-184 MiB +-15.2%\n", text)
        assert re.search(r"  exactly +1,266,679,808 +1,073,741,824 +-192,937,984\n", text)

    def test_functions_that_changed_are_told_the_growth_first(self):
        assert rows_of(shown()) == [
            ["+4.00 MiB", "new", "-", "4.00 MiB", "Metrics.keep", "/app/train.py:70"],
            ["-8.00 MiB", "gone", "8.00 MiB", "-", "Sampler.logits", "/app/train.py:40"],
            ["-180 MiB", "-90.0%", "200 MiB", "20.0 MiB", "Cache.insert", "/app/train.py:33"],
        ]

    def test_nothing_is_left_out_without_a_word(self):
        assert "1 shrank, 1 is new, 1 is gone; 1 function did not change\n" in shown()
        limited = shown(limit=1)
        assert [row[4] for row in rows_of(limited)] == ["Cache.insert"]
        assert "1 function did not change; 2 not shown (--limit)" in limited

    def test_the_order_can_be_chosen(self):
        def names(sort: str) -> list[str]:
            return [row[4] for row in rows_of(shown(sort=sort))]

        assert names("before") == ["Cache.insert", "Sampler.logits", "Metrics.keep"]
        assert names("after") == ["Cache.insert", "Metrics.keep", "Sampler.logits"]
        assert names("name") == ["Cache.insert", "Metrics.keep", "Sampler.logits"]

    def test_callers_are_compared_by_total(self):
        rows = {row[4]: row for row in rows_of(shown(by="total"))}
        assert rows["main"][:4] == ["-184 MiB", "-15.2%", "1.18 GiB", "1.00 GiB"]
        assert rows["serve"][0] == "-180 MiB"
        assert "load" not in rows

    def test_native_code_beneath_python_in_one_of_the_two_only_is_compared_with_itself(self):
        evaluate = native("Engine::evaluate", "/lib/libtorch.so")
        forward = held((MALLOC, evaluate, python("train", 3)), 100 * MIB)
        backward = held((MALLOC, evaluate, native("start_thread", "/lib/libc.so.6")), 50 * MIB)
        text = shown(profile(forward), profile(forward, backward), by="total")
        rows = {row[4]: row for row in rows_of(text)}
        assert rows["Engine::evaluate"][:4] == ["+50.0 MiB", "+50.0%", "100 MiB", "150 MiB"]

    def test_stacks_can_be_shown(self):
        text = shown(stacks=True, limit=1)
        assert "-180 MiB  -90.0%  200 MiB before, 20.0 MiB after\n  cudaMalloc" in text
        assert re.search(r"  Cache.insert +/app/train.py:33\n  serve +/app/train.py:53\n", text)
        assert "1 stack did not change; 2 not shown (--limit)" in text

    def test_equal_profiles_have_no_difference(self):
        assert "no difference; 3 functions did not change" in shown(BEFORE, BEFORE)

    def test_what_is_missing_is_told_of_both(self):
        lost = replace(BEFORE, completeness={"events_lost": 3})
        assert "could be recorded before\n  3 events were lost" in shown(lost, AFTER)
        assert "could be recorded after\n  3 events were lost" in shown(AFTER, lost)

    def test_a_function_in_other_files_of_one_package_is_one(self):
        was = profile(held(stack(("f", 5), file=f"{SITE}/torch/nn.py"), GIB))
        now = profile(held(stack(("f", 9), file="/usr/lib/python3/dist-packages/torch/nn.py"), 1))
        assert rows_of(shown(was, now))[0][4:] == ["f", "torch/nn.py:9"]

    def test_eighty_columns_suffice(self):
        out = io.StringIO()
        console = Console(file=out, width=80, force_terminal=True, color_system=None)
        render(TRAINING, AFTER, console, names=("a" * 60, "b"))
        assert all(cell_len(line) <= 80 for line in out.getvalue().splitlines())

    @settings(deadline=None, max_examples=30)
    @given(profiles(), profiles())
    def test_any_two_profiles_can_be_shown(self, before, after):
        for sort in ("growth", "name"):
            shown(before, after, sort=sort)
            shown(before, after, sort=sort, stacks=True)


class TestKindsAndTypes:
    def test_pinned_host_memory_is_never_added_to_gpu_memory(self):
        before = profile(held(WEIGHTS, 5 * MIB), held(METRICS, 2 * MIB, **PINNED))
        after = profile(held(WEIGHTS, 5 * MIB), held(METRICS, 3 * MIB, **PINNED))
        text = shown(before, after)
        assert re.search(r"GPU memory in use +5.00 MiB +5.00 MiB +0 B", text)
        assert re.search(r"Pinned host memory in use +2.00 MiB +3.00 MiB +\+1.00 MiB", text)
        assert "GPU memory in use, by function (self)\nno difference" in text
        assert "Pinned host memory in use, by function" in text

    def test_pinned_host_memory_that_did_not_change_is_a_line(self):
        both = profile(held(WEIGHTS, 5 * MIB), held(METRICS, 2 * MIB, **PINNED))
        text = shown(both, both)
        assert "Pinned host memory in use " in text
        assert "Pinned host memory in use, by function" not in text

    def test_a_function_that_now_pins_its_memory_is_gone_from_the_gpu(self):
        before, after = profile(held(METRICS, MIB)), profile(held(METRICS, MIB, **PINNED))
        one, two = parts(before, after)
        assert (one.totals, two.totals) == ((MIB, 0), (0, MIB))

    def test_where_one_holds_nothing_any_more_the_peaks_are_compared(self):
        ended = profile(held(WEIGHTS, 0, peak=900 * MIB))
        assert gpu(ended, AFTER).type == "peak_space"
        assert gpu(AFTER, ended).type == "peak_space"
        assert gpu(BEFORE, AFTER).type == "inuse_space"
        assert "GPU memory in use at the peak, by function" in shown(ended, AFTER)

    def test_the_type_can_be_chosen(self):
        assert gpu(BEFORE, AFTER, "alloc").type == "alloc_space"
        assert "GPU memory allocated, by function" in shown(type_="alloc")


class TestRows:
    def test_the_limit_keeps_what_changed_most_in_either_direction(self):
        changed = largest(gpu().functions(), "growth", 2)
        assert [row.name for row in changed] == ["Sampler.logits", "Cache.insert"]

    def test_functions_add_up_to_the_total(self):
        part = gpu(TRAINING, AFTER)
        rows = part.functions()
        assert (sum(r.before for r in rows), sum(r.after for r in rows)) == part.totals
        stacks = part.stacks()
        assert (sum(r.before for r in stacks), sum(r.after for r in stacks)) == part.totals

    @pytest.mark.parametrize(
        ("before", "after", "growth", "word"),
        [(4, 5, 25.0, "grew"), (4, 1, -75.0, "shrank"), (0, 5, None, "new"), (4, 0, -100.0, "gone"),
         (0, 0, 0.0, "same"), (7, 7, 0.0, "same")],
    )  # fmt: skip
    def test_growth_is_of_what_was(self, before, after, growth, word):
        change = held(WEIGHTS, before), held(WEIGHTS, after)
        (row,) = gpu(profile(change[0]), profile(change[1])).stacks() or [None]
        assert percent(before, after) == growth
        assert row is None or status(row) == word

    def test_signs_are_always_there(self):
        assert [units.signed(n) for n in (2 * MIB, -MIB, 0)] == ["+2.00 MiB", "-1.00 MiB", "0 B"]


class TestTheSameProcess:
    def later(self, **fields: object) -> tuple[Profile, Profile]:
        one = replace(BEFORE, processes=TRAINING.processes)
        fields = {"processes": TRAINING.processes, "time_ns": START + 600 * SECOND, **fields}
        return one, replace(AFTER, **fields)  # type: ignore[arg-type]

    def test_bytes_by_minute_are_told(self):
        text = shown(*self.later())
        assert "the same process, 10 min 0 s later: GPU memory -18.4 MiB a minute" in text
        row = next(row for row in rows_of(text) if "Metrics.keep" in row)
        assert row == [
            "+4.00 MiB", "new", "-", "4.00 MiB", "+410 KiB", "Metrics.keep", "/app/train.py:70",
        ]  # fmt: skip
        assert report(*self.later())["gpu"]["minutes"] == 10

    def test_of_other_processes_or_of_peaks_they_are_not(self):
        (process,) = TRAINING.processes
        assert "a minute" not in shown(*self.later(processes=(replace(process, pid=9),)))
        assert "a minute" not in shown(*self.later(), type_="peak")
        assert report(BEFORE, AFTER)["gpu"]["minutes"] is None


class TestJson:
    def test_totals_have_bytes_change_and_per_cent(self):
        found = report(BEFORE, AFTER)
        assert found["gpu"]["type"] == "inuse_space"
        total = found["gpu"]["total"]
        assert total["change"] == -184 * MIB
        assert total["percent"] == pytest.approx(100 * -184 / 1208)
        assert found["pinned_host"] is None

    def test_functions_and_stacks_have_their_status(self):
        gpu_part = report(BEFORE, AFTER)["gpu"]
        assert {row["name"]: row["status"] for row in gpu_part["functions"]} == {
            "Metrics.keep": "new",
            "load": "same",
            "Sampler.logits": "gone",
            "Cache.insert": "shrank",
        }
        leaf = gpu_part["stacks"][0]["stack"][0]
        assert (leaf["name"], leaf["kind"]) == ("cudaMalloc", "native")
        assert gpu_part["stacks"][0]["status"] == "new"

    def test_the_limit_is_of_functions_and_stacks(self):
        gpu_part = report(BEFORE, AFTER, limit=1)["gpu"]
        assert len(gpu_part["functions"]) == len(gpu_part["stacks"]) == 1

    def test_both_recordings_are_told(self):
        found = report(replace(BEFORE, completeness={"events_lost": 3}), AFTER, names=("a", "b"))
        assert (found["before"]["name"], found["after"]["name"]) == ("a", "b")
        assert found["before"]["complete"] is False
        assert found["before"]["losses"][0].startswith("3 events were lost")
        assert found["after"]["about"] == {"command": "python train.py --fixed"}
