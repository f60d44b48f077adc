"""Which stacks of two profiles are the same one, and what changed between them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from diff_examples import AFTER, BEFORE, CACHE, MALLOC, SAMPLER, WEIGHTS, held, profile, stack
from hypothesis import given, settings
from hypothesis import strategies as st
from profile_examples import MIB, SITE, TRAINING, native, profiles, python

from gpumemprof.errors import UsageError
from gpumemprof.profile.diff import MAX_COMPARED, align, compare, difference
from gpumemprof.profile.merge import label
from gpumemprof.profile.model import Profile, Values
from gpumemprof.profile.pprof import decode, encode
from gpumemprof.stack.frames import Stack

GO = shutil.which("go")


def changes(before: Profile, after: Profile) -> dict[str, tuple[int, int]]:
    """Innermost function and its line → bytes before and after."""
    found = {}
    for change in compare(before, after):
        frame = change.stack[1]
        name = f"{frame.name}:{frame.line}"
        assert name not in found
        found[name] = change.before.inuse_space, change.after.inuse_space
    return found


def test_stacks_that_grew_shrank_came_and_went_are_told() -> None:
    assert changes(BEFORE, AFTER) == {
        "load:10": (1000 * MIB, 1000 * MIB),
        "Cache.insert:33": (200 * MIB, 20 * MIB),
        "Metrics.keep:70": (0, 4 * MIB),
        "Sampler.logits:40": (8 * MIB, 0),
    }


def test_other_processes_and_devices_are_no_difference() -> None:
    before = profile(held(WEIGHTS, 3 * MIB, pid=1, device=0), held(WEIGHTS, 4 * MIB, pid=2))
    after = profile(held(WEIGHTS, 7 * MIB, pid=3, device=5))
    assert changes(before, after) == {"load:10": (7 * MIB, 7 * MIB)}


def test_equal_lines_match_before_lines_that_moved() -> None:
    before = profile(held(stack(("f", 10)), 1), held(stack(("f", 20)), 2))
    after = profile(held(stack(("f", 20)), 3), held(stack(("f", 35)), 4))
    assert changes(before, after) == {"f:20": (2, 3), "f:35": (1, 4)}


def test_as_many_lines_as_before_match_in_their_order() -> None:
    before = profile(held(stack(("f", 10)), 1), held(stack(("f", 20)), 2))
    after = profile(held(stack(("f", 118)), 20), held(stack(("f", 108)), 10))
    assert changes(before, after) == {"f:108": (1, 10), "f:118": (2, 20)}


def test_a_call_that_was_added_is_new_and_its_neighbours_stay() -> None:
    before = profile(held(stack(("f", 10)), 1), held(stack(("f", 40)), 2))
    after = profile(*(held(stack(("f", line)), line) for line in (12, 25, 42)))
    assert changes(before, after) == {"f:12": (1, 12), "f:25": (0, 25), "f:42": (2, 42)}


def test_a_call_that_was_taken_out_counts_to_its_neighbour() -> None:
    before = profile(held(stack(("f", 10)), 1), held(stack(("f", 40)), 2))
    after = profile(held(stack(("f", 42)), 5))
    assert changes(before, after) == {"f:42": (3, 5)}


@pytest.mark.parametrize(
    ("was", "now"),
    [
        (f"{SITE}/torch/nn/module.py", "/usr/lib/python3/dist-packages/torch/nn/module.py"),
        ("/usr/lib/python3.11/queue.py", "/opt/python/lib/python3.12/queue.py"),
    ],
)
def test_installed_packages_match_wherever_they_are(was: str, now: str) -> None:
    before, after = stack("f", file=was), stack("f", file=now)
    assert changes(profile(held(before, 1)), profile(held(after, 2))) == {"f:1": (1, 2)}


def test_native_functions_match_in_another_version_of_their_library() -> None:
    was = (native("malloc", "/usr/lib/libcudart.so.12"), native("grow", "/a/libpool.so"))
    now = (native("malloc", "/opt/cuda/lib/libcudart.so.13.0.1"), native("grow", "/b/libpool.so"))
    assert changes(profile(held(was, 1)), profile(held(now, 2))) == {"grow:0": (1, 2)}


def test_functions_of_one_name_in_other_files_are_others() -> None:
    was = profile(held(stack("f", file="/app/a.py"), 1))
    now = profile(held(stack("f", file="/app/b.py"), 2))
    assert [(c.before.inuse_space, c.after.inuse_space) for c in compare(was, now)] == [
        (0, 2),
        (1, 0),
    ]


def test_recursion_of_another_depth_is_another_stack() -> None:
    was, now = stack("f", "f", "main"), stack("f", "main")
    assert len(compare(profile(held(was, 1)), profile(held(now, 1)))) == 2


def test_what_is_aligned_has_the_lines_of_the_other() -> None:
    aligned = align(BEFORE, AFTER)
    assert [sample.stack for sample in aligned.samples] == [
        WEIGHTS,
        AFTER.samples[1].stack,
        SAMPLER,
    ]
    assert aligned.total == BEFORE.total
    assert align(BEFORE, BEFORE) == BEFORE


def test_thousands_of_lines_of_one_function_are_matched_without_comparing_all() -> None:
    count = 20 * int(MAX_COMPARED**0.5)
    before = profile(*(held(stack(("f", 10 * n)), 1) for n in range(count)))
    after = profile(*(held(stack(("f", 10 * n + 3)), 1) for n in range(count + 1)))
    assert sum(change.before.inuse_space for change in compare(before, after)) == count


@settings(deadline=None, max_examples=30)
@given(profiles(), profiles())
def test_nothing_is_lost_or_counted_twice(before: Profile, after: Profile) -> None:
    found = compare(before, after)
    total = (Values(), Values())
    for change in found:
        total = total[0].plus(change.before), total[1].plus(change.after)
    assert total == (before.total, after.total)


LINES = st.lists(st.tuples(st.integers(1, 9), st.sampled_from("fg")), max_size=8)


@settings(deadline=None)
@given(LINES, LINES)
def test_each_stack_of_the_second_is_one_change(
    was: list[tuple[int, str]], now: list[tuple[int, str]]
) -> None:
    before = profile(*(held(stack((name, line), "main"), 1) for line, name in was))
    after = profile(*(held(stack((name, line), "main"), 1) for line, name in now))
    stacks: Counter[Stack] = Counter(change.stack for change in compare(before, after))
    assert set(stacks.values()) <= {1}
    assert {sample.stack for sample in after.samples} <= set(stacks)


class TestPprof:
    def test_what_was_before_is_negated_and_labelled_as_the_base(self) -> None:
        samples = difference(BEFORE, AFTER).samples
        base = [s for s in samples if label(s.labels, "pprof::base") == "true"]
        assert [s.values.inuse_space for s in base] == [-1000 * MIB, -200 * MIB, -8 * MIB]
        assert sum(s.values.inuse_space for s in samples) == -184 * MIB

    def test_it_is_stored_and_read_back(self) -> None:
        both = difference(BEFORE, AFTER)
        assert decode(encode(both)).total == both.total

    def test_a_difference_is_not_compared_again(self) -> None:
        both = difference(BEFORE, AFTER)
        for one, two in ((both, AFTER), (AFTER, both)):
            with pytest.raises(UsageError, match="negative values"):
                difference(one, two)

    @pytest.mark.skipif(GO is None, reason="go is not installed")
    def test_go_shows_it_as_it_shows_a_diff_base(self, tmp_path: Path) -> None:
        after = replace(TRAINING, samples=(*TRAINING.samples[1:], held(CACHE, 300 * MIB)))
        files = {"before": TRAINING, "after": after, "both": difference(TRAINING, after)}
        for name, value in files.items():
            (tmp_path / name).write_bytes(encode(value))

        def table(*arguments: str) -> str:
            command = [GO, "tool", "pprof", "-top", "-nodefraction=0", "-nodecount=99", *arguments]
            done = subprocess.run(
                [str(part) for part in command],
                capture_output=True,
                text=True,
                cwd=tmp_path,
                env={"HOME": str(Path.home()), **os.environ, "PPROF_TMPDIR": str(tmp_path)},
                check=True,
            )
            return done.stdout.partition("Total samples")[2]

        assert table("both") == table("-diff_base", "before", "after")
        assert "Cache.insert" in table("both")


def test_examples_have_the_call_at_the_leaf() -> None:
    assert CACHE[0] is MALLOC
    assert CACHE[1] == python("Cache.insert", 30)
