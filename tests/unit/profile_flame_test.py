"""Folded text and speedscope: what flame graph programs are given."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from profile_examples import (
    GIB,
    SITE,
    TRAINING,
    WEIGHTS,
    labels,
    native,
    profiles,
    python,
)

from gpumemprof.errors import UsageError
from gpumemprof.profile import folded, speedscope
from gpumemprof.profile.model import SAMPLE_TYPES, Profile, Sample, Values
from gpumemprof.profile.text import printable, short_path, valid_utf8
from gpumemprof.stack.frames import Frame

LINE = re.compile(r"^(?P<stack>[^\n]+) (?P<value>[1-9][0-9]*)$")
"""As flamegraph.pl and Pyroscope read a line: the value after the last space."""


def of(*frames: Frame, value: int = 1, **label) -> Profile:
    sample = Sample(tuple(reversed(frames)), labels(**label), Values(1, value, 1, value, value))
    return Profile((sample,), 0, 0)


def stack_of(profile: Profile) -> list[str]:
    (line,) = folded.encode(profile).splitlines()
    return LINE.match(line)["stack"].split(";")


class TestFolded:
    def test_a_line_is_the_process_the_frames_from_the_root_and_the_bytes(self):
        lines = folded.encode(replace(TRAINING, samples=TRAINING.samples[1:2])).splitlines()
        assert lines == [
            "python (4242);Py_BytesMain;<module> (/app/train.py:40);main (/app/train.py:31);"
            "KVCache.__init__ (/app/cache.py:20);THPVariable_to;"
            "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc;cudaMalloc "
            f"{48 * GIB}"
        ]

    def test_installed_files_are_named_as_they_are_imported(self):
        assert "Module._apply (torch/nn/modules/module.py:928)" in folded.encode(TRAINING)

    def test_the_chosen_type_is_counted_and_zero_is_left_out(self):
        assert "torch::autograd" not in folded.encode(TRAINING)
        assert "thread_main" in folded.encode(TRAINING, "alloc_space")
        values = [int(LINE.match(line)["value"]) for line in folded.encode(TRAINING).splitlines()]
        assert sum(values) == TRAINING.total.inuse_space

    def test_pinned_host_memory_has_a_root_of_its_own(self):
        assert stack_of(of(python("f", 1), kind="pinned_host"))[1] == "[pinned host memory]"

    def test_a_pod_comes_before_its_processes(self):
        sample = TRAINING.samples[0]
        pod = tuple(sorted((*sample.labels, ("namespace", "ml"), ("pod", "trainer-0"))))
        profile = replace(TRAINING, samples=(replace(sample, labels=pod),))
        assert stack_of(profile)[:2] == ["ml/trainer-0", "python (4242)"]

    def test_names_cannot_add_frames_or_lines(self):
        hostile = native("a;b 5\nc\x1b[31m d\u2028", "")
        assert stack_of(of(hostile))[1:] == [r"a:b 5\nc\x1b[31m d\u2028"]

    def test_a_name_of_nothing_is_still_a_frame(self):
        assert stack_of(of(native("", "")))[1:] == ["[no name]"]

    def test_long_names_are_cut(self):
        assert len(stack_of(of(native("n" * 5000, "")))[1]) == folded.MAX_NAME

    def test_of_a_too_deep_stack_both_ends_are_kept(self):
        deep = [native(f"{n:04}" + "é" * 500, "") for n in range(500)]
        names = stack_of(of(*deep))
        assert names[1].startswith("0000")
        assert names[-1].startswith("0499")
        (missing,) = [name for name in names if name.endswith("frames left out]")]
        assert int(missing[1:].split()[0]) + len(names) - 1 == 501
        assert len(";".join(names).encode()) <= folded.MAX_LINE

    def test_lines_that_become_equal_are_summed(self):
        both = (python("f", 1, "/a/lib/python3.11/x.py"), python("f", 1, "/b/lib/python3.11/x.py"))
        samples = tuple(Sample((frame,), labels(), Values(inuse_space=5)) for frame in both)
        text = folded.encode(Profile(samples, 0, 0))
        assert text == "python (4242);f (x.py:1) 10\n"

    def test_an_unknown_type_is_refused_with_those_that_exist(self):
        with pytest.raises(UsageError, match="alloc_objects, alloc_space"):
            folded.encode(TRAINING, "cpu")

    def test_what_has_ended_is_shown_as_it_was_at_the_peak(self):
        samples = (Sample((native("f", ""),), labels(), Values(peak_space=7)),)
        assert folded.encode(Profile(samples, 0, 0)).endswith(" 7\n")
        assert folded.encode(Profile(samples, 0, 0), "inuse_space") == ""

    def test_a_difference_is_refused(self):
        with pytest.raises(UsageError, match="negative"):
            folded.encode(of(native("f", ""), value=-1))

    @given(profiles())
    def test_any_profile_gives_lines_that_can_be_read(self, profile):
        profile = replace(
            profile,
            samples=tuple(
                replace(s, values=Values(*(abs(value) for value in s.values)))
                for s in profile.samples
            ),
        )
        lines = folded.encode(profile).splitlines()
        values = [int(LINE.match(line)["value"]) for line in lines]
        held = profile.total.inuse_space or profile.total.peak_space
        assert sum(values) == held


class TestSpeedscope:
    def load(self, profile: Profile) -> dict:
        return json.loads(speedscope.encode(profile, "trainer"))

    def test_there_is_a_profile_for_each_type_and_bytes_in_use_are_shown_first(self):
        file = self.load(TRAINING)
        assert [(p["name"], p["unit"]) for p in file["profiles"]] == [
            (name, "bytes" if unit == "bytes" else "none") for name, unit in SAMPLE_TYPES
        ]
        assert file["profiles"][file["activeProfileIndex"]]["name"] == "inuse_space"
        assert file["$schema"] == "https://www.speedscope.app/file-format-schema.json"
        assert file["name"] == "trainer"

    def test_weights_are_the_values_of_the_stacks(self):
        for column, profile in enumerate(self.load(TRAINING)["profiles"]):
            assert len(profile["samples"]) == len(profile["weights"])
            assert sum(profile["weights"]) == profile["endValue"] == TRAINING.total[column]
            assert 0 not in profile["weights"]

    def test_frames_are_shared_and_stand_from_the_root(self):
        file = self.load(replace(TRAINING, samples=TRAINING.samples[:1]))
        frames = file["shared"]["frames"]
        (stack,) = file["profiles"][3]["samples"]
        named = [frames[index]["name"] for index in stack]
        assert named == ["python (4242)", *(frame.name for frame in reversed(WEIGHTS))]
        assert len(frames) == 1 + len(set(WEIGHTS))

    def test_a_frame_has_its_file_and_line(self):
        frames = self.load(TRAINING)["shared"]["frames"]
        assert {"name": "KVCache.__init__", "file": "/app/cache.py", "line": 20} in frames
        module = f"{SITE}/nvidia/cuda_runtime/lib/libcudart.so.12"
        assert {"name": "cudaMalloc", "file": module} in frames

    def test_an_empty_profile_is_a_valid_file(self):
        assert self.load(Profile((), 0, 0))["profiles"][0]["samples"] == []

    def test_a_difference_is_refused(self):
        with pytest.raises(UsageError, match="negative"):
            speedscope.encode(of(native("f", ""), value=-1))


class TestText:
    @pytest.mark.parametrize(
        ("path", "short"),
        [
            (f"{SITE}/torch/nn/module.py", "torch/nn/module.py"),
            ("/usr/lib/python3/dist-packages/numpy/core.py", "numpy/core.py"),
            ("/usr/lib/python3.12/asyncio/runners.py", "asyncio/runners.py"),
            ("/usr/lib/python3.13t/runpy.py", "runpy.py"),
            ("/app/src/train.py", "/app/src/train.py"),
            ("<frozen runpy>", "<frozen runpy>"),
            ("", ""),
        ],
    )
    def test_paths_are_shown_as_import_statements_see_them(self, path, short):
        assert short_path(path) == short

    def test_what_could_act_upon_a_terminal_becomes_escapes(self):
        assert printable("a\x1b]0;x\x07\u202eé") == r"a\x1b]0;x\x07\u202eé"

    def test_what_utf8_cannot_hold_becomes_question_marks(self):
        assert valid_utf8("a\udcffé") == "a?é"
