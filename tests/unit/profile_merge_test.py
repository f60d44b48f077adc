"""Profiles add up, and parts of them keep their meaning."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profile_examples import (
    GIB,
    GROWING,
    HELD_OVER_TIME,
    KV_CACHE,
    SECOND,
    STAGED_OVER_TIME,
    START,
    TRAINING,
    WEIGHTS,
    labels,
    profiles,
    python,
)

from gpumemprof.profile.completeness import LOST, NORMAL, lost, normal
from gpumemprof.profile.merge import gpu_only, label, merge, of_kinds, of_process, prune, select
from gpumemprof.profile.model import Failure, History, Profile, Sample, Values

ONE = Values(1, 10, 1, 10, 10)


def profile(*samples: Sample, **fields) -> Profile:
    return Profile(samples, **{"time_ns": START, "duration_ns": SECOND, **fields})


def failure(*live: tuple[int, int], omitted: int = 0) -> Failure:
    return Failure(START, labels(), 2, 5, None, None, 30, WEIGHTS, live, omitted)


class TestMerge:
    def test_equal_stacks_of_one_process_become_one(self):
        twice = merge([profile(Sample(WEIGHTS, labels(), ONE))] * 2)
        assert twice.samples == (Sample(WEIGHTS, labels(), ONE.plus(ONE)),)

    def test_equal_stacks_of_two_processes_stay_apart(self):
        both = merge([profile(Sample(WEIGHTS, labels(pid=pid), ONE)) for pid in (1, 2)])
        assert [label(sample.labels, "pid") for sample in both.samples] == ["1", "2"]

    def test_what_was_live_at_a_failure_follows_its_samples(self):
        first = profile(Sample(WEIGHTS, labels(), ONE))
        second = profile(
            Sample(KV_CACHE, labels(), ONE),
            Sample(WEIGHTS, labels(), ONE),
            failures=(failure((0, 20), (1, 10)),),
        )
        assert merge([first, second]).failures == (failure((1, 20), (0, 10)),)

    def test_the_time_span_covers_all(self):
        late = profile(time_ns=START + 10 * SECOND, duration_ns=5 * SECOND)
        merged = merge([late, profile()])
        assert (merged.time_ns, merged.duration_ns) == (START, 15 * SECOND)

    def test_counters_add_up_and_texts_that_differ_are_all_told(self):
        a = profile(completeness={"events_lost": 1}, about={"kernel": "6.6", "loader": "bcc"})
        b = profile(completeness={"events_lost": 2}, about={"kernel": "6.8", "loader": "bcc"})
        merged = merge([a, b])
        assert merged.completeness == {"events_lost": 3}
        assert merged.about == {"kernel": "6.6; 6.8", "loader": "bcc"}

    def test_of_nothing_is_an_empty_profile(self):
        assert merge([]) == Profile((), 0, 0)

    def test_memory_over_time_of_both_is_kept(self):
        a, b = profile(series=(HELD_OVER_TIME,)), profile(series=(STAGED_OVER_TIME,))
        assert merge([a, b]).series == (HELD_OVER_TIME, STAGED_OVER_TIME)

    @given(profiles(), profiles())
    def test_totals_are_the_sum_of_the_parts(self, a, b):
        assert merge([a, b]).total == a.total.plus(b.total)
        assert len(merge([a, b]).failures) == len(a.failures) + len(b.failures)


class TestParts:
    def test_pinned_host_memory_is_not_gpu_memory(self):
        assert gpu_only(TRAINING).total.inuse_space == (13 + 48) * GIB + (96 << 20)
        assert of_kinds(TRAINING, {"pinned_host"}).total.inuse_space == 2 * GIB

    def test_a_kind_nobody_knows_is_shown_as_gpu_memory(self):
        odd = profile(Sample(WEIGHTS, labels(kind="texture"), ONE))
        assert gpu_only(odd) == odd

    def test_a_process_has_its_own_samples_failures_and_row(self):
        other = replace(TRAINING.processes[0], pid=7)
        two = replace(TRAINING, processes=(*TRAINING.processes, other))
        assert of_process(two, 4242) == TRAINING
        nothing = replace(TRAINING, samples=(), failures=(), series=())
        assert of_process(two, 7) == replace(nothing, processes=(other,))

    def test_memory_over_time_is_of_the_same_kinds_as_the_samples(self):
        assert gpu_only(TRAINING).series == (HELD_OVER_TIME,)
        assert of_kinds(TRAINING, {"pinned_host"}).series == (STAGED_OVER_TIME,)
        assert select(TRAINING, lambda _: False).series == TRAINING.series

    def test_live_memory_in_stacks_that_go_is_told_as_left_out(self):
        part = select(TRAINING, lambda sample: sample.stack == WEIGHTS)
        assert part.failures[0].live == ((0, 13 * GIB),)
        assert part.failures[0].live_omitted == (48 + 9) * GIB

    def test_a_history_stays_with_its_sample(self):
        (history,) = GROWING.histories
        cache = GROWING.samples[1]
        part = select(GROWING, lambda sample: sample is cache)
        assert part.histories == (replace(history, sample=0),)
        assert select(GROWING, lambda sample: sample is not cache).histories == ()
        first = profile(Sample(WEIGHTS, labels(pid=7), ONE))
        assert [h.sample for h in merge([first, GROWING]).histories] == [2]


class TestPrune:
    def test_what_is_summed_has_no_history(self):
        points = ((START, 1), (START + 1, 2))
        told = tuple(History(sample=n, points=points) for n in range(100))
        pruned = prune(replace(self.many(100), histories=told), 10)
        assert [h.sample for h in pruned.histories] == list(range(1, 10))

    def many(self, count: int, pids: int = 1) -> Profile:
        return profile(
            *(
                Sample((python("f", n),), labels(pid=n % pids), Values(1, n, 1, n, n))
                for n in range(count)
            ),
            failures=(failure((0, 20), (count - 1, 10)),),
        )

    def test_the_largest_stacks_stay_and_the_others_are_summed(self):
        pruned = prune(self.many(100), 10)
        assert len(pruned.samples) == 10
        assert [s.stack[0].line for s in pruned.samples if s.stack[0].line] == list(range(91, 100))
        assert pruned.samples[0].stack[0].name == "[small stacks left out]"
        assert pruned.completeness == {"stacks_pruned": 91}

    def test_what_is_left_out_is_told_for_each_process_if_there_is_room(self):
        rest = [s for s in prune(self.many(100, pids=3), 10).samples if not s.stack[0].line]
        assert [label(sample.labels, "pid") for sample in rest] == ["0", "1", "2"]
        rest = [s for s in prune(self.many(100, pids=50), 10).samples if not s.stack[0].line]
        assert [sample.labels for sample in rest] == [(("kind", "device"),)]

    def test_what_is_left_out_keeps_its_gpu_even_if_there_is_no_room_for_each_process(self):
        def sample(n: int, gpu: int, pid: int) -> Sample:
            where = (*labels(pid=pid, device=0), ("gpu", str(gpu)), ("gpu_uuid", f"GPU-{gpu}"))
            return Sample((python("f", n),), tuple(sorted(where)), Values(1, n, 1, n, n))

        def by_gpu(whole: Profile) -> dict[str | None, int]:
            sums: dict[str | None, int] = {}
            for each in whole.samples:
                gpu = label(each.labels, "gpu")
                sums[gpu] = sums.get(gpu, 0) + each.values.inuse_space
            return sums

        for pids in (1, 50):
            whole = profile(*(sample(n, n % 2, n // 2 % pids) for n in range(100)))
            pruned = prune(whole, 10)
            assert len(pruned.samples) <= 10
            assert by_gpu(pruned) == by_gpu(whole)
            rest = [each for each in pruned.samples if not each.stack[0].line]
            assert {label(each.labels, "gpu_uuid") for each in rest} == {"GPU-0", "GPU-1"}

    def test_a_small_profile_stays_as_it_is(self):
        assert prune(TRAINING, len(TRAINING.samples)) is TRAINING

    @given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 20))
    def test_totals_stay_and_failures_find_their_stacks(self, count, most, pids):
        whole = self.many(count, pids)
        pruned = prune(whole, most)
        assert pruned.total == whole.total
        assert len(pruned.samples) <= most
        assert all(index < len(pruned.samples) for index, _ in pruned.failures[0].live)
        assert sum(size for _, size in pruned.failures[0].live) == 30


class TestCompleteness:
    def test_zero_counters_mean_nothing_was_lost(self):
        assert lost({"events_lost": 0, "unheard_of": 0}) == []

    def test_a_counter_without_words_still_counts_as_a_loss(self):
        assert lost({"frames_eaten": 2}) == ["2 times frames eaten (frames_eaten)"]

    def test_what_is_normal_is_no_loss(self):
        assert lost({"events": 9, "failed_frees": 1}) == []
        assert normal({"events": 9, "events_lost": 1}) == ["9 events were recorded (events)"]

    def test_one_is_told_as_one(self):
        assert lost({"stacks_lost": 1}) == [
            "1 stack was lost because the ring of stacks was full: its bytes are counted, its "
            "functions are unknown (stacks_lost)"
        ]
        assert normal({"before_attach_unknown": 1})[0].startswith(
            "1 process used CUDA before it was recorded, and"
        )
        assert normal({"series_omitted": 1})[0].startswith("1 processes, kinds or devices are not")

    @pytest.mark.parametrize("counter", sorted((LOST | NORMAL).keys() - {"series_omitted"}))
    def test_no_single_thing_is_several(self, counter):
        (sentence,) = lost({counter: 1}) + normal({counter: 1})
        subject = sentence.partition(":")[0].split(" (")[0].split()[1:4]
        assert not {"were", "are", "have"} & set(subject), sentence

    def test_no_counter_is_in_both_tables(self):
        assert not LOST.keys() & NORMAL.keys()
