"""The flame graph, as its reader uses it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gpumemprof.profile.model import Profile, Sample, Values
from gpumemprof.report import units
from tests.browser.examples import CLUSTER, of_stack
from tests.unit.profile_examples import ENTRY, GIB, MALLOC, TRAINING, labels, python


def test_the_root_is_at_the_top_and_calls_go_down(open_report):
    report = open_report(TRAINING)
    assert report.column() == [
        "GPU memory in use",
        "Py_BytesMain",
        "<module>",
        "main",
        "KVCache.__init__",
        "THPVariable_to",
        "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc",
        "cudaMalloc",
    ]


def test_pointing_tells_total_and_self_in_size_bytes_and_share(open_report):
    tooltip = open_report(TRAINING).point_at(3)
    whole = 61 * GIB + 96 * (1 << 20)
    assert tooltip.split("\n")[:2] == ["main", "/app/train.py:31"]
    assert "Python" in tooltip
    assert f"total\t61.0 GiB\t{61 * GIB:,} bytes\t{units.share(61 * GIB, whole)}" in tooltip
    assert "self\t0 B\t0 bytes\t0.0%" in tooltip


def test_self_of_a_python_function_has_the_native_code_beneath_it(open_report):
    assert "self\t48.0 GiB\t51,539,607,552 bytes\t78.6%" in open_report(TRAINING).point_at(4)


def test_a_click_zooms_and_its_callers_stay_on_top(open_report):
    report = open_report(TRAINING)
    details = report.click(4, 0.95)
    assert details.startswith("load_model\n/app/train.py:12")
    assert "3 callers" in details
    assert report.column(0.02)[:6] == [
        "GPU memory in use", "Py_BytesMain", "<module>", "main", "load_model", "Module._apply",
    ]  # fmt: skip
    assert "100.0% of load_model" in report.point_at(7)
    report.flame.dblclick(position={"x": 200, "y": 10})
    assert "KVCache.__init__" in report.column()


def test_the_way_back_can_be_clicked(open_report):
    report = open_report(TRAINING)
    report.click(4, 0.95)
    crumbs = report.page.get_by_role("navigation", name="Zoomed to")
    assert crumbs.inner_text().split() == [
        "all", "Py_BytesMain", "<module>", "main", "load_model",
    ]  # fmt: skip
    crumbs.locator("button", has_text=re.compile("^main$")).click()
    assert "KVCache.__init__" in report.column()


def test_keys_walk_zoom_and_come_back(open_report):
    report = open_report(TRAINING)
    report.flame.focus()
    report.press("ArrowDown")
    assert report.selected == "GPU memory in use"
    report.press("ArrowDown", "ArrowDown", "ArrowDown", "ArrowDown")
    assert report.selected == "KVCache.__init__"
    report.press("ArrowRight")
    assert report.selected == "load_model"
    report.press("Enter")
    assert "KVCache.__init__" not in report.column()
    report.press("Escape", "ArrowLeft")
    assert report.selected == "KVCache.__init__"
    report.press("ArrowUp")
    assert report.selected == "main"


def test_what_is_selected_is_told_to_those_who_hear(open_report):
    report = open_report(TRAINING)
    report.flame.focus()
    report.press("ArrowDown", "ArrowDown")
    said = report.page.locator("[data-section=flame] [aria-live]").inner_text()
    assert said == "Py_BytesMain python3.11: total 61.0 GiB, 99.8%; self 0 B"


class TestSearch:
    def test_the_matched_share_counts_each_stack_once(self, open_report):
        report = open_report(TRAINING)
        # Module._apply calls itself, and its helper's name holds its own
        assert report.search("_apply") == "21.3% matched: 13.0 GiB in 1 place"
        assert report.search("cudamalloc") == "99.8% matched: 61.0 GiB in 2 places"
        assert report.search("libc10_cuda.so").startswith("99.8% matched")
        assert report.search("cache.py").startswith("78.6% matched: 48.0 GiB")
        assert report.search("no such function") == "nothing matches"
        assert report.search("") == ""

    def test_it_is_of_what_is_zoomed_to(self, open_report):
        report = open_report(TRAINING)
        report.click(4, 0.95)
        assert report.search("convert") == "100.0% matched: 13.0 GiB in 1 place"
        assert report.search("KVCache") == "nothing here; 78.6% of all: 48.0 GiB"

    def test_a_slash_begins_it_enter_finds_and_n_goes_on(self, open_report):
        report = open_report(TRAINING)
        report.press("/")
        report.page.keyboard.type("malloc")
        report.press("Enter")
        assert report.selected.endswith("DeviceCachingAllocator::malloc")
        report.press("n")
        assert report.selected == "cudaMalloc"
        report.press("N")
        assert report.selected.endswith("DeviceCachingAllocator::malloc")

    def test_a_function_of_the_table_is_marked_on_the_graph(self, open_report):
        report = open_report(TRAINING)
        name = report.page.get_by_role("button", name="KVCache.__init__")
        name.click()
        assert name.get_attribute("aria-pressed") == "true"
        assert report.text(".found") == "78.6% matched: 48.0 GiB in 1 place"
        name.click()
        assert report.text(".found") == ""

    def test_a_function_beside_what_is_zoomed_to_is_shown_all_the_same(self, open_report):
        report = open_report(TRAINING)
        report.click(4, 0.95)
        report.page.get_by_role("button", name="KVCache.__init__").click()
        assert report.text(".found") == "78.6% matched: 48.0 GiB in 1 place"


class TestWhatIsShown:
    def test_switching_keeps_the_zoom(self, open_report):
        report = open_report(TRAINING)
        report.click(4, 0.95)
        report.switch("Allocated")
        assert report.column(0.02)[4] == "load_model"
        assert "14.0 GiB" in report.point_at(4)

    def test_processes_do_not_merge_unless_asked_to(self, open_report):
        report = open_report(CLUSTER)
        assert report.column()[1] == "ml/llm-0/server"
        report.choose("Group by", "process")
        assert report.column()[1] == "python (1) on node-a"
        report.choose("Group by", "nothing")
        assert report.column()[1] == "serve"
        assert "6.00 GiB" in report.point_at(1)

    def test_processes_of_one_pod_do_not_merge_either(self, open_report):
        samples = list(CLUSTER.samples)
        other = {**dict(samples[0].labels), "pid": "7"}
        samples.append(replace(samples[0], labels=tuple(sorted(other.items()))))
        report = open_report(replace(CLUSTER, samples=tuple(samples)))
        assert report.column(0.1)[1] == "ml/llm-0/server python (1) on node-a"
        assert report.column(0.5)[1] == "ml/llm-0/server python (7) on node-a"

    def test_calls_from_different_lines_are_told_apart_when_asked(self, open_report):
        stack = [python("load", 7), python("main", 31)]
        other = [python("load", 9), python("main", 31)]
        report = open_report(of_stack((stack, 3 * GIB), (other, GIB)))
        assert "lines 7 (3.00 GiB), 9 (1.00 GiB)" in report.point_at(2)
        report.page.get_by_label("Lines").check()
        assert "/app/train.py:7" in report.point_at(2, 0.1)
        assert "/app/train.py:9" in report.point_at(2, 0.9)

    def test_owners_can_stand_at_the_top_above_their_callers(self, open_report):
        report = open_report(TRAINING)
        report.page.get_by_label("Callers").check()
        names = ["KVCache.__init__", "main", "<module>", "Py_BytesMain"]
        assert report.column() == ["GPU memory in use", *names]
        assert "self\t48.0 GiB" in report.point_at(1)
        assert "total\t48.0 GiB" in report.point_at(3)
        assert "self\t0 B" in report.point_at(3)

    def test_native_code_between_python_and_cuda_can_be_left_out(self, open_report):
        report = open_report(TRAINING)
        report.page.get_by_label("Native code").uncheck()
        assert report.column() == [
            "GPU memory in use",
            "<module>",
            "main",
            "KVCache.__init__",
            "cudaMalloc",
        ]
        assert "self\t48.0 GiB" in report.point_at(3)

    def test_small_ones_together_still_show(self, open_report):
        many = [([python(f"f{n}", 1)], 1) for n in range(5000)]
        report = open_report(of_stack(*many, ([python("large", 1)], 5000)))
        assert "large" in report.point_at(1, 0.2)
        assert report.search("f4999") == "0.0% matched: 1 B in 1 place"

    def test_deep_stacks_scroll(self, open_report):
        deep = [python(f"f{n}", n + 1) for n in range(120)]
        report = open_report(of_stack((deep, GIB)))
        report.flame.focus()
        report.press(*["ArrowDown"] * 121)
        assert report.selected == "f0"
        assert report.page.evaluate("document.querySelector('.flame').scrollTop") > 1000


@pytest.mark.parametrize("width", [1400, 700, 380])
def test_it_fits_the_window(open_report, width):
    report = open_report(TRAINING, width=width)
    report.screenshot(f"width-{width}")
    assert report.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert report.column(0.5)[0] == "GPU memory in use"


def test_a_profile_without_anything_says_so(open_report):
    report = open_report(Profile(samples=(), time_ns=0, duration_ns=0))
    assert report.bytes_of("In use") == "0 B"
    assert report.names() == []


def test_a_stack_without_frames_has_a_name(open_report):
    profile = Profile((Sample((), labels(), Values(1, 1, 1, 1, 1)),), 0, 0)
    assert open_report(profile).column() == ["GPU memory in use", "[no stack]"]


def test_recursion_counts_once(open_report):
    twice = (*MALLOC, python("walk", 3), python("walk", 5), *ENTRY)
    report = open_report(Profile((Sample(twice, labels(), Values(1, 8, 1, 8, 8)),), 0, 0))
    row = next(row for row in report.functions() if row[4] == "walk")
    assert row == ["8 B", "100.0%", "8 B", "100.0%", "walk", "/app/train.py:3"]
