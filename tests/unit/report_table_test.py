"""What a person reads: in a terminal, in a pipe, and when something is wrong."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from hypothesis import given
from profile_examples import (
    CUDART,
    GIB,
    SECOND,
    START,
    TRAINING,
    labels,
    native,
    profiles,
    python,
)
from rich.cells import cell_len
from rich.console import Console

from gpumemprof.profile.model import Profile, Sample, Values
from gpumemprof.report.layout import cut_left, cut_right
from gpumemprof.report.table import make_console, render
from gpumemprof.stack.frames import Frame

EMPTY = Profile((), START, SECOND)


def piped(profile: Profile, **options) -> str:
    out = io.StringIO()
    render(profile, make_console(out), **options)
    return out.getvalue()


def in_terminal(profile: Profile, width: int, **options) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None)
    render(profile, console, **options)
    return out.getvalue()


def row_of(text: str, function: str) -> list[str]:
    lines = [
        line for line in text.splitlines() if re.search(rf"  {re.escape(function)}( |$)", line)
    ]
    return re.split(r"  +", lines[0].strip())


class TestHeader:
    def test_it_says_what_was_recorded_when_and_for_how_long(self):
        text = piped(TRAINING)
        assert text.startswith("python train.py --epochs 3\n")
        assert "recorded 2026-01-01 00:00:00 UTC for 1 min 23 s\n" in text
        assert "loader libbpf, kernel 6.18.0, gpumemprof 0.1.0\n" in text

    def test_the_long_paths_of_libraries_come_last(self):
        about = {**TRAINING.about, "attach": "multi", "libraries": "/usr/lib/libcuda.so.1"}
        text = piped(replace(TRAINING, about=about))
        assert "loader libbpf, attach multi, kernel 6.18.0, gpumemprof 0.1.0\n" in text
        assert text.endswith("\n\nlibraries: /usr/lib/libcuda.so.1\n")

    def test_a_time_that_is_not_known_is_not_told(self):
        failure = replace(TRAINING.failures[0], time_ns=0)
        text = piped(replace(TRAINING, time_ns=0, duration_ns=0, failures=(failure,), series=()))
        assert "1970" not in text
        assert "after the start" not in text
        assert "(21,474,836,480 bytes): device 0" in text

    def test_totals_are_readable_and_exact(self):
        text = piped(TRAINING)
        assert re.search(r"GPU memory +61.1 GiB +70.1 GiB +152 GiB in 1,542 calls\n", text)
        assert "65,598,914,560" in text

    def test_pinned_host_memory_is_apart_from_gpu_memory(self):
        text = piped(TRAINING)
        assert re.search(r"Pinned host memory +2.00 GiB +2.00 GiB", text)
        assert "63.1 GiB" not in text

    def test_a_complete_recording_is_not_talked_about(self):
        assert "INCOMPLETE" not in piped(TRAINING)

    def test_what_was_lost_is_told_in_words_before_any_number(self):
        text = piped(replace(TRAINING, completeness={"events_lost": 1234, "stacks_lost": 0}))
        assert "1,234 events were lost because the ring of events was full" in text
        assert text.index("INCOMPLETE") < text.index("GPU memory")
        assert "stacks were lost" not in text

    def test_what_is_normal_is_no_alarm(self):
        text = piped(replace(TRAINING, completeness={"py_no_thread_state": 7}))
        assert "7 stacks were of threads that do not run Python" in text
        assert "INCOMPLETE" not in text

    def test_failures_are_announced_at_the_top(self):
        text = piped(TRAINING)
        assert text.index("1 allocation failed: see the end") < text.index("GPU memory")


class TestProcesses:
    def test_each_has_what_it_holds_and_what_the_driver_says_beyond(self):
        text = piped(TRAINING)
        (row,) = re.findall(r"^python \(4242\) .*running$", text, re.M)
        assert re.split(r"  +", row) == [
            "python (4242)", "61.1 GiB", "70.1 GiB", "2.00 GiB", "62.0 GiB", "928 MiB", "running",
        ]  # fmt: skip
        assert "not tracked: what the driver counts" in text

    def test_without_the_drivers_figure_nothing_is_claimed(self):
        process = replace(TRAINING.processes[0], driver=None)
        assert "not tracked" not in piped(replace(TRAINING, processes=(process,)))

    def test_how_a_process_ended_is_told(self):
        process = replace(TRAINING.processes[0], ended=START + SECOND, end_reason="exec")
        assert "ended (exec)" in piped(replace(TRAINING, processes=(process,)))

    def test_workers_are_told_apart_by_their_commands(self):
        process = TRAINING.processes[0]
        worker = replace(process, pid=7, command="python worker.py --rank 1", in_use=GIB)
        text = piped(replace(TRAINING, processes=(worker, process)))
        assert "python worker.py --rank 1" in text
        assert text.index("python (4242)") < text.index("python (7)")
        assert "peak (each process's own)" in text

    def test_many_are_cut_at_the_limit_with_what_the_others_hold(self):
        many = tuple(replace(TRAINING.processes[0], pid=n, in_use=GIB) for n in range(30))
        assert "and 10 more processes with 10.0 GiB in use" in piped(
            replace(TRAINING, processes=many)
        )


class TestFunctions:
    def test_a_row_has_self_and_total_with_shares_and_the_place(self):
        assert row_of(piped(TRAINING), "KVCache.__init__") == [
            "48.0 GiB", "78.6%", "48.0 GiB", "78.6%", "KVCache.__init__", "/app/cache.py:20",
        ]  # fmt: skip
        assert row_of(piped(TRAINING), "main") == [
            "-", "61.0 GiB", "99.8%", "main", "/app/train.py:31",
        ]  # fmt: skip

    def test_sorted_by_peak_it_counts_the_peak(self):
        row = row_of(piped(TRAINING, sort="peak"), "torch::autograd::Engine::evaluate_function")
        assert row[:2] == ["9.00 GiB", "12.8%"]
        assert "GPU memory in use at the peak, by function" in piped(TRAINING, sort="peak")

    def test_sorted_by_allocations_what_was_freed_counts_too(self):
        row = row_of(piped(TRAINING, sort="alloc"), "torch::autograd::Engine::evaluate_function")
        assert row[0] == "90.0 GiB"

    def test_functions_that_hold_nothing_are_not_listed(self):
        assert "evaluate_function" not in piped(TRAINING)

    def test_the_limit_says_what_it_hides(self):
        text = piped(TRAINING, limit=1)
        assert "and 6 more functions with 13.1 GiB of their own (--limit)" in text

    def test_a_profile_of_nothing_says_so(self):
        assert "GPU memory: nothing was allocated while recording." in piped(EMPTY)
        assert "GPU memory: nothing was allocated while recording." in piped(EMPTY, sort="alloc")

    @pytest.mark.parametrize("stacks", [False, True])
    def test_of_a_program_that_has_ended_the_peak_is_shown(self, stacks):
        ended = replace(
            TRAINING,
            samples=tuple(
                replace(sample, values=sample.values._replace(inuse_objects=0, inuse_space=0))
                for sample in TRAINING.samples
            ),
        )
        text = piped(ended, stacks=stacks)
        assert "GPU memory in use at the peak (nothing is in use any more), by" in text
        assert re.search(r"48.0 GiB  68.5%.*\b(KVCache.__init__|cudaMalloc)", text)

    def test_jax_is_told_apart_because_its_pool_hides_what_is_inside(self):
        stack = (native("cuMemAlloc_v2", "/x/jaxlib/libjax_common.so"), python("f", 1))
        sample = Sample(stack, labels(), Values(1, GIB, 1, GIB, GIB))
        assert "XLA_PYTHON_CLIENT_PREALLOCATE" in piped(replace(EMPTY, samples=(sample,)))
        assert "XLA_PYTHON_CLIENT_PREALLOCATE" not in piped(TRAINING)


class TestStacks:
    def test_each_is_a_block_from_the_call_to_the_root(self):
        text = piped(TRAINING, stacks=True)
        blocks = text.partition("by stack\n\n")[2].split("\n\n")
        first = [re.split(r"  +", line.strip())[0] for line in blocks[0].splitlines()]
        assert first[1] == "cudaMalloc"
        assert first[-1] == "Py_BytesMain"
        assert blocks[0].startswith(
            "48.0 GiB  78.6%  cudaMalloc, device 0, python (4242), 48 allocations in use of 48\n"
        )

    def test_the_limit_says_what_it_hides(self):
        assert "and 2 more stacks with 13.1 GiB" in piped(TRAINING, stacks=True, limit=1)

    def test_a_pod_is_named(self):
        sample = TRAINING.samples[0]
        more = {"namespace": "ml", "pod": "job-0", "container": "main", "node": "gpu-1"}
        pod = tuple(sorted((*sample.labels, *more.items())))
        text = piped(
            replace(TRAINING, samples=(replace(sample, labels=pod),), failures=()), stacks=True
        )
        assert "ml/job-0/main, on gpu-1" in text


class TestFailures:
    def test_one_says_what_was_asked_why_it_failed_and_what_was_free(self):
        text = piped(TRAINING)
        assert (
            "cudaMalloc asked for 20.0 GiB (21,474,836,480 bytes), 1 min 20 s after the start: "
            "device 0, python (4242)\n"
            "  error 2 cudaErrorMemoryAllocation: out of memory\n"
            "  free: 9.00 GiB of 80.0 GiB, as the driver last told the program\n"
            "  the process held 70.0 GiB (75,161,927,680 bytes):\n"
        ) in text

    def test_it_says_who_held_the_memory_then(self):
        held = piped(TRAINING).partition("the process held")[2].splitlines()[1:4]
        assert [re.split(r"  +", line.strip())[:2] for line in held] == [
            ["48.0 GiB", "KVCache.__init__"],
            ["13.0 GiB", "Module._apply.<locals>.convert"],
            ["9.00 GiB", "elsewhere"],
        ]

    def test_it_shows_the_stack_that_asked(self):
        assert re.search(r"KVCache.grow +/app/cache.py:58\n", piped(TRAINING))

    def test_the_driver_names_the_error_its_own_way(self):
        failure = replace(TRAINING.failures[0], labels=labels(call="cuMemCreate"))
        assert "CUDA_ERROR_OUT_OF_MEMORY" in piped(replace(TRAINING, failures=(failure,)))

    def test_an_error_without_a_name_keeps_its_number(self):
        failure = replace(TRAINING.failures[0], error=4711)
        assert "error 4711: unknown\n" in piped(replace(TRAINING, failures=(failure,)))

    def test_free_memory_nobody_asked_for_is_not_invented(self):
        failure = replace(TRAINING.failures[0], free=None, total=None)
        text = piped(replace(TRAINING, failures=(failure,)))
        assert "free: not known, the program never asked the driver" in text

    def test_free_memory_that_contradicts_what_was_held_is_older(self):
        failure = replace(TRAINING.failures[0], free=78 * GIB, total=80 * GIB, in_use=5 * GIB)
        text = piped(replace(TRAINING, failures=(failure,)))
        assert "the driver's figure is older than what the process held" in text
        assert "older" not in piped(TRAINING)

    def test_or_of_one_gpu_of_several(self):
        failure = replace(TRAINING.failures[0], free=78 * GIB, total=80 * GIB, in_use=5 * GIB)
        samples = (*TRAINING.samples, replace(TRAINING.samples[0], labels=labels(device=1)))
        text = piped(replace(TRAINING, samples=samples, failures=(failure,)))
        assert "the driver told of one GPU, the process held memory on several" in text

    def test_a_retry_loop_is_one_block_with_the_newest_numbers(self):
        one = TRAINING.failures[0]
        last = replace(one, time_ns=one.time_ns + SECOND, free=0)
        text = piped(replace(TRAINING, failures=(one, last, one)))
        assert "3 allocations failed\n" in text
        assert "3 times at this place; this is the last one" in text
        assert "free: 0 B of 80.0 GiB" in text

    def test_many_places_are_cut_and_counted(self):
        one = TRAINING.failures[0]
        many = tuple(replace(one, stack=(python("f", n),)) for n in range(13))
        assert "and 3 more failures at other places" in piped(replace(TRAINING, failures=many))


class TestTerminalsAndPipes:
    @pytest.mark.parametrize("width", [40, 80, 120])
    @pytest.mark.parametrize("stacks", [False, True])
    def test_no_line_is_wider_than_the_terminal(self, width, stacks):
        text = in_terminal(TRAINING, width, stacks=stacks)
        assert max(map(cell_len, text.splitlines())) <= width

    def test_a_name_that_is_too_long_keeps_its_end_and_its_line(self):
        text = in_terminal(TRAINING, 80)
        assert re.search(r"…\S*<locals>\.convert +…\S*module\.py:1355\n", text)

    def test_a_pipe_gets_everything_and_no_colours(self):
        text = piped(TRAINING)
        assert "\x1b" not in text
        assert "…" not in text
        assert not [line for line in text.splitlines() if line != line.rstrip()]

    def test_a_terminal_gets_colours(self):
        out = io.StringIO()
        render(TRAINING, Console(file=out, force_terminal=True, color_system="standard"))
        assert "\x1b[" in out.getvalue()

    @pytest.mark.parametrize("show", [piped, lambda profile: in_terminal(profile, 80)])
    def test_names_cannot_act_upon_the_terminal(self, show):
        evil = "\x1b]0;owned\x07[red]x[/red]\r\n"
        sample = Sample(
            (native(evil, evil), python(evil, 1, evil)), labels(), Values(1, 1, 1, 1, 1)
        )
        process = replace(TRAINING.processes[0], comm=evil, command=evil, end_reason=evil, ended=1)
        failure = replace(TRAINING.failures[0], stack=sample.stack, live=((0, 1),))
        text = show(
            replace(
                TRAINING,
                samples=(sample,),
                processes=(process,),
                failures=(failure,),
                about={"command": evil, evil: evil},
                completeness={evil: 1},
            )
        )
        assert not set(text) & {"\x1b", "\x07", "\r"}
        assert "[red]x" in text  # shown, not obeyed

    def test_one_endless_name_does_not_make_every_line_endless(self):
        sample = Sample((Frame.note("x" * 5000),), labels(), Values(1, 1, 1, 1, 1))
        text = piped(replace(TRAINING, samples=(*TRAINING.samples, sample)))
        assert len([line for line in text.splitlines() if len(line) > 1000]) == 1

    @given(profiles())
    def test_any_profile_can_be_shown(self, profile):
        for sort in ("inuse", "alloc", "peak"):
            piped(profile, sort=sort, stacks=True)
            in_terminal(profile, 80, sort=sort)


class TestCutting:
    @pytest.mark.parametrize(
        ("text", "width", "left", "right"),
        [
            ("abcdef", 6, "abcdef", "abcdef"),
            ("abcdef", 4, "…def", "abc…"),
            ("abcdef", 1, "…", "…"),
            ("数据加载", 5, "…加载", "数据…"),
            ("数据加载", 4, "…载", "数…"),
        ],
    )
    def test_cells_are_counted_not_characters(self, text, width, left, right):
        assert cut_left(text, width) == left
        assert cut_right(text, width) == right


def test_the_table_at_80_columns_as_it_is_printed():
    text = in_terminal(TRAINING, 80).partition("by function\n")[2].partition("\n\n")[0]
    assert text == (
        "self: its own, with native code beneath it; total: also what it called\n"
        "    self      %     total      %  function                file:line\n"
        "48.0 GiB  78.6%  48.0 GiB  78.6%  KVCache.__init__        /app/cache.py:20\n"
        "13.0 GiB  21.3%  13.0 GiB  21.3%  …pply.<locals>.convert  …odules/module.py:1355\n"
        "96.0 MiB   0.2%  96.0 MiB   0.2%  [unwind failed: no CFI]\n"
        "       -         61.0 GiB  99.8%  <module>                /app/train.py:40\n"
        "       -         61.0 GiB  99.8%  main                    /app/train.py:31\n"
        "       -         13.0 GiB  21.3%  Module._apply           …modules/module.py:928\n"
        "       -         13.0 GiB  21.3%  load_model              /app/train.py:12"
    )


def test_the_call_at_the_leaf_is_named_with_its_library():
    assert f"cudaMalloc{' ' * 63}{CUDART.rpartition('/')[2]}" in piped(TRAINING)
