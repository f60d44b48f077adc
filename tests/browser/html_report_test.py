"""The whole report in a browser: what it says is what the profile says."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gpumemprof.profile.merge import PINNED_KIND, gpu_only, of_kinds, of_process
from gpumemprof.profile.model import TYPE_NAMES, History, Profile, Sample, Values
from gpumemprof.report import html, units
from gpumemprof.report.functions import functions, place
from gpumemprof.stack.frames import Frame
from tests.browser.examples import CLUSTER, of_stack
from tests.browser.large_profile import large_profile
from tests.unit.profile_examples import (
    GIB,
    MIB,
    SECOND,
    START,
    TRAINING,
    labels,
    native,
    python,
)

FILE = "/app/train.py"
TYPES = {"In use": "inuse", "Peak": "peak", "Allocated": "alloc"}


def as_in_the_terminal(profile: Profile, sort: str) -> list[list[str]]:
    """Rows of the terminal's table."""
    column = TYPE_NAMES.index({"alloc": "alloc_space"}.get(sort, f"{sort}_space"))
    whole = profile.total[column]
    return [
        [
            units.size(row.self[column]) if row.self[column] else "-",
            units.share(row.self[column], whole) if row.self[column] else "",
            units.size(row.total[column]),
            units.share(row.total[column], whole),
            row.name,
            place(row),
        ]
        for row in functions(profile, sort)
        if row.total[column] and not row.internal
    ]


def test_it_opens_from_disk_offline_without_webgl(open_report):
    report = open_report(TRAINING)
    assert report.page.evaluate("document.createElement('canvas').getContext('webgl')") is None
    assert not report.page.evaluate("navigator.onLine")
    assert report.text("h1") == "python train.py --epochs 3"
    assert "recorded 2026-01-01 00:00:00 UTC for 1 min 23 s" in report.text("header")
    report.screenshot("training")


@pytest.mark.parametrize(("name", "sort"), TYPES.items())
def test_the_functions_are_those_of_the_terminal(open_report, name, sort):
    report = open_report(TRAINING)
    report.switch(name)
    assert report.functions() == as_in_the_terminal(gpu_only(TRAINING), sort)


def test_the_functions_of_a_large_profile_are_those_of_the_terminal(open_report):
    profile = large_profile(stacks=400)
    assert open_report(profile).functions() == as_in_the_terminal(profile, "inuse")


def test_a_damaged_file_says_so(open_page):
    report = open_page(html.page(TRAINING).replace('"strings":', '"strungs":'))
    assert "This report cannot be shown" in report.page.get_by_role("alert").inner_text()
    assert len(report.trouble) == 1
    report.trouble.clear()


def _random_profile(seed: int) -> Profile:
    """Stacks with recursion, with and without Python, of few functions: ties and all."""
    chance = random.Random(seed)
    frames = [
        *(python(name, line) for name in ("f", "g", "h") for line in (1, 2)),
        *(native(name, "/usr/lib/libx.so") for name in ("x", "y")),
        native("cudaMalloc", "/usr/lib/libcudart.so.12"),
        native("inside", "/usr/lib/libcuda.so.1"),
        Frame.note("stack lost"),
    ]
    samples = []
    for _ in range(chance.randrange(1, 12)):
        stack = tuple(chance.choices(frames, k=chance.randrange(1, 9)))
        held, peak = chance.choice([0, 1, 1, 2, 300]), chance.choice([0, 1, 5000])
        samples.append(Sample(stack, labels(), Values(1, held + peak, 1, held, peak)))
    return Profile(tuple(samples), START, SECOND)


def test_the_functions_of_any_profile_are_those_of_the_terminal(open_report):
    report = open_report(TRAINING)
    for seed in range(60):
        profile = _random_profile(seed)
        report.page.evaluate("data => { window.gpumemprof.show(data) }", html.data(profile))
        for name, sort in TYPES.items():
            report.switch(name)
            assert report.functions() == as_in_the_terminal(profile, sort), seed


def test_the_switch_tells_the_totals(open_report):
    report = open_report(TRAINING)
    total = gpu_only(TRAINING).total
    assert report.bytes_of("In use") == units.size(total.inuse_space)
    assert report.bytes_of("Peak") == units.size(total.peak_space)
    assert report.bytes_of("Allocated") == units.size(total.alloc_space)
    exact = report.page.locator(".types .bytes").first.get_attribute("title")
    assert exact == f"{total.inuse_space:,} bytes"


def test_what_has_ended_opens_with_its_peak(open_report):
    ended = [
        replace(sample, values=sample.values._replace(inuse_space=0, inuse_objects=0))
        for sample in TRAINING.samples
    ]
    report = open_report(replace(TRAINING, samples=tuple(ended)))
    assert report.page.get_by_role("radio", name="Peak").is_checked()


@pytest.mark.parametrize("size", [1, 1023, 1152 * MIB, 1023 * MIB + 600_000, 9_999 * MIB, 2**50])
def test_sizes_are_rounded_as_in_the_terminal(open_report, size):
    assert open_report(of_stack(([python("f", 1)], size))).bytes_of("In use") == units.size(size)


class TestTable:
    def test_it_sorts_by_any_column_both_ways(self, open_report):
        report = open_report(TRAINING)
        by_self = report.names()
        report.sort("Self")
        assert report.names()[-1] == by_self[0]
        report.sort("Function")
        assert report.names() == sorted(by_self)
        report.sort("Function")
        assert report.names() == sorted(by_self, reverse=True)
        report.sort("Total")
        assert report.names()[0] == "<module>"
        sorted_by = report.page.locator("th[aria-sort=descending]").inner_text()
        assert sorted_by.startswith("Total")

    def test_it_is_filtered_by_function_and_file(self, open_report):
        report = open_report(TRAINING)
        box = report.page.get_by_role("searchbox", name="Filter functions and files")
        box.fill("CACHE")
        assert report.names() == ["KVCache.__init__"]
        assert report.text("[data-section=functions] [role=status]") == "1 of 7 functions"
        box.fill("modules/module.py")
        assert report.names() == ["Module._apply.<locals>.convert", "Module._apply"]

    def test_it_stays_sorted_when_other_memory_is_chosen(self, open_report):
        report = open_report(TRAINING)
        report.sort("Function")
        report.switch("Peak")
        assert report.names() == sorted(report.names())


class TestFilters:
    def test_pinned_host_memory_is_never_added(self, open_report):
        report = open_report(TRAINING)
        assert "batches" not in report.names()
        assert "pinned host memory 2.00 GiB" in report.text(".badges")
        report.choose("Kind", "Pinned host memory")
        pinned = of_kinds(TRAINING, {PINNED_KIND})
        assert report.functions() == as_in_the_terminal(pinned, "inuse")
        assert report.bytes_of("In use") == "2.00 GiB"

    def test_by_process(self, open_report):
        report = open_report(CLUSTER)
        report.choose("Process", "python (2) on node-a")
        expected = gpu_only(of_process(CLUSTER, 2))
        assert report.functions() == as_in_the_terminal(expected, "inuse")

    def test_by_pod_device_and_kind_together(self, open_report):
        report = open_report(CLUSTER)
        assert report.bytes_of("In use") == "6.50 GiB"
        report.choose("Pod", "ml/llm-1/server")
        assert report.bytes_of("In use") == "2.50 GiB"
        report.choose("Kind", "Managed memory")
        assert report.bytes_of("In use") == "512 MiB"
        report.choose("Device", "GPU 3 of node-a")
        assert report.bytes_of("In use") == "0 B"
        report.choose("Kind", "GPU memory")
        report.choose("Pod", "All pods")
        assert report.bytes_of("In use") == "4.00 GiB"

    def test_a_filter_with_one_choice_is_left_out(self, open_report):
        report = open_report(TRAINING)
        assert report.page.get_by_label("Process", exact=True).count() == 0


class TestFailures:
    def test_each_tells_what_was_asked_what_was_free_and_why(self, open_report):
        text = open_report(TRAINING).text("[data-section=failures]")
        assert "1 allocation failed" in text
        assert "cudaMalloc asked for 20.0 GiB" in text
        assert "1 min 20 s after the start, device 0, python (4242)" in text
        assert "error 2 cudaErrorMemoryAllocation: out of memory" in text
        for exact in ("21,474,836,480", "9,663,676,416", "85,899,345,920", "75,161,927,680"):
            assert exact in text

    def test_it_has_the_stack(self, open_report):
        stack = open_report(TRAINING).text("[data-section=failures] .stack").split("\n")
        assert [line for line in stack if not line.strip().endswith(".")][:4] == stack[:4]
        assert "cudaMalloc" in stack[0]
        assert "KVCache.grow" in stack[3]
        assert "/app/cache.py:58" in stack[3]

    def test_and_who_held_the_memory_then(self, open_report):
        report = open_report(TRAINING)
        live = report.page.locator(".live tr").all_inner_texts()
        assert live[0].split() == ["48.0", "GiB", "78.7%", "KVCache.__init__", "/app/cache.py:20"]
        assert "61.0 GiB in the largest stacks; 9.00 GiB more elsewhere" in report.text(
            ".failure-body"
        )
        graph = report.page.locator(".failure-body .flame")
        graph.hover(position={"x": 60, "y": 21 * 4 + 10})
        assert "KVCache.__init__" in report.page.locator(".tooltip:visible").inner_text()

    def test_those_at_one_place_are_one(self, open_report):
        first = TRAINING.failures[0]
        later = replace(first, time_ns=first.time_ns + 10**9, requested=GIB)
        report = open_report(replace(TRAINING, failures=(first, later, first)))
        assert "3 allocations failed" in report.text(".badges")
        assert "asked for 1.00 GiB" in report.text(".failure")
        assert "3 times here, the last one is told" in report.text(".failure")
        assert report.page.locator(".failure").count() == 1

    def test_a_figure_of_the_driver_that_is_older_cuts_nothing(self, open_report):
        failure = replace(TRAINING.failures[0], free=78 * GIB, total=80 * GIB, in_use=5 * GIB)
        report = open_report(replace(TRAINING, failures=(failure,)))
        bar = report.page.locator(".memory-bar")
        assert bar.get_attribute("aria-label") == (
            "held by the process 5.00 GiB, asked for 20.0 GiB; the driver's figure is older than "
            "what the process held: how much was free, or held by others, is not known"
        )
        assert bar.locator(".free, .others").count() == 0
        whole, held = bar.bounding_box(), bar.locator(".held").bounding_box()
        assert held["width"] / whole["width"] == pytest.approx(5 / 80, abs=0.01)

    def test_what_the_program_never_asked_is_not_known(self, open_report):
        failure = replace(TRAINING.failures[0], free=None, total=None)
        report = open_report(replace(TRAINING, failures=(failure,)))
        assert "the program never asked the driver" in report.text(".failure")


class TestTimeline:
    def tooltip(self, report, part: float) -> str:
        canvas = report.page.locator(".timeline canvas")
        box = canvas.bounding_box()
        width = box["width"] - 64 - 12
        canvas.hover(position={"x": 64 + width * part, "y": 60})
        return report.page.locator(".tooltip:visible").inner_text()

    def test_pointing_tells_what_was_held_then(self, open_report):
        report = open_report(CLUSTER)
        early, late = self.tooltip(report, 0.1), self.tooltip(report, 0.9)
        assert "ml/llm-0/server python (1) on node-a GPU 3 of node-a\t1.00 GiB" in early
        assert "ml/llm-0/server python (1) on node-a GPU 3 of node-a\t4.00 GiB" in late
        assert "2.50 GiB\t2,684,354,560 bytes" in late  # device and managed, without pinned

    def test_it_follows_the_filters(self, open_report):
        report = open_report(CLUSTER)
        report.choose("Kind", "Pinned host memory")
        assert "64.0 MiB" in self.tooltip(report, 0.5)

    def test_failures_are_marked(self, open_report):
        report = open_report(TRAINING)
        at = (TRAINING.failures[0].time_ns - TRAINING.time_ns) / TRAINING.duration_ns
        assert "cudaMalloc of 20.0 GiB failed: out of memory" in self.tooltip(report, at)
        assert "failed" not in self.tooltip(report, 0.5)

    def test_a_line_can_be_left_out(self, open_report):
        report = open_report(CLUSTER)
        legend = report.page.locator(".timeline .legend button").first
        legend.click()
        assert legend.get_attribute("aria-pressed") == "false"
        assert "llm-0" not in self.tooltip(report, 0.9)

    def test_a_line_of_very_many_points_is_drawn(self, open_report):
        """More than a function of a script can take as arguments."""
        many = tuple((START + n * 1_000_000, n % 1000 * MIB) for n in range(300_000))
        long = replace(TRAINING.series[0], points=many)
        report = open_report(
            replace(TRAINING, series=(long,), time_ns=START, duration_ns=300 * SECOND)
        )
        assert "999 MiB" in report.page.locator(".timeline canvas").get_attribute("aria-label")

    def test_without_series_there_is_none(self, open_report):
        report = open_report(replace(TRAINING, series=()))
        assert report.page.locator("[data-section=timeline]").count() == 0


class TestGrowth:
    leak = History(1, tuple((START + n * SECOND, 40 * GIB + n * 256 * MIB) for n in range(25)))

    def test_a_stack_that_rises_steadily_is_named_with_the_evidence(self, open_report):
        report = open_report(replace(TRAINING, histories=(self.leak,)))
        assert report.page.get_by_role("link", name="1 stack growing").is_visible()
        cells = report.page.locator(".growth tbody td").all_inner_texts()
        assert [cells[0], *cells[2:5]] == ["+15.0 GiB", "6.00 GiB", "24.0 s", "24 of 24"]
        assert cells[5].startswith("KVCache.__init__")
        assert cells[6] == "/app/cache.py:20"
        report.page.get_by_text("stack, python (4242)").click()
        assert "c10::cuda::CUDACachingAllocator" in report.text(".growth .stack")
        report.screenshot("growth")

    def test_it_follows_the_filters(self, open_report):
        report = open_report(replace(TRAINING, histories=(self.leak,)))
        report.choose("Kind", "Pinned host memory")
        assert report.page.locator(".growth tbody tr").count() == 0

    def test_without_growth_there_is_no_such_section(self, open_report):
        report = open_report(TRAINING)
        assert report.page.locator("[data-section=growth]").count() == 0


class TestWhetherItIsWhole:
    def test_a_banner_says_what_is_missing(self, open_report):
        report = open_report(replace(TRAINING, completeness={"events_lost": 7}))
        banner = report.page.get_by_role("alert").inner_text()
        assert banner.startswith("INCOMPLETE")
        assert "7 events were lost because the ring of events was full" in banner

    def test_there_is_none_otherwise(self, open_report):
        report = open_report(replace(TRAINING, completeness={"events": 9, "events_lost": 0}))
        assert report.page.get_by_role("alert").count() == 0
        assert "9 events were recorded" in report.text("[data-section=about]")


def test_processes_tell_what_is_not_tracked(open_report):
    row = open_report(TRAINING).text("[data-section=processes] tbody tr")
    assert row.split("\t") == [
        "python (4242)", "61.1 GiB", "70.1 GiB", "2.00 GiB", "62.0 GiB", "928 MiB", "running",
        "python train.py --epochs 3",
    ]  # fmt: skip


class TestComparison:
    before = of_stack(([python("cache", 3)], 2 * GIB), ([python("gone", 5)], GIB))
    after = of_stack(([python("cache", 8)], 3 * GIB), ([python("came", 9)], 256 * MIB))

    def report(self, open_page):
        return open_page(html.diff_page(self.before, self.after, "before and after"))

    def test_it_tells_what_grew_shrank_came_and_went(self, open_page):
        report = self.report(open_page)
        assert report.functions() == [
            [
                "+1.00 GiB",
                "+50.0%",
                "2.00 GiB",
                "3.00 GiB",
                "+1.00 GiB",
                "cache",
                f"{FILE}:8",
            ],
            ["-1.00 GiB", "gone", "1.00 GiB", "-", "-1.00 GiB", "gone", f"{FILE}:5"],
            ["+256 MiB", "new", "-", "256 MiB", "+256 MiB", "came", f"{FILE}:9"],
        ]
        assert report.bytes_of("In use") == "3.00 GiB → 3.25 GiB (+256 MiB)"
        report.screenshot("diff")

    def test_the_flame_graph_has_both(self, open_page):
        report = self.report(open_page)
        tooltip = report.point_at(1, 0.1)
        assert "cache" in tooltip
        assert "total\t2.00 GiB\t3.00 GiB\t+1.00 GiB\t+50.0%" in tooltip
        assert "total\t1.00 GiB\t0 B\t-1.00 GiB\tgone" in report.point_at(1, 0.85)


def test_twenty_thousand_stacks_open_and_scroll(open_report, record_property):
    profile = large_profile()
    report = open_report(profile)
    loaded = report.page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    slowest = report.page.evaluate("""async () => {
        const flame = document.querySelector('.flame');
        let [last, slowest] = [performance.now(), 0];
        for (let step = 0; step < 60; step += 1) {
            flame.scrollTop += 12;
            await new Promise(requestAnimationFrame);
            const now = performance.now();
            slowest = Math.max(slowest, now - last);
            last = now;
        }
        return slowest;
    }""")
    print(f"\n20,000 stacks: open after {loaded:.0f} ms, slowest frame {slowest:.0f} ms")
    record_property("open_ms", loaded)
    assert report.bytes_of("In use") == units.size(profile.total.inuse_space)
    assert report.functions()[:50] == as_in_the_terminal(profile, "inuse")[:50]
    report.screenshot("large", whole=False)


def test_a_time_that_is_not_known_is_not_told(open_report):
    report = open_report(replace(TRAINING, time_ns=0, duration_ns=0, failures=(), series=()))
    assert "1970" not in report.text("body")
    assert "recorded" not in report.text("header.top")


def test_one_allocation_of_nothing_is_no_trouble(open_report):
    profile = of_stack(([python("f", 1)], 0))
    nothing = replace(profile.samples[0], values=Values(1, 0, 1, 0, 0))
    assert open_report(replace(profile, samples=(nothing,))).names() == []
