"""Profiles of containers, and settings, that the tests of pushing share."""

from __future__ import annotations

import time
from dataclasses import replace

from profile_examples import SECOND, TRAINING

from gpumemprof.export.model import ContainerProfile, Owner
from gpumemprof.export.pyroscope.settings import PyroscopeSettings
from gpumemprof.profile.model import Profile, Sample, Values

INTERVAL = 15 * SECOND
TRAINER = Owner("ml", "trainer-7d9f-x2x", "main", "trainer", "node-1", "uid-1")
SERVER = Owner("web", "llm-0", "vllm", "llm", "node-1", "uid-2")
HOST = Owner("", "", "", "VLLM::EngineCore", "node-1")


def now_ns(intervals_ago: int = 0) -> int:
    """The end of an interval: the last one, or one before."""
    return (time.time_ns() // INTERVAL - intervals_ago) * INTERVAL


def container(
    profile: Profile = TRAINING, owner: Owner = TRAINER, intervals_ago: int = 0
) -> ContainerProfile:
    return ContainerProfile(owner, now_ns(intervals_ago), INTERVAL, profile)


def idle(profile: Profile = TRAINING) -> Profile:
    """The same a while later: held, and nothing allocated."""
    return replace(
        profile,
        samples=tuple(
            replace(sample, values=Values(0, 0, *sample.values[2:])) for sample in profile.samples
        ),
    )


def only(*samples: Sample) -> Profile:
    return Profile(samples=samples, time_ns=0, duration_ns=INTERVAL)


def total(profile: Profile, name: str, *, pinned: bool) -> int:
    """The sum of one sample type over GPU memory or pinned host memory."""
    return sum(
        getattr(sample.values, name)
        for sample in profile.samples
        if (("kind", "pinned_host") in sample.labels) == pinned
    )


def settings(url: str, **options) -> PyroscopeSettings:
    """Without jitter, so that tests do not wait."""
    return PyroscopeSettings(url, **{"jitter": 0.0, "timeout": 5.0, **options})
