"""Profiles for the tests of the page."""

from __future__ import annotations

from collections.abc import Sequence

from gpumemprof.profile.model import Profile, Sample, Series, Values
from gpumemprof.stack.frames import Frame
from tests.unit.profile_examples import GIB, MIB, SECOND, START, labels, native, python

SERVE = (native("cudaMalloc", "/usr/lib/libcudart.so.12"), python("serve", 4, "/srv/app.py"))
EMBED = (native("cudaMalloc", "/usr/lib/libcudart.so.12"), python("embed", 9, "/srv/app.py"))
PINNED = (native("cudaHostAlloc", "/usr/lib/libcudart.so.12"), python("stage", 2, "/srv/app.py"))


def of_stack(*stacks: tuple[Sequence[Frame], int]) -> Profile:
    """One process that holds so many bytes by each stack (from the leaf)."""
    samples = [
        Sample(tuple(stack), labels(), Values(1, held, 1, held, held)) for stack, held in stacks
    ]
    return Profile(tuple(samples), START, 10 * SECOND)


def _pod(pid: int, pod: str, gpu: int, kind: str = "device"):
    own = {"namespace": "ml", "pod": pod, "container": "server", "node": "node-a", "gpu": str(gpu)}
    return tuple(sorted({**dict(labels(pid, kind=kind)), **own}.items()))


def _held(size: int) -> Values:
    return Values(2, 2 * size, 1, size, size)


CLUSTER = Profile(
    samples=(
        Sample(SERVE, _pod(1, "llm-0", 3), _held(4 * GIB)),
        Sample(SERVE, _pod(2, "llm-1", 5), _held(2 * GIB)),
        Sample(EMBED, _pod(2, "llm-1", 5, "managed"), _held(512 * MIB)),
        Sample(PINNED, _pod(2, "llm-1", 5, "pinned_host"), _held(64 * MIB)),
    ),
    time_ns=START,
    duration_ns=60 * SECOND,
    series=(
        Series(_pod(1, "llm-0", 3), ((START, GIB), (START + 30 * SECOND, 4 * GIB))),
        Series(_pod(2, "llm-1", 5), ((START + 15 * SECOND, 2 * GIB),)),
        Series(_pod(2, "llm-1", 5, "managed"), ((START + 45 * SECOND, 512 * MIB),)),
        Series(_pod(2, "llm-1", 5, "pinned_host"), ((START, 64 * MIB),)),
    ),
)
"""Two pods on two GPUs of a node; one also holds managed and pinned host memory."""
