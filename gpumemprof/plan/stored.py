"""What one rank holds of a checkpoint: each stored tensor, split as its module is split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpumemprof.plan.safetensors import Stored

SPLIT_MODULES: frozenset[str] = frozenset(
    {
        "embed_tokens", "lm_head", "q_proj", "o_proj", "qkv_proj", "q_b_proj", "kv_b_proj",
        "gate_proj", "up_proj", "down_proj", "gate_up_proj", "w1", "w2", "w3", "input_linear",
        "output_linear", "sinks", "wqkv", "wo",
    }
)  # fmt: skip
"""Modules that ranks share; all others are replicated."""
KV_MODULES = frozenset({"k_proj", "v_proj"})
ROW_PARALLEL = frozenset({"o_proj", "down_proj", "w2", "output_linear", "wo"})
"""Split along the inputs: their biases, and scales of whole outputs, are replicated."""
_WHOLE_PARTS = frozenset({"bias", "weight_scale", "g_idx", "input_scale", "weight_scale_2"})


@dataclass(frozen=True, slots=True)
class Share:
    """Bytes of one rank, and of these what every rank has."""

    total: int
    replicated: int


def share(
    tensors: Sequence[Stored], ranks: int, kv_heads: int, *, skip: Sequence[str] = ()
) -> Share:
    """What one of ``ranks`` holds, in bytes, rounded up tensor by tensor. ``skip``: beginnings of
    names that the engine does not load (draft layers, a second copy of tied embeddings)."""
    total = replicated = 0
    for tensor in tensors:
        if any(tensor.name.startswith(prefix) for prefix in skip):
            continue
        ways = _ways(tensor, ranks, kv_heads)
        size = -(-tensor.size // ways)
        total += size
        if ways == 1:
            replicated += size
    return Share(total, replicated)


def _ways(tensor: Stored, ranks: int, kv_heads: int) -> int:
    """Among how many ranks a tensor is divided."""
    parts = tensor.name.split(".")
    if "vision_tower" in parts or "multi_modal_projector" in parts:
        return 1
    module = next((p for p in reversed(parts) if p in SPLIT_MODULES or p in KV_MODULES), None)
    if module is None or len(tensor.shape) == 0:
        return 1
    if module in KV_MODULES:
        return min(ranks, kv_heads)
    if (
        module in ROW_PARALLEL
        and parts[-1] in _WHOLE_PARTS
        and 1 in (len(tensor.shape), *tensor.shape[1:])
    ):
        return 1
    return ranks
