"""Profiles that the tests of codecs and reports share, and what hypothesis makes them from."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from gpumemprof.profile.model import Failure, History, ProcessInfo, Profile, Sample, Series, Values
from gpumemprof.stack.frames import Frame, FrameKind

MIB = 1 << 20
GIB = 1 << 30
SECOND = 10**9
START = 1_767_225_600 * SECOND  # 2026-01-01 00:00:00 UTC

SITE = "/opt/venv/lib/python3.11/site-packages"
CUDART = f"{SITE}/nvidia/cuda_runtime/lib/libcudart.so.12"
C10 = f"{SITE}/torch/lib/libc10_cuda.so"
TORCH = f"{SITE}/torch/lib/libtorch_python.so"
PYTHON = "/opt/venv/bin/python3.11"


def python(name: str, line: int, file: str = "/app/train.py") -> Frame:
    return Frame(name, FrameKind.PYTHON, file, line)


def native(name: str, module: str, file: str = "", line: int = 0) -> Frame:
    return Frame(name, FrameKind.NATIVE, file, line, module)


def labels(pid: int = 4242, call: str = "cudaMalloc", kind: str = "device", device: int = 0):
    return tuple(
        sorted(
            {
                "pid": str(pid),
                "comm": "python",
                "call": call,
                "kind": kind,
                "device": str(device),
            }.items()
        )
    )


ENTRY = (python("main", 31), python("<module>", 40), native("Py_BytesMain", PYTHON))
MALLOC = (
    native("cudaMalloc", CUDART),
    native("c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc", C10),
    native("THPVariable_to", TORCH),
)
CONVERT = python("Module._apply.<locals>.convert", 1355, f"{SITE}/torch/nn/modules/module.py")
APPLY = python("Module._apply", 928, f"{SITE}/torch/nn/modules/module.py")

WEIGHTS = (*MALLOC, CONVERT, APPLY, APPLY, python("load_model", 12), *ENTRY)
KV_CACHE = (*MALLOC, python("KVCache.__init__", 20, "/app/cache.py"), *ENTRY)
GRADIENTS = (
    native("cudaMalloc", CUDART),
    native("torch::autograd::Engine::evaluate_function", TORCH, "engine.cpp", 1100),
    native("torch::autograd::Engine::thread_main", TORCH),
)
STAGING = (
    native("cudaHostAlloc", CUDART),
    native("THPVariable_pin_memory", TORCH),
    python("batches", 25),
    *ENTRY,
)
UNKNOWN = (native("cuMemAlloc_v2", "/usr/lib/libcuda.so.1"), Frame.note("unwind failed: no CFI"))

HELD_OVER_TIME = Series(
    labels=tuple(pair for pair in labels() if pair[0] != "call"),
    points=(
        (START + 1 * SECOND, 13 * GIB),
        (START + 4 * SECOND, 61 * GIB + 96 * MIB),
        (START + 79 * SECOND, 70 * GIB + 96 * MIB),
        (START + 81 * SECOND, 61 * GIB + 96 * MIB),
    ),
)
STAGED_OVER_TIME = Series(
    labels=tuple(pair for pair in labels(kind="pinned_host") if pair[0] != "call"),
    points=((START + 2 * SECOND, 2 * GIB),),
)

TRAINING = Profile(
    samples=(
        Sample(WEIGHTS, labels(), Values(291, 14 * GIB, 290, 13 * GIB, 13 * GIB)),
        Sample(KV_CACHE, labels(), Values(48, 48 * GIB, 48, 48 * GIB, 48 * GIB)),
        Sample(GRADIENTS, labels(), Values(1200, 90 * GIB, 0, 0, 9 * GIB)),
        Sample(UNKNOWN, labels(call="cuMemAlloc_v2"), Values(3, 96 * MIB, 3, 96 * MIB, 96 * MIB)),
        Sample(
            STAGING,
            labels(call="cudaHostAlloc", kind="pinned_host"),
            Values(8, 2 * GIB, 8, 2 * GIB, 2 * GIB),
        ),
    ),
    time_ns=START,
    duration_ns=83 * SECOND + 400_000_000,
    processes=(
        ProcessInfo(
            pid=4242,
            comm="python",
            command="python train.py --epochs 3",
            started=START - 2 * SECOND,
            ended=None,
            end_reason="",
            in_use=61 * GIB + 96 * MIB,
            peak=70 * GIB + 96 * MIB,
            pinned_in_use=2 * GIB,
            pinned_peak=2 * GIB,
            driver=62 * GIB,
        ),
    ),
    failures=(
        Failure(
            time_ns=START + 80 * SECOND,
            labels=labels(),
            error=2,
            requested=20 * GIB,
            free=9 * GIB,
            total=80 * GIB,
            in_use=70 * GIB,
            stack=(*MALLOC, python("KVCache.grow", 58, "/app/cache.py"), *ENTRY),
            live=((1, 48 * GIB), (0, 13 * GIB)),
            live_omitted=9 * GIB,
        ),
    ),
    completeness={"events_lost": 0, "stacks_lost": 0},
    about={
        "command": "python train.py --epochs 3",
        "gpumemprof": "0.1.0",
        "kernel": "6.18.0",
        "loader": "libbpf",
    },
    series=(HELD_OVER_TIME, STAGED_OVER_TIME),
)
"""A training program: weights and a cache through PyTorch's allocator, gradients that came and
went on a thread without Python, a stack that could not be unwound, pinned staging buffers."""

GROWING = replace(
    TRAINING,
    histories=(
        History(sample=1, points=((START + SECOND, 40 * GIB), (START + 9 * SECOND, 48 * GIB))),
    ),
)
"""The same, with what the cache held from time to time."""


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
INT64 = st.integers(-(2**63), 2**63 - 1)
LABELS = st.lists(st.tuples(TEXT, TEXT), max_size=3).map(lambda pairs: tuple(sorted(pairs)))


def _frame(name: str, kind: FrameKind, file: str, line: int, module: str) -> Frame:
    """As the model tells: only native frames have a module."""
    return Frame(name, kind, file, line, module if kind is FrameKind.NATIVE else "")


FRAMES = st.builds(_frame, TEXT, st.sampled_from(FrameKind), TEXT, INT64, TEXT)
STACKS = st.lists(FRAMES, max_size=4).map(tuple)
VALUES = st.tuples(INT64, INT64, INT64, INT64, INT64).map(lambda row: Values(*row))
SAMPLES = st.builds(Sample, STACKS, LABELS, VALUES)
PROCESSES = st.builds(
    ProcessInfo,
    pid=INT64,
    comm=TEXT,
    command=TEXT,
    started=INT64,
    ended=st.none() | INT64,
    end_reason=TEXT,
    in_use=INT64,
    peak=INT64,
    pinned_in_use=INT64,
    pinned_peak=INT64,
    driver=st.none() | INT64,
)


POINTS = st.dictionaries(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), max_size=3).map(
    lambda points: tuple(sorted(points.items()))
)
SERIES = st.builds(Series, LABELS, POINTS)


def histories(samples: int) -> st.SearchStrategy[tuple[History, ...]]:
    each = st.builds(History, st.integers(0, max(samples - 1, 0)), POINTS)
    return st.lists(each, max_size=1 if samples else 0).map(tuple)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    samples = draw(st.lists(SAMPLES, max_size=4))
    live = st.tuples(st.integers(0, max(len(samples) - 1, 0)), INT64)
    failures = st.builds(
        Failure,
        time_ns=INT64,
        labels=LABELS,
        error=INT64,
        requested=INT64,
        free=st.none() | INT64,
        total=st.none() | INT64,
        in_use=INT64,
        stack=STACKS,
        live=st.lists(live, max_size=3 if samples else 0).map(tuple),
        live_omitted=INT64,
    )
    return Profile(
        samples=tuple(samples),
        time_ns=draw(INT64),
        duration_ns=draw(INT64),
        processes=tuple(draw(st.lists(PROCESSES, max_size=2))),
        failures=tuple(draw(st.lists(failures, max_size=2))),
        completeness=draw(st.dictionaries(TEXT, INT64, max_size=3)),
        about=draw(st.dictionaries(TEXT, TEXT, max_size=3)),
        series=tuple(draw(st.lists(SERIES, max_size=1))),
        histories=draw(histories(len(samples))),
    )
