"""Slow leaks are found and told with their evidence; what only looks like one is not."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from diff_examples import CACHE, METRICS, WEIGHTS, held, profile
from hypothesis import given, settings
from hypothesis import strategies as st
from profile_examples import MIB, SECOND, START, TRAINING

from gpumemprof.profile.growth import (
    MIN_POINTS,
    Trend,
    between,
    growth,
    growth_within,
    trend,
)
from gpumemprof.profile.model import History, Profile

MINUTE = 60 * SECOND
Curve = Callable[[int], float]
"""Number of the observation, one a minute → MiB."""


def observed(curve: Curve, count: int = 32) -> list[tuple[int, int]]:
    return [(START + n * MINUTE, max(0, int(curve(n) * MIB))) for n in range(count)]


def found(curve: Curve, count: int = 32) -> Trend | None:
    return trend(observed(curve, count))


def noise(size: float, seed: int = 1) -> Callable[[], float]:
    chance = random.Random(seed)
    return lambda: chance.uniform(-size, size)


def noisy(curve: Curve, size: float, seed: int = 1) -> Curve:
    jitter = noise(size, seed)
    return lambda n: curve(n) + jitter()


def leak(n: int) -> float:
    """2 MiB a minute."""
    return 500 + 2 * n


class TestLeaks:
    def test_a_straight_line(self):
        rising = found(leak)
        assert rising is not None
        assert rising.bytes_per_minute == 2 * MIB
        assert rising.grown == 62 * MIB
        assert rising.since_ns == START
        assert rising.rising == 1

    @pytest.mark.parametrize("seed", range(20))
    def test_with_noise(self, seed):
        rising = found(noisy(leak, 5, seed))
        assert rising is not None
        assert rising.bytes_per_minute == pytest.approx(2 * MIB, rel=0.25)
        assert 0.5 < rising.rising < 1

    def test_one_odd_observation_does_not_move_the_rate(self):
        rising = found(lambda n: leak(n) + (25 if n == 13 else 0))
        assert rising is not None
        assert rising.bytes_per_minute == pytest.approx(2 * MIB, rel=0.01)

    def test_beneath_memory_that_comes_and_goes(self):
        rising = found(lambda n: leak(n) + n % 4 * 6)
        assert rising is not None
        assert rising.bytes_per_minute == pytest.approx(2 * MIB, rel=0.2)

    def test_after_a_warm_up_since_its_end(self):
        rising = found(lambda n: min(n, 6) * 300 + 2 * n)
        assert rising is not None
        assert rising.since_ns > START + 5 * MINUTE
        assert rising.bytes_per_minute == pytest.approx(2 * MIB, rel=0.01)

    def test_in_steps(self):
        rising = found(lambda n: n // 4 * 8)
        assert rising is not None
        assert rising.bytes_per_minute == pytest.approx(2 * MIB, rel=0.2)

    def test_over_thousands_of_observations(self):
        rising = found(noisy(leak, 20), 5000)
        assert rising is not None
        assert rising.bytes_per_minute == pytest.approx(2 * MIB, rel=0.02)
        assert rising.until_ns == START + 4999 * MINUTE


class TestNoLeaks:
    @pytest.mark.parametrize(
        "curve",
        [
            lambda n: 500,
            lambda n: 500 - n,
            lambda n: 500 + (200 if n >= 20 else 0),
            lambda n: 500 + (200 if n >= 9 else 0) + (90 if n >= 23 else 0),
            lambda n: min(n, 9) * 100,
            lambda n: min(n, 20) * 100,
            lambda n: 1000 * (1 - math.exp(-n / 5)),
            lambda n: 100 + n % 7 * 30,
            lambda n: 100 + (n + 5) % 13 * 30,
            lambda n: 100 + (n + 11) % 20 * 30,
            lambda n: 100 if n % 2 else 20,
            lambda n: 500 + 0.01 * n,
        ],
        ids=["flat", "falling", "step", "two steps", "warm-up", "long warm-up", "filling cache",
             "sawtooth", "long sawtooth", "two teeth", "square", "too little"],
    )  # fmt: skip
    @pytest.mark.parametrize("count", [32, 64])
    def test_what_only_looks_like_one(self, curve, count):
        assert found(curve, count) is None

    def test_noise(self):
        for seed in range(300):
            assert found(noisy(lambda n: 500, 50, seed)) is None

    def test_sawteeth_of_any_period_of_which_one_fall_was_seen(self):
        chance = random.Random(1)
        for _ in range(300):
            period, phase = chance.uniform(2, 16), chance.random()
            assert found(lambda n, p=period, at=phase: 100 + (n / p + at) % 1 * 200) is None

    def test_too_few_observations(self):
        assert found(leak, MIN_POINTS - 1) is None
        assert found(leak, MIN_POINTS) is not None
        assert trend([]) is None

    @settings(deadline=None)
    @given(st.lists(st.integers(0, 2**62), max_size=40))
    def test_any_numbers_can_be_looked_at(self, sizes):
        trend([(START + n * SECOND, size) for n, size in enumerate(sizes)])


def snapshots(count: int, **curves: Curve) -> list[Profile]:
    """A profile a minute of what each stack holds."""
    stacks = {"cache": CACHE, "metrics": METRICS, "weights": WEIGHTS}
    return [
        profile(
            *(
                held(stacks[name], int(curve(n) * MIB))
                for name, curve in curves.items()
                if curve(n) > 0
            ),
            time_ns=START + n * MINUTE,
        )
        for n in range(count)
    ]


class TestSnapshots:
    def test_the_stacks_that_grow_are_named_the_fastest_first(self):
        told = growth(
            snapshots(
                20,
                cache=lambda n: 3 * n + 1,
                metrics=lambda n: 5 * n + 1,
                weights=lambda n: 1000,
            )
        )
        assert [each.stack for each in told] == [METRICS, CACHE]
        assert told[1].trend.bytes_per_minute == 3 * MIB
        assert ("pid", "4242") in told[1].labels

    def test_their_order_does_not_matter(self):
        mixed = snapshots(20, cache=lambda n: 3 * n + 1)
        random.Random(1).shuffle(mixed)
        assert len(growth(mixed)) == 1

    def test_a_stack_that_came_late_is_followed_from_then_on(self):
        (told,) = growth(snapshots(40, cache=lambda n: max(0, n - 20) * 3))
        assert told.trend.bytes_per_minute == 3 * MIB

    def test_a_stack_that_is_in_no_later_profile_holds_nothing(self):
        assert growth(snapshots(40, cache=lambda n: 3 * n if n < 30 else 0)) == []

    def test_a_process_that_ended_does_not_grow_and_its_successor_is_another(self):
        first = snapshots(20, cache=lambda n: 3 * n + 1)
        restarted = [
            profile(held(CACHE, (3 * n + 1) * MIB, pid=7), time_ns=START + (20 + n) * MINUTE)
            for n in range(20)
        ]
        (told,) = growth([*first, *restarted])
        assert ("pid", "7") in told.labels

    def test_nothing_grows_in_no_profiles(self):
        assert growth([]) == []


class TestWithinOneRecording:
    def test_the_stacks_that_grew_are_named(self):
        points = tuple(observed(leak))
        recorded = replace(TRAINING, histories=(History(1, points), History(0, points[:5])))
        (told,) = growth_within(recorded)
        assert told.stack == TRAINING.samples[1].stack
        assert told.trend.bytes_per_minute == 2 * MIB


class TestTwoPoints:
    def later(self, grown: int, minutes: int = 10, **fields: object) -> Profile:
        sample = TRAINING.samples[0]
        values = sample.values._replace(inuse_space=sample.values.inuse_space + grown)
        samples = (replace(sample, values=values), *TRAINING.samples[1:])
        later = replace(TRAINING, samples=samples, time_ns=START + minutes * MINUTE)
        return replace(later, **fields)  # type: ignore[arg-type]

    def test_of_one_process_the_difference_by_minute(self):
        change = between(TRAINING, self.later(50 * MIB))
        assert change is not None
        assert change.bytes_per_minute == 5 * MIB
        assert change.grown == 50 * MIB
        assert len(change.points) == 2
        assert between(TRAINING, self.later(-50 * MIB)).bytes_per_minute == -5 * MIB  # type: ignore[union-attr]

    def test_of_other_processes_there_is_no_rate(self):
        (process,) = TRAINING.processes
        restarted = replace(process, started=process.started + 1)
        assert between(TRAINING, self.later(1, processes=(restarted,))) is None
        assert between(TRAINING, self.later(1, processes=())) is None
        assert between(replace(TRAINING, processes=()), self.later(1, processes=())) is None

    def test_backwards_there_is_no_rate(self):
        assert between(self.later(1), TRAINING) is None
        assert between(TRAINING, TRAINING) is None
