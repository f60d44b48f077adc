"""Two profiles of one program, before and after a change, as tests of comparisons write them."""

from __future__ import annotations

from dataclasses import replace

from profile_examples import CUDART, MIB, SECOND, START, labels, native, python

from gpumemprof.profile.model import Profile, Sample, Values
from gpumemprof.stack.frames import Frame, Stack

MALLOC = native("cudaMalloc", CUDART)


def stack(*functions: str | tuple[str, int], file: str = "/app/train.py") -> Stack:
    """From the innermost function; a name, or a name and its line."""
    named = [(f, 1) if isinstance(f, str) else f for f in functions]
    return (MALLOC, *(python(name, line, file) for name, line in named))


def held(at: Stack, size: int, peak: int | None = None, **where: object) -> Sample:
    """``size`` bytes in use in one allocation."""
    most = size if peak is None else peak
    return Sample(at, labels(**where), Values(1, most, int(size > 0), size, most))  # type: ignore[arg-type]


def profile(*samples: Sample, **fields: object) -> Profile:
    return replace(Profile(samples, START, 60 * SECOND), **fields)  # type: ignore[arg-type]


CACHE = stack(("Cache.insert", 30), ("serve", 50), ("main", 90))
WEIGHTS = stack(("load", 10), ("main", 80))
SAMPLER = stack(("Sampler.logits", 40), ("main", 85))
METRICS = stack(("Metrics.keep", 70), ("main", 95))

BEFORE = profile(
    held(WEIGHTS, 1000 * MIB),
    held(CACHE, 200 * MIB),
    held(SAMPLER, 8 * MIB),
    about={"command": "python train.py"},
)
AFTER = profile(
    held(WEIGHTS, 1000 * MIB, pid=99),
    held(stack(("Cache.insert", 33), ("serve", 53), ("main", 96)), 20 * MIB, pid=99),
    held(METRICS, 4 * MIB, pid=99),
    about={"command": "python train.py --fixed"},
)
"""The cache holds less, and its lines moved; the sampler is gone; metrics are new."""

NOTE = Frame.note("unwind failed: no CFI")
