"""Which function owns memory, and what is only on the way to it."""

from __future__ import annotations

import pytest
from hypothesis import given
from profile_examples import (
    C10,
    CUDART,
    GIB,
    GRADIENTS,
    KV_CACHE,
    MIB,
    STAGING,
    TORCH,
    TRAINING,
    UNKNOWN,
    WEIGHTS,
    labels,
    native,
    profiles,
    python,
)

from gpumemprof.profile.merge import gpu_only, of_kinds
from gpumemprof.profile.model import Profile, Sample, Values
from gpumemprof.report.functions import FunctionRow, functions, owner, place
from gpumemprof.stack.frames import Frame, Stack

CUDA_CALL = native("cudaMalloc", CUDART)


def of(*stacks: Stack, size: int = 10) -> Profile:
    values = Values(1, size, 1, size, size)
    return Profile(tuple(Sample(stack, labels(), values) for stack in stacks), 0, 0)


def by_name(profile: Profile, sort: str = "inuse") -> dict[str, FunctionRow]:
    return {row.name: row for row in functions(profile, sort)}


class TestOwner:
    def test_a_python_function_owns_what_native_code_allocates_beneath_it(self):
        assert owner(KV_CACHE).name == "KVCache.__init__"

    def test_the_python_function_nearest_to_the_call_owns(self):
        assert owner(WEIGHTS).name == "Module._apply.<locals>.convert"

    def test_without_python_the_frame_beside_the_call_owns(self):
        assert owner(GRADIENTS).name == "torch::autograd::Engine::evaluate_function"

    def test_what_is_inside_of_cuda_does_not_own(self):
        stack = (
            native("cuMemAlloc_v2", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"),
            native("libcudart.so.12+0x1234", CUDART),
            native("cudaMalloc", CUDART),
            native("load", "/app/server"),
            native("main", "/app/server"),
        )
        assert owner(stack).name == "load"

    def test_nor_does_a_runtime_that_was_linked_statically(self):
        app = "/app/server"
        names = ("cuMemAlloc_v2", "__cudart612", "cudaMalloc", "load", "main")
        assert owner(tuple(native(name, app) for name in names)).name == "load"

    def test_a_function_of_the_program_that_is_named_like_cuda_does_own(self):
        stack = (CUDA_CALL, native("cudaMallocOrDie", "/app/server"))
        assert owner(stack).name == "cudaMallocOrDie"

    def test_a_note_says_that_the_owner_is_not_known(self):
        assert owner(UNKNOWN).name == "[unwind failed: no CFI]"
        assert owner((Frame.note("before attach"),)).name == "[before attach]"

    def test_a_call_with_no_caller_owns_itself(self):
        assert owner((CUDA_CALL,)) == CUDA_CALL

    def test_nobody_owns_an_empty_stack(self):
        assert owner(()) is None
        assert functions(of(())) == []


class TestTotalAndSelf:
    def test_total_is_at_or_below_a_function_and_self_its_own(self):
        rows = by_name(gpu_only(TRAINING))
        assert rows["main"].total.inuse_space == 61 * GIB
        assert rows["main"].self.inuse_space == 0
        assert rows["KVCache.__init__"].self.inuse_space == 48 * GIB
        assert rows["[unwind failed: no CFI]"].self.inuse_space == 96 * MIB

    def test_all_five_types_are_summed(self):
        row = by_name(TRAINING)["Module._apply.<locals>.convert"]
        assert row.self == row.total == Values(291, 14 * GIB, 290, 13 * GIB, 13 * GIB)

    def test_recursion_counts_once(self):
        assert WEIGHTS.count(WEIGHTS[4]) == 2
        assert by_name(TRAINING)["Module._apply"].total.inuse_space == 13 * GIB

    def test_recursion_over_different_lines_counts_once_too(self):
        stack = (CUDA_CALL, python("walk", 7), python("walk", 5), python("walk", 3))
        row = by_name(of(stack))["walk"]
        assert row.total.inuse_space == row.self.inuse_space == 10
        assert row.line == 7

    def test_lines_of_a_function_are_one_row_that_names_the_largest(self):
        small = of((CUDA_CALL, python("f", 3)), size=1)
        large = of((CUDA_CALL, python("f", 9)), size=5)
        (row,) = [
            r for r in functions(Profile(small.samples + large.samples, 0, 0)) if r.name == "f"
        ]
        assert (row.line, row.total.inuse_space) == (9, 6)

    def test_functions_of_one_name_in_two_files_are_two_rows(self):
        stacks = [(CUDA_CALL, python("forward", 1, file)) for file in ("/a.py", "/b.py")]
        rows = [row for row in functions(of(*stacks)) if row.name == "forward"]
        assert [row.file for row in rows] == ["/a.py", "/b.py"]

    def test_processes_are_added_up(self):
        stack = (CUDA_CALL, python("f", 1))
        samples = tuple(Sample(stack, labels(pid=pid), Values(inuse_space=4)) for pid in (1, 2))
        assert by_name(Profile(samples, 0, 0))["f"].self.inuse_space == 8

    def test_pinned_host_memory_has_functions_of_its_own(self):
        assert "batches" not in by_name(gpu_only(TRAINING))
        assert by_name(of_kinds(TRAINING, {"pinned_host"}))["batches"].self.inuse_space == 2 * GIB

    @given(profiles())
    def test_self_adds_up_to_the_total_of_all_stacks(self, profile):
        own = Values()
        for row in functions(profile):
            own = own.plus(row.self)
        with_stack = [sample for sample in profile.samples if sample.stack]
        assert own == Profile(tuple(with_stack), 0, 0).total


class TestOrder:
    @pytest.mark.parametrize(
        ("sort", "by", "first"),
        [
            ("inuse", "self", "KVCache.__init__"),
            ("alloc", "self", "torch::autograd::Engine::evaluate_function"),
            ("peak", "self", "KVCache.__init__"),
            ("alloc", "total", "cudaMalloc"),
        ],
    )
    def test_the_largest_comes_first(self, sort, by, first):
        assert functions(gpu_only(TRAINING), sort, by)[0].name == first

    def test_the_order_of_samples_does_not_matter(self):
        backwards = Profile(tuple(reversed(TRAINING.samples)), 0, 0)
        assert functions(backwards) == functions(TRAINING)


class TestWhatTablesLeaveOut:
    def shown(self, profile: Profile) -> set[str]:
        return {row.name for row in functions(profile) if not row.internal}

    def test_native_code_beneath_and_around_python_is_left_out(self):
        assert self.shown(of(KV_CACHE)) == {"KVCache.__init__", "main", "<module>"}

    def test_a_program_without_python_keeps_its_functions_but_not_cuda(self):
        assert self.shown(of(GRADIENTS)) == {
            "torch::autograd::Engine::evaluate_function",
            "torch::autograd::Engine::thread_main",
        }

    def test_native_code_stays_where_python_does_not_explain_it(self):
        alone = (CUDA_CALL, native("grow", C10), native("THPVariable_to", TORCH))
        assert "THPVariable_to" in self.shown(of(WEIGHTS, alone))


class TestPlace:
    def test_python_is_file_and_line_as_imported(self):
        assert place(WEIGHTS[3]) == "torch/nn/modules/module.py:1355"

    def test_native_code_is_its_source_or_its_module(self):
        assert place(GRADIENTS[1]) == "engine.cpp:1100"
        assert place(STAGING[0]) == "libcudart.so.12"

    def test_an_unknown_line_is_not_shown(self):
        assert place(python("f", 0, "/a.py")) == "/a.py"
