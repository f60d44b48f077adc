"""The comparer of the checks on a GPU finds what differs: else it would prove nothing."""

from __future__ import annotations

import sys
from pathlib import Path

from gpumemprof.stack.frames import Frame, FrameKind

sys.path.insert(0, str(Path(__file__).parents[1] / "gpu"))

from compare import PyFrame, Taken, Theirs, match_stacks, their_python_frames

STEP = ("step", "train.py", 12)
MAIN = ("main", "train.py", 40)


def ours(size: int, *frames: tuple[str, str, int]) -> Taken:
    python = (Frame(name, FrameKind.PYTHON, file, line) for name, file, line in frames)
    return Taken(size, (Frame("cudaMalloc"), *python, Frame("_start")))


def theirs(size: int, *frames: tuple[str, str, int]) -> Theirs:
    return Theirs("segment_alloc", size, tuple(PyFrame(*frame) for frame in frames))


def test_equal_stacks_match_and_qualified_names_are_the_bare_ones() -> None:
    match = match_stacks(
        [ours(2, ("Trainer.step", "train.py", 12), MAIN), ours(4)],
        [theirs(2, STEP, MAIN), theirs(4)],
    )
    assert (match.equal, match.missing, match.unclaimed, match.misses) == (2, 0, 0, ())
    assert match.share == 1.0


def test_another_line_is_no_match_but_is_told_as_the_same_functions() -> None:
    match = match_stacks([ours(2, ("step", "train.py", 13), MAIN)], [theirs(2, STEP, MAIN)])
    assert (match.equal, match.functions_only) == (0, 1)
    assert match.misses[0]["ours"] == ["step train.py:13", "main train.py:40"]
    assert match.misses[0]["theirs"] == ["step train.py:12", "main train.py:40"]


def test_a_cut_stack_is_no_match() -> None:
    match = match_stacks([ours(2, STEP)], [theirs(2, STEP, MAIN)])
    assert (match.equal, match.functions_only, match.missing) == (0, 0, 0)


def test_a_segment_without_an_event_is_missing_and_the_next_still_matches() -> None:
    match = match_stacks([ours(4, MAIN)], [theirs(2, STEP), theirs(4, MAIN)])
    assert (match.equal, match.missing, match.unclaimed) == (1, 1, 0)
    assert match.misses[0]["ours"] is None


def test_an_event_without_a_segment_is_unclaimed() -> None:
    match = match_stacks([ours(8, STEP), ours(4, MAIN), ours(6)], [theirs(4, MAIN)])
    assert (match.equal, match.missing, match.unclaimed) == (1, 0, 2)


def test_one_segment_is_several_physical_allocations_of_one_stack() -> None:
    parts = [ours(20, STEP), ours(20, STEP), ours(20, MAIN)]
    match = match_stacks(parts, [theirs(40, STEP), theirs(20, MAIN)])
    assert (match.equal, match.missing, match.unclaimed) == (2, 0, 0)


def test_parts_with_other_stacks_are_no_match() -> None:
    match = match_stacks([ours(20, STEP), ours(20, MAIN)], [theirs(40, STEP)])
    assert match.equal == 0


def test_native_frames_of_their_trace_are_left_out() -> None:
    frames = [
        {"name": "c10::cuda::malloc", "filename": "/lib/libc10_cuda.so", "line": 0},
        {"name": "??", "filename": "??", "line": 0},
        {"name": "step", "filename": "train.py", "line": 12},
        {"name": "<module>", "filename": "<string>", "line": 1},
    ]
    assert their_python_frames(frames) == (PyFrame(*STEP), PyFrame("<module>", "<string>", 1))
