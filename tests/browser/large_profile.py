"""A profile as large as they come: many stacks, deep ones, of many functions."""

from __future__ import annotations

import random

from gpumemprof.profile.model import Profile, Sample, Values
from gpumemprof.stack.frames import Frame, FrameKind

SITE = "/opt/venv/lib/python3.11/site-packages"


def large_profile(stacks: int = 20_000, depth: int = 45) -> Profile:
    """``stacks`` different stacks of ``depth`` frames: a tree that branches at every level, as the
    layers, modules and kernels of a large training program do."""
    chance = random.Random(20)
    python = [
        Frame(f"Module{n % 97}.forward_{n}", FrameKind.PYTHON, f"{SITE}/torch/nn/m{n % 50}.py", n)
        for n in range(1, 1500)
    ]
    native = [
        Frame(
            f"at::native::(anonymous namespace)::kernel_{n}<float, long>::operator()",
            FrameKind.NATIVE,
            "",
            0,
            f"{SITE}/torch/lib/libtorch_cuda_{n % 5}.so",
        )
        for n in range(800)
    ]
    malloc = Frame("cudaMalloc", FrameKind.NATIVE, "", 0, f"{SITE}/nvidia/lib/libcudart.so.12")
    samples: dict[tuple[Frame, ...], Sample] = {}
    while len(samples) < stacks:
        above = [chance.choice(python[level : level + 3]) for level in range(depth // 2)]
        beneath = [chance.choice(python) for _ in range(depth // 4)]
        beneath += [chance.choice(native) for _ in range(depth - depth // 2 - depth // 4 - 1)]
        stack = (malloc, *reversed(above + beneath))
        size = int(chance.paretovariate(0.8) * 4096)
        pid = 100 + len(samples) % 4
        labels = (
            ("call", "cudaMalloc"),
            ("comm", "python"),
            ("device", str(pid % 2)),
            ("kind", "device"),
            ("pid", str(pid)),
        )
        samples[stack] = Sample(stack, labels, Values(3, 3 * size, 1, size, 2 * size))
    return Profile(samples=tuple(samples.values()), time_ns=10**18, duration_ns=60 * 10**9)
