"""A plan beside a recorded profile: weights, KV cache and the rest, by the stacks that took them.

A stack belongs to the first rule that one of its frames matches, from the innermost frame
outwards: a cache that a model's forward allocates is a cache. Names are those of vLLM, SGLang,
transformers and plain PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpumemprof.errors import UsageError
from gpumemprof.plan.plan import Plan
from gpumemprof.profile.merge import gpu_only, label
from gpumemprof.profile.model import Profile, Sample
from gpumemprof.snapshot import allocator, convert
from gpumemprof.stack.frames import Frame, FrameKind, Stack

WEIGHTS = "weights"
KV = "KV cache"
GRAPHS = "CUDA graphs"
OUTSIDE = "outside PyTorch"
OPTIMIZER = "optimizer"
REST = "activations and the rest"
UNUSED = "reserved, not in use"


@dataclass(frozen=True, slots=True)
class Rule:
    """Functions of these names (the last part of the qualified name), in a file or module whose
    path has ``file`` in it, are ``category``; ``engine`` is whose names they are."""

    category: str
    engine: str
    file: str
    functions: frozenset[str]


def _rule(category: str, engine: str, file: str, *functions: str) -> Rule:
    return Rule(category, engine, file, frozenset(functions))


RULES: tuple[Rule, ...] = (
    _rule(KV, "vLLM", "vllm/", "initialize_kv_cache", "initialize_kv_cache_tensors",
          "_allocate_kv_cache_tensors", "_allocate_kv_cache", "allocate_kv_cache",
          "initialize_from_config", "initialize_cache"),
    _rule(GRAPHS, "vLLM", "vllm/", "capture_model", "_capture_cudagraphs", "capture"),
    _rule(WEIGHTS, "vLLM", "vllm/", "load_model", "get_model", "initialize_model", "create_weights",
          "process_weights_after_loading"),
    _rule(REST, "vLLM", "vllm/", "profile_run", "_dummy_run", "_dummy_sampler_run",
          "execute_model"),
    _rule(KV, "SGLang", "sglang/", "init_memory_pool", "_create_buffers", "init_kv_cache"),
    _rule(GRAPHS, "SGLang", "sglang/", "init_cuda_graphs", "init_device_graphs", "capture",
          "capture_one_batch_size"),
    _rule(WEIGHTS, "SGLang", "sglang/", "load_model", "create_weights"),
    _rule(REST, "SGLang", "sglang/", "forward_batch_generation", "init_attention_backend"),
    _rule(KV, "transformers", "transformers/cache_utils", "update", "lazy_initialization",
          "__init__", "early_initialization", "reset"),
    _rule(WEIGHTS, "transformers", "transformers/", "from_pretrained", "_load_pretrained_model",
          "caching_allocator_warmup", "_load_state_dict_into_meta_model"),
    _rule(WEIGHTS, "PyTorch", "torch/nn/modules/module", "to", "cuda", "_apply", "to_empty",
          "load_state_dict"),
    _rule(OPTIMIZER, "PyTorch", "torch/optim/", "step", "_init_group"),
    _rule(GRAPHS, "PyTorch", "torch/cuda/graphs", "capture_begin", "__enter__",
          "make_graphed_callables"),
    _rule(WEIGHTS, "PyTorch", "torch/nn/modules/", "__init__"),
    _rule(OUTSIDE, "PyTorch", "libnccl", ""),
    _rule(OUTSIDE, "PyTorch", "libcublas", ""),
    _rule(OUTSIDE, "PyTorch", "libcudnn", ""),
)  # fmt: skip
"""Order decides between rules that match the same frame. A rule with the function ``""`` matches
any function of the module."""

_ENGINES = ("vLLM", "SGLang", "transformers", "PyTorch")


@dataclass(frozen=True, slots=True)
class Row:
    """``planned``: bytes, None where the plan says nothing."""

    name: str
    planned: int | None
    measured: int
    why: str

    @property
    def share(self) -> str:
        """The difference in percent of what was planned."""
        if not self.planned:
            return "-"
        return f"{100 * (self.measured - self.planned) / self.planned:+.2f}%"


@dataclass(frozen=True, slots=True)
class Check:
    """``when``: which figures of the profile were taken. ``process``: the rank that holds most."""

    profile: str
    when: str
    process: str
    engine: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...]


def category(stack: Stack) -> tuple[str, str]:
    """What a stack's memory is for, and whose names say so (empty if none do)."""
    if stack == convert.FREE:
        return UNUSED, ""
    for frame in stack:
        for rule in RULES:
            if _matches(rule, frame):
                return rule.category, rule.engine
    return REST, ""


def check(plan: Plan, profile: Profile, name: str) -> Check:
    """``plan`` beside ``profile``, a recording of one or more ranks.

    Of a program that still ran what it held at the end is taken, else what it held at its peak.
    Raises UsageError if the profile has no GPU memory."""
    gpu = gpu_only(profile)
    held = gpu.total.inuse_space > 0
    by_rank: dict[tuple[str, str, str], list[Sample]] = {}
    for sample in gpu.samples:
        key = (
            label(sample.labels, "pid") or "?",
            label(sample.labels, "comm") or "?",
            label(sample.labels, "device") or "?",
        )
        by_rank.setdefault(key, []).append(sample)
    sizes = {key: sum(_bytes(s, held) for s in samples) for key, samples in by_rank.items()}
    if not any(sizes.values()):
        raise UsageError(f"{name} has no GPU memory to compare with")
    rank = max(sizes, key=lambda key: sizes[key])
    found: dict[str, int] = {}
    engines: dict[str, int] = {}
    for sample in by_rank[rank]:
        kind, engine = category(sample.stack)
        found[kind] = found.get(kind, 0) + _bytes(sample, held)
        if engine:
            engines[engine] = engines.get(engine, 0) + _bytes(sample, held)
    engine = next((one for one in _ENGINES if engines.get(one)), "no known engine")
    tensors = profile.about.get("source") == convert.SOURCE
    notes = _notes(plan, found, engine, sizes, tensors)
    pid, comm, device = rank
    return Check(
        name,
        "what was in use at the end" if held else "what was in use at the peak",
        f"{comm} ({pid}) on device {device}",
        engine,
        tuple(_rows(plan, found, engine, tensors)),
        tuple(notes),
    )


def _rows(plan: Plan, found: dict[str, int], engine: str, tensors: bool) -> list[Row]:
    """``tensors``: the profile has each tensor's block (a snapshot's), not the segments that were
    taken from the driver for them (a recording's)."""
    request, budget = plan.request, plan.budget
    serves = engine in ("vLLM", "SGLang")
    length = request.typical_length
    taken = plan.loaded(fused=serves)
    held, where = (taken.allocated, "blocks") if tensors else (taken.reserved, "segments")
    weights = plan.weights.bytes + held - taken.requested
    weights_why = f"{plan.weights.bytes:,} bytes in PyTorch's {where}"
    if serves:
        weights += budget.spent["RoPE tables"].bytes
        weights_why = f"weights and RoPE tables, {weights_why}"
        kv = budget.blocks * budget.cache.block_bytes
        kv_why = "all blocks that fit"
    else:
        cache = _transformers_cache(plan)
        kv = cache.allocated if tensors else cache.reserved
        kv_why = (
            f"{request.sequences:,} × {length:,} tokens (--sequences, --sequence-length), keys and "
            f"values of each layer in {where}"
        )
    rows = [
        Row(WEIGHTS, weights, found.get(WEIGHTS, 0), weights_why),
        Row(KV, kv, found.get(KV, 0), kv_why),
        Row(
            GRAPHS,
            budget.spent["CUDA graphs"].bytes if serves else None,
            found.get(GRAPHS, 0),
            "estimate" if serves else "",
        ),
        Row(
            REST,
            budget.spent["activations"].bytes if serves else None,
            found.get(REST, 0),
            "estimate" if serves else "not planned: --batched-tokens is vLLM's",
        ),
    ]
    for other, why in (
        (OPTIMIZER, ""),
        (OUTSIDE, "as far as calls were recorded"),
        (UNUSED, "free blocks in PyTorch's segments"),
    ):
        if found.get(other):
            rows.append(Row(other, None, found[other], why))
    total = sum(row.planned or 0 for row in rows)
    rows.append(Row("all", total, sum(found.values()), ""))
    return rows


def _transformers_cache(plan: Plan) -> allocator.Taken:
    """The cache as transformers keeps it: two tensors for each layer, of all sequences."""
    cache, request = plan.budget.cache, plan.request
    length = request.typical_length
    kept = [length if window is None else min(length, window) for window in cache.windows]
    each = [request.sequences * tokens * cache.layer_bytes // 2 for tokens in kept]
    return allocator.allocate(size for size in each for _ in range(2))


def _notes(
    plan: Plan,
    found: dict[str, int],
    engine: str,
    sizes: dict[tuple[str, str, str], int],
    tensors: bool,
) -> list[str]:
    notes = []
    if len(sizes) > 1:
        notes.append(
            f"{len(sizes)} processes or devices hold {min(sizes.values()):,} to "
            f"{max(sizes.values()):,} bytes; the largest is shown"
        )
    if plan.request.ranks > 1 and len(sizes) < plan.request.ranks:
        notes.append(f"the plan is for {plan.request.ranks} ranks, the profile has {len(sizes)}")
    if engine not in _ENGINES:
        notes.append("no stack has a name of a known engine: all is in 'activations and the rest'")
    elif not found.get(KV) and not tensors:
        notes.append(
            "no KV cache by its stacks: PyTorch gives tensors free memory of segments that others "
            "took; a snapshot tells tensor by tensor (gpumemprof snapshot --format pprof)"
        )
    notes.append("the context's own memory is not in calls, so not in a profile")
    return notes


def _bytes(sample: Sample, held: bool) -> int:
    return sample.values.inuse_space if held else sample.values.peak_space


def _matches(rule: Rule, frame: Frame) -> bool:
    if frame.kind is FrameKind.NOTE:
        return False
    where = frame.file if frame.kind is FrameKind.PYTHON else frame.module
    if rule.file not in where:
        return False
    return "" in rule.functions or frame.name.rpartition(".")[2] in rule.functions


def as_json(found: Check) -> dict[str, Any]:
    """For scripts; sizes are bytes."""
    return {
        "profile": found.profile,
        "when": found.when,
        "process": found.process,
        "engine": found.engine,
        "rows": [
            {"name": row.name, "planned": row.planned, "measured": row.measured, "how": row.why}
            for row in found.rows
        ],
        "notes": list(found.notes),
    }
