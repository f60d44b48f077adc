"""Containers, and what they hold over time, for the tests of the store and of the agent's page."""

from __future__ import annotations

import random

from gpumemprof.export.model import ContainerProfile, Owner
from gpumemprof.profile.model import Failure, Profile, Sample, Values
from tests.unit.profile_examples import (
    ENTRY,
    GIB,
    KV_CACHE,
    MALLOC,
    MIB,
    SECOND,
    STAGING,
    START,
    WEIGHTS,
    labels,
    python,
)

INTERVAL = 15 * SECOND
TRAINER = Owner("ml-team", "trainer-7d4b9c-x2x", "trainer", "trainer", "node-1", "uid-trainer")
SERVER = Owner("serving", "llama-0", "vllm", "llama", "node-1", "uid-llama")
HOST = Owner("", "", "", "python3", "node-1")

LEAK = (*MALLOC, python("PrefixCache.insert", 152, "/app/server.py"), *ENTRY)


def holding(
    size: int,
    *,
    pinned: int = 0,
    allocated: int = 0,
    peak: int = 0,
    failures: tuple[Failure, ...] = (),
) -> Profile:
    """A program whose weights take ``size`` bytes."""
    samples = [Sample(WEIGHTS, labels(), Values(0, allocated, 1, size, max(size, peak)))]
    if pinned:
        row = Values(0, 0, 1, pinned, pinned)
        samples.append(Sample(STAGING, labels(call="cudaHostAlloc", kind="pinned_host"), row))
    return Profile(tuple(samples), START, 0, failures=failures)


def out_of_memory(time_ns: int, requested: int = 20 * GIB, live: bool = True) -> Failure:
    return Failure(
        time_ns=time_ns,
        labels=labels(),
        error=2,
        requested=requested,
        free=9 * GIB,
        total=80 * GIB,
        in_use=70 * GIB,
        stack=KV_CACHE,
        live=((0, 61 * GIB),) if live else (),
        live_omitted=9 * GIB if live else 70 * GIB,
    )


def at(
    tick: int, owner: Owner, profile: Profile, start: int = START, snapshot: bool = True
) -> ContainerProfile:
    """``profile`` as of the ``tick``-th interval."""
    return ContainerProfile(owner, start + tick * INTERVAL, INTERVAL, profile, snapshot)


def incompressible(seed: int, stacks: int) -> Profile:
    """A profile that gzip cannot make much smaller: each stack has a name of its own."""
    numbers = random.Random(seed)
    samples = tuple(
        Sample(
            (*MALLOC, python(f"f{numbers.getrandbits(160):x}", 1), *ENTRY),
            labels(),
            Values(1, MIB, 1, MIB, MIB),
        )
        for _ in range(stacks)
    )
    return Profile(samples, START, 0)
