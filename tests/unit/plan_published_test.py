"""The plan beside what vLLM's and SGLang's users logged: within 0.2% unless noted, or within half
of the last digit where the log has too few of them to tell."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpumemprof.plan import models
from gpumemprof.plan.kv_cache import kv_cache
from gpumemprof.plan.parameters import parameters, weights
from tests.unit.plan_examples import GIB, MIB, model, plan, plan_with_cache_of

H100 = 79.22 * GIB
L8B, L31 = "Llama-3-8B", "Llama-3.1-8B"
MEASURED = {
    "activations": round(1.26 * GIB),
    "outside PyTorch": round(1.79 * GIB),
    "CUDA graphs": 0,
}


def loaded(name: str, ranks: int = 1, **changes: object) -> float:
    """GiB that an engine has allocated once the model is loaded: weights and RoPE tables of a
    rank, in the allocator's blocks."""
    return plan(model(name, **changes), ranks=ranks).loaded(fused=True).allocated / GIB


def tokens(name: str, gib: float, kv: str = "auto") -> int:
    return plan_with_cache_of(name, gib * GIB, kv_dtype=kv).budget.tokens


def per_token(name: str, ranks: int = 1) -> int:
    return kv_cache(models.find(name).architecture, ranks).token_bytes


def full_layers_only(name: str) -> int:
    cache = kv_cache(models.find(name).architecture)
    return cache.full_layers * cache.layer_bytes * 2 * 131_072 // MIB


def qwen3_4b() -> int:
    """Blocks where 12,116 MiB of 24,112 MiB × 0.9 are left."""
    fixed = round(24_112 * MIB * 0.9) - round(12_116.25 * MIB)
    given = {"weights": fixed, "activations": 0, "outside PyTorch": 0, "CUDA graphs": 0}
    made = plan("Qwen3-4B", 24_112 * MIB + 12 * MIB, given=given)  # the RoPE table is 10 MiB
    return made.budget.blocks


def concurrency(name: str, in_cache: int, length: int) -> float:
    architecture = models.find(name).architecture
    size = in_cache * kv_cache(architecture).token_bytes
    return plan_with_cache_of(name, size, sequence_length=length).budget.concurrency(length)


QWEN2_UNTIED = {"tied": False}

LOGGED: list[tuple[str, Callable[[], float], float, float]] = [
    ("Llama-3-8B, H100: budget GiB", lambda: plan(L8B, H100).budget.usable / GIB, 71.29, 0.002),
    ("Llama-3-8B: weights GiB", lambda: loaded(L8B), 14.96, 0.002),
    ("Llama-3-8B, TP2: weights GiB", lambda: loaded(L8B, 2), 7.48, 0.002),
    (
        "Llama-3-8B, H100: KV GiB",
        lambda: plan(L8B, H100, given=MEASURED).budget.available / GIB, 53.29, 0.002,
    ),
    ("Llama-3.1-8B, L40S: weights GiB", lambda: loaded(L31), 14.9889, 0.0001),
    ("Llama-3.1-8B, L40S: sequences", lambda: concurrency(L31, 158_656, 32_768), 4.84, 0.002),
    ("Llama-3.1-8B, A100-40: tokens", lambda: tokens(L31, 19.92), 163_168, 0.002),
    ("Qwen2.5-1.5B: weights GiB", lambda: loaded("Qwen2.5-1.5B-Instruct"), 2.89, 0.003),
    ("Qwen2.5-1.5B: tokens", lambda: tokens("Qwen2.5-1.5B", 0.56), 20_992, 0.002),
    ("Qwen2 1.5B, untied: weights", lambda: loaded("Qwen2-1.5B", **QWEN2_UNTIED), 3.3414, 0.002),
    (
        "Qwen2 1.5B: blocks",
        lambda: plan_with_cache_of("Qwen2-1.5B", 2.20 * GIB).budget.blocks, 5_148, 0.002,
    ),
    (
        "Qwen2 1.5B: sequences of 2,000",
        lambda: concurrency("Qwen2-1.5B", 5_148 * 16, 2_000), 41.18, 0.002,
    ),
    (
        "Qwen2.5-0.5B, A100-40: budget GiB",
        lambda: plan("Qwen2.5-0.5B", 39.49 * GIB, utilization=0.92).budget.usable / GIB,
        36.33, 0.002,
    ),
    ("Qwen2.5-0.5B: weights GiB", lambda: loaded("Qwen2.5-0.5B"), 0.93, 0.005 / 0.93),
    ("Qwen3-30B-A3B, TP4: weights GiB", lambda: loaded("Qwen3-30B-A3B", 4), 14.2474, 0.0002),
    (
        "Qwen3-235B-A22B-FP8, TP4: bytes a token",
        lambda: per_token("Qwen3-235B-A22B-FP8", 4), 48_128, 0,
    ),
    ("gpt-oss-120b: bytes a token", lambda: per_token("gpt-oss-120b"), 73_728, 0),
    ("gpt-oss-120b: tokens", lambda: tokens("gpt-oss-120b", 5.38), 78_384, 0.002),
    ("gpt-oss-120b, full layers: MiB", lambda: full_layers_only("gpt-oss-120b"), 9_216, 0),
    ("Qwen3-1.7B: tokens", lambda: tokens("Qwen3-1.7B", 2.90), 27_142, 0.002),
    ("Qwen3-1.7B, fp8 KV: tokens", lambda: tokens("Qwen3-1.7B", 2.90, "fp8"), 54_284, 0.002),
    ("Qwen3-4B: blocks", qwen3_4b, 5_385, 0.002),
    (
        "Qwen3-4B: MiB of 5,385 blocks",
        lambda: 5_385 * 16 * per_token("Qwen3-4B") / MIB, 12_116, 0.0001,
    ),
    ("Qwen1.5-72B: MiB of 32,848 tokens", lambda: 32_848 * per_token("Qwen1.5-72B") / MIB,
     82_120, 0),
]  # fmt: skip


@pytest.mark.parametrize(("computed", "logged", "within"), [row[1:] for row in LOGGED],
                         ids=[row[0] for row in LOGGED])  # fmt: skip
def test_the_plan_agrees_with_the_published_log(
    computed: Callable[[], float], logged: float, within: float
) -> None:
    assert computed() == pytest.approx(logged, rel=within or 1e-12)


REQUIRED = {
    "Llama-3.1-8B": 8_030_261_248,
    "Llama-3.1-70B": 70_553_706_496,
    "Llama-3.1-405B": 405_853_388_800,
    "Qwen2.5-7B": 7_615_616_512,
    "Qwen2.5-72B": 72_706_203_648,
    "Qwen3-4B": 4_022_468_096,
    "Qwen3-30B-A3B": 30_532_122_624,
    "Qwen3-235B-A22B": 235_093_634_560,
    "Mixtral-8x7B": 46_702_792_704,
}


@pytest.mark.parametrize(("name", "published"), REQUIRED.items())
def test_parameters_are_counted_exactly(name: str, published: int) -> None:
    assert parameters(models.find(name).architecture) == published


CHECKPOINTS = {"gpt-oss-20b": 13_761_264_768, "gpt-oss-120b": 65_248_815_744}
"""``total_size`` of their model.safetensors.index.json: MXFP4 experts, all else bfloat16."""


@pytest.mark.parametrize(("name", "published"), CHECKPOINTS.items())
def test_quantised_checkpoints_have_the_published_size_to_the_byte(
    name: str, published: int
) -> None:
    found = weights(models.find(name).architecture)
    assert found.total - found.padding == published


@pytest.mark.parametrize(("name", "entry"), models.presets().items(), ids=list(models.presets()))
def test_every_known_model_has_the_parameters_its_makers_published(
    name: str, entry: tuple[int, str]
) -> None:
    published, source = entry
    assert parameters(models.find(name).architecture) == published
    assert source.startswith("Hugging Face, ")
