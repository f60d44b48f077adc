"""How many parameters a model has, and what bytes they take on one of several ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpumemprof.errors import UsageError
from gpumemprof.plan import dtypes
from gpumemprof.plan.architecture import Architecture
from gpumemprof.plan.quantization import Scheme
from gpumemprof.plan.tensor import Shape, Split, Tensor
from gpumemprof.plan.tensors import tensors


def check_parallel(model: Architecture, ranks: int) -> None:
    """Raise UsageError, with the ranks that would do, if ``ranks`` cannot share ``model``."""
    if _shares(model, ranks) is None:
        return
    fitting = [n for n in range(1, min(model.attention.heads, 128) + 1) if not _shares(model, n)]
    raise UsageError(
        f"a tensor parallel size of {ranks} does not divide this model: {_shares(model, ranks)} "
        f"(possible: {', '.join(map(str, fitting))})"
    )


def _shares(model: Architecture, ranks: int) -> str | None:
    """Why ``ranks`` cannot share ``model``; None if they can."""
    if model.attention.heads % ranks:
        return f"it has {model.attention.heads} attention heads"
    try:
        for tensor in tensors(model):
            tensor.sharded(ranks, model.attention)
    except UsageError as error:
        return str(error)
    return None


def parameters(model: Architecture) -> int:
    """Elements of all tensors, tied ones once, without layers that serve only speculation."""
    return sum(tensor.parameters for tensor in tensors(model))


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of one rank. ``by_role``: of what they are; ``replicated``: that every rank has;
    ``padding``: rows of vocabulary that are no parameters."""

    total: int
    by_role: dict[str, int]
    replicated: int
    padding: int


def weights(
    model: Architecture,
    ranks: int = 1,
    *,
    dtype: str | None = None,
    scheme: Scheme | None = None,
    draft: bool = False,
) -> Weights:
    """What one of ``ranks`` holds of ``model``, in bytes; ``dtype`` and ``scheme`` instead of the
    model's own. Raises UsageError if the ranks cannot share it."""
    scheme = model.quantization if scheme is None else scheme
    dtype = model.dtype if dtype is None else dtype
    by_role: dict[str, int] = {}
    replicated = padding = 0
    for tensor in tensors(model, draft=draft):
        shape = tensor.sharded(ranks, model.attention)
        size = _size(tensor, shape, dtype, scheme)
        by_role[tensor.role] = by_role.get(tensor.role, 0) + size
        if tensor.split is Split.WHOLE:
            replicated += size
        if tensor.split is Split.VOCAB:
            padding += size - dtypes.size(tensor.parameters, dtype) // ranks
    return Weights(sum(by_role.values()), by_role, replicated, padding)


def _size(tensor: Tensor, shape: Shape, dtype: str, scheme: Scheme) -> int:
    plain = dtypes.size(math.prod(shape), dtype)
    if len(shape) != 2 or not scheme or tensor.role not in scheme.roles:
        return tensor.count * plain
    quantised = scheme.size(*shape)
    if not scheme.untouched:
        return tensor.count * quantised
    return tensor.copies * sum(
        quantised if scheme.covers(tensor.role, tensor.module.replace("*", str(layer))) else plain
        for layer in (tensor.layers if tensor.layers is not None else (0,))
    )
