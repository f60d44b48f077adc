"""In which sizes and order a model's tensors are allocated: what the allocator's rounding is of.

Engines fuse q, k and v, gate and up, and all experts of a layer into one tensor each; plain
PyTorch and transformers keep what is in the checkpoint. Both go layer by layer.
"""

from __future__ import annotations

import math

from gpumemprof.plan import dtypes
from gpumemprof.plan.architecture import Architecture
from gpumemprof.plan.quantization import Scheme
from gpumemprof.plan.tensor import Tensor
from gpumemprof.plan.tensors import tensors

_FUSED = {
    "q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "gate_up", "up_proj": "gate_up",
}  # fmt: skip
_MOST = 200_000
"""Tensors beyond which experts are taken as one, as engines do."""


def sizes(model: Architecture, ranks: int, dtype: str, scheme: Scheme, *, fused: bool) -> list[int]:
    """Bytes of each tensor on one of ``ranks``, in the order of loading; RoPE tables among them
    if ``fused`` (engines keep them, others compute them)."""
    every = list(tensors(model))
    order = [_bytes(t, ranks, model, dtype, scheme) for t in every if t.role == "embedding"]
    if fused:
        width = dtypes.BITS[dtype] // 8
        order += [rows * model.rope_dim * width for rows in model.rope_rows]
    count = sum(tensor.count for tensor in every)
    layered = [(t, frozenset(t.layers)) for t in every if t.layers is not None]
    for layer in range(max(model.layers, model.vision.layers if model.vision else 0)):
        here = [tensor for tensor, layers in layered if layer in layers]
        order += _layer(here, ranks, model, dtype, scheme, fused or count > _MOST)
    once = [t for t in every if t.layers is None and t.role != "embedding"]
    return order + [_bytes(t, ranks, model, dtype, scheme) for t in once]


def _layer(
    here: list[Tensor], ranks: int, model: Architecture, dtype: str, scheme: Scheme, fused: bool
) -> list[int]:
    groups: dict[str, int] = {}
    apart: list[int] = []
    for tensor in here:
        one = _bytes(tensor, ranks, model, dtype, scheme)
        if tensor.name.endswith("input_layernorm.weight"):  # a row for all norms of a layer
            apart += [one // model.norms] * model.norms
        elif fused:
            *path, module, part = tensor.name.split(".")
            name = ".".join((*path, _FUSED.get(module, module), part))
            groups[name] = groups.get(name, 0) + one * tensor.copies
        else:
            apart += [one] * tensor.copies
    return [*groups.values(), *apart]


def _bytes(tensor: Tensor, ranks: int, model: Architecture, dtype: str, scheme: Scheme) -> int:
    """Of one copy in one layer."""
    shape = tensor.sharded(ranks, model.attention)
    if scheme.covers(tensor.role, tensor.module) and len(shape) == 2:
        return scheme.size(*shape)
    return dtypes.size(math.prod(shape), dtype)
