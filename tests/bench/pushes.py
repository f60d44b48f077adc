"""Processor time of one container's profile on its way to Pyroscope, by number of stacks."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from gpumemprof.export.model import ContainerProfile, Owner
from gpumemprof.export.pyroscope.encode import Encoded, Encoder
from gpumemprof.export.pyroscope.settings import PyroscopeSettings
from gpumemprof.profile.model import Profile, Sample, Values
from gpumemprof.stack.frames import Frame, FrameKind, Stack

INTERVAL = 15 * 10**9
ROUNDS = 5
SITE = "/opt/venv/lib/python3.11/site-packages/torch"


def _stacks(count: int, depth: int = 40) -> Iterator[Stack]:
    """Stacks that differ near their leaf and share their roots, as those of a program do."""
    choose = random.Random(1)
    frames = [
        Frame(f"Module{i}.forward_{i}", FrameKind.PYTHON, f"{SITE}/nn/module_{i % 200}.py", i % 900)
        if i % 3
        else Frame(f"at::native::function_{i}", module=f"{SITE}/lib/libtorch_{i % 20}.so")
        for i in range(6000)
    ]
    for _ in range(count):
        root = choose.randrange(20) * 37
        yield tuple(choose.choices(frames, k=8)) + tuple(
            frames[(root + i) % len(frames)] for i in range(depth - 8)
        )


def _profile(count: int) -> Profile:
    samples = tuple(
        Sample(
            stack,
            (("call", "cudaMalloc"), ("gpu", str(i % 8)), ("kind", "device"), ("pid", str(i % 8))),
            Values(i % 7, i * 100, 1, 100 + i, 200 + i),
        )
        for i, stack in enumerate(_stacks(count))
    )
    return Profile(samples=samples, time_ns=0, duration_ns=INTERVAL)


def _milliseconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1000


def report() -> Iterator[str]:
    """Lines of the table."""
    yield "| stacks of 40 frames | changed | unchanged | request | sent | not compressed |"
    yield "|---|---|---|---|---|---|"
    for count in (200, 2000, 8000):
        profile = _profile(count)
        # A new snapshot has samples of its own, with the stacks that are known.
        again = replace(profile, samples=tuple(map(replace, profile.samples)))
        cold, warm, request = [], [], []
        encoded: tuple[Encoded, ...] = ()
        for _ in range(ROUNDS):
            encoder = Encoder(PyroscopeSettings("http://pyroscope:4040"))
            owner = Owner("ml", "trainer-0", "main", "trainer", "node-1")
            first, second = (
                ContainerProfile(owner, INTERVAL * n, INTERVAL, p)
                for n, p in enumerate((profile, again), 1)
            )
            cold.append(_milliseconds(lambda e=encoder, c=first: e.encode(c)))
            warm.append(_milliseconds(lambda e=encoder, c=second: e.encode(c)))
            assert encoder.unchanged == 1
            encoded = encoder.encode(first)
            push = encoded[0].push
            request.append(_milliseconds(lambda p=push: p.request(INTERVAL)))
        sent = sum(len(one.push.request(INTERVAL).body) for one in encoded)
        size = sum(one.push.size for one in encoded)
        yield (
            f"| {count:,} | {min(cold):.1f} ms | {min(warm):.2f} ms | {min(request):.2f} ms "
            f"| {sent >> 10} KiB | {size >> 10} KiB |"
        )


if __name__ == "__main__":
    for line in report():
        print(line)
