"""The kernel's frames become named frames, call by call of the interpreter loop."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from python_image import ALL_LAYOUTS, CODE_TYPE, NONE, Image, layout_id

from gpumemprof.errors import RemoteDataError
from gpumemprof.stack.frames import Frame, FrameKind
from gpumemprof.stack.python import frames as frames_module
from gpumemprof.stack.python.code import fingerprint
from gpumemprof.stack.python.frames import PythonFrames, RawFrame, runs, unpack
from gpumemprof.stack.python.layouts import LAYOUTS, Layout

each_version = pytest.mark.parametrize("layout", ALL_LAYOUTS, ids=layout_id)
PY39, PY311, PY312, PY313, PY314 = (LAYOUTS[3, minor, False] for minor in (9, 11, 12, 13, 14))


def frame(code: int, owner: int = 0, is_entry: int = 0) -> RawFrame:
    return RawFrame(code, 0, 0, owner, is_entry, 0)


def shape(frames: list[RawFrame], layout: Layout) -> list[list[int]]:
    return [[entry.code for entry in run] for run in runs(frames, layout)]


def raw(image: Image, code: int, unit: int = 0, owner: int = 0) -> RawFrame:
    seen = fingerprint(image.fingerprint_bytes(code))
    return RawFrame(code, image.instruction(code, unit), seen, owner, 1, 0)


def test_up_to_3_10_every_python_call_is_a_call_of_the_interpreter_loop() -> None:
    assert shape([frame(1), frame(2), frame(3)], PY39) == [[1], [2], [3]]


def test_in_3_11_a_flag_ends_each_call() -> None:
    frames = [frame(1), frame(2, is_entry=1), frame(3, is_entry=1), frame(4), frame(5, is_entry=1)]
    assert shape(frames, PY311) == [[1, 2], [3], [4, 5]]


def test_from_3_12_a_frame_without_code_ends_each_call() -> None:
    frames = [frame(1), frame(2), frame(NONE, owner=3), frame(3, owner=1), frame(NONE, owner=3)]
    assert shape(frames, PY312) == [[1, 2], [3]]
    assert shape(frames, PY313) == [[1, 2], [3]]


@pytest.mark.parametrize("base_owner", [3, 4])
def test_the_frame_below_all_others_in_3_14_belongs_to_no_call(base_owner: int) -> None:
    frames = [frame(1), frame(NONE | 1, owner=3), frame(NONE | 1, owner=base_owner)]
    assert shape(frames, PY314) == [[1]]


def test_a_call_that_has_left_its_last_frame_still_counts() -> None:
    """An object destroyed as a function returns can run code of its own."""
    frames = [frame(NONE, owner=3), frame(1), frame(NONE, owner=3)]
    assert shape(frames, PY313) == [[], [1]]


def test_frames_cut_at_the_root_keep_what_was_seen() -> None:
    assert shape([frame(1), frame(NONE, owner=3), frame(2)], PY313) == [[1], [2]]
    assert shape([frame(1, is_entry=1), frame(2)], PY311) == [[1], [2]]


@each_version
def test_frames_have_names_files_and_executing_lines(layout: Layout) -> None:
    image = Image(layout)
    code = image.code(name="train", file="/srv/train.py", first_line=30)
    python = PythonFrames(image, layout, CODE_TYPE, NONE)

    assert python.resolve([raw(image, code, unit=2)]) == [
        (Frame("train", FrameKind.PYTHON, "/srv/train.py", 32),)
    ]


def test_3_14_code_pointers_carry_tags() -> None:
    image = Image(PY314)
    code = image.code(name="train")
    tagged = raw(image, code)._replace(code=code | 1)
    ((named,),) = PythonFrames(image, PY314, CODE_TYPE, NONE).resolve([tagged])
    assert named.name == "train"


@pytest.mark.parametrize("executable", [NONE, NONE | 1, 0])
def test_frames_that_run_none_are_passed_over(executable: int) -> None:
    image = Image(PY314)
    code = image.code(name="train")
    python = PythonFrames(image, PY314, CODE_TYPE, NONE)
    assert [
        [named.name for named in run]
        for run in python.resolve([frame(executable), raw(image, code), frame(NONE | 1, owner=3)])
    ] == [["train"]]


def test_a_reused_code_object_is_said_and_counted() -> None:
    image = Image(PY312)
    code = image.code(name="old")
    sent = raw(image, code)
    image.write(code, image.read_some(image.code(name="new"), PY312.code_header_size))
    python = PythonFrames(image, PY312, CODE_TYPE, NONE)

    assert python.resolve([sent]) == [(Frame.note("python code object reused"),)]
    assert python.counts.reused == 1


def test_a_code_object_that_cannot_be_read_is_said_and_counted() -> None:
    python = PythonFrames(Image(PY312), PY312, CODE_TYPE, NONE)
    assert python.resolve([frame(0x4141_4141_4140)]) == [
        (Frame.note("python code object unreadable"),)
    ]
    assert python.counts.unreadable == 1


def test_what_was_read_once_is_not_read_again() -> None:
    image = Image(PY312)
    sent = raw(image, image.code())
    python = PythonFrames(image, PY312, CODE_TYPE, NONE)
    first = python.resolve([sent])
    before = image.reads

    assert python.resolve([sent]) == first
    assert image.reads == before


def test_a_frame_without_fingerprint_is_named_but_not_remembered() -> None:
    image = Image(PY312)
    code = image.code(name="first")
    sent = raw(image, code)._replace(fingerprint=0)
    python = PythonFrames(image, PY312, CODE_TYPE, NONE)
    assert python.resolve([sent])[0][0].name == "first"
    image.write(code, image.read_some(image.code(name="second"), PY312.code_header_size))
    assert python.resolve([sent])[0][0].name == "second"


def test_a_long_running_process_does_not_grow_the_cache_without_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frames_module, "CACHED_FRAMES", 8)
    image = Image(PY312)
    code = image.code(units=64)
    python = PythonFrames(image, PY312, CODE_TYPE, NONE)
    for unit in range(64):
        python.resolve([raw(image, code, unit)])
    assert len(python._frames) == 8


def test_a_stack_of_functions_with_huge_line_tables_is_named_but_not_decoded_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frames_module, "MAX_DECODED", 1000)
    image = Image(PY312)
    sent = [raw(image, image.code(name=f"f{n}", units=150), unit=5) for n in range(5)]
    python = PythonFrames(image, PY312, CODE_TYPE, NONE)
    (run,) = python.resolve(sent)
    assert [named.name for named in run] == ["f0", "f1", "f2", "f3", "f4"]
    assert [named.line for named in run] == [15, 15, 15, 0, 0]
    assert python.counts.lines_unknown == 2


@pytest.mark.parametrize(
    ("cut", "note"),
    [("truncated", "[python frames truncated]"), ("unreadable", "[python frames unreadable]")],
)
def test_a_walk_cut_short_says_so_at_the_root_end(cut: str, note: str) -> None:
    image = Image(PY312)
    sent = raw(image, image.code(name="leaf"))
    python = PythonFrames(image, PY312, CODE_TYPE, NONE)
    (run,) = python.resolve([sent], **{cut: True})
    assert [named.name for named in run] == ["leaf", note]
    assert [[named.name for named in run] for run in python.resolve([], **{cut: True})] == [[note]]


def test_frames_are_unpacked_as_the_kernel_lays_them_out() -> None:
    data = struct.pack("<QQIBBH", 0x1122, 0x3344, 0x55, 3, 1, 7)
    assert unpack(data * 2) == [RawFrame(0x1122, 0x3344, 0x55, 3, 1, 7)] * 2
    for torn in (data[:-1], data * (frames_module.MAX_FRAMES + 1)):
        with pytest.raises(RemoteDataError):
            unpack(torn)


@given(
    layout=st.sampled_from(ALL_LAYOUTS),
    frames=st.lists(
        st.builds(frame, st.integers(1, 99), st.integers(0, 255), st.integers(0, 1)), max_size=40
    ),
)
def test_every_frame_that_runs_python_is_in_one_run_in_order(
    layout: Layout, frames: list[RawFrame]
) -> None:
    flat = [entry for run in runs(frames, layout) for entry in run]
    assert flat == [entry for entry in frames if entry.owner < layout.first_shim_owner]
