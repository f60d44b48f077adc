"""One tensor of a model, and the part of it that one of several ranks holds."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TypeAlias

from gpumemprof.errors import UsageError
from gpumemprof.plan.architecture import Attention, LatentAttention

VOCAB_PADDING = 64
"""vLLM pads the rows of embeddings and head to a multiple of this."""


class Split(enum.Enum):
    """What a rank of N has of a tensor."""

    WHOLE = "replicated"
    VOCAB = "rows padded to a multiple of 64, then split"
    OUTPUTS = "outputs split"
    INPUTS = "inputs split"
    HEADS = "split by heads"
    KV_HEADS = "split by KV heads, of which a rank has at least one"


Shape: TypeAlias = "tuple[int, ...]"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of every layer in ``layers`` (None: of the model). ``copies``: experts.
    ``role``: what quantisation goes by."""

    name: str
    shape: Shape
    split: Split
    role: str
    layers: tuple[int, ...] | None
    copies: int = 1

    @property
    def count(self) -> int:
        """How many of them there are."""
        return self.copies * (1 if self.layers is None else len(self.layers))

    @property
    def parameters(self) -> int:
        """Elements of all of them."""
        return self.count * math.prod(self.shape)

    @property
    def module(self) -> str:
        """The name without its last part."""
        return self.name.rpartition(".")[0]

    def sharded(self, ranks: int, attention: Attention | LatentAttention) -> Shape:
        """The shape that one of ``ranks`` holds. Raises UsageError if they cannot share it."""
        if self.split is Split.WHOLE:
            return self.shape
        rows, *rest = self.shape
        if self.split is Split.VOCAB:
            padded = -(-rows // VOCAB_PADDING) * VOCAB_PADDING
            return (_divided(padded, ranks, "the padded vocabulary"), *rest)
        if self.split is Split.INPUTS:
            return (rows, _divided(rest[0], ranks, f"the inputs of {self.name}"))
        if self.split is Split.OUTPUTS:
            return (_divided(rows, ranks, f"the outputs of {self.name}"), *rest)
        if self.split is Split.HEADS:
            return (_divided(rows, ranks, f"the heads of {self.name}"), *rest)
        heads = attention.kv_heads if isinstance(attention, Attention) else attention.heads
        return (rows // heads * kv_heads_per_rank(heads, ranks), *rest)


def kv_heads_per_rank(kv_heads: int, ranks: int) -> int:
    """``max(1, kv_heads / ranks)``: with more ranks than heads, several ranks have the same one.

    Raises UsageError if neither is a multiple of the other."""
    if kv_heads % ranks and ranks % kv_heads:
        raise UsageError(f"{kv_heads} KV heads cannot be shared by {ranks} ranks")
    return max(1, kv_heads // ranks)


def _divided(size: int, ranks: int, what: str) -> int:
    if size % ranks:
        raise UsageError(f"{what}, {size:,}, cannot be divided by {ranks} ranks")
    return size // ranks
