"""The key-value cache: bytes per token, per block, per sequence, on one rank."""

from __future__ import annotations

from dataclasses import dataclass

from gpumemprof.plan import dtypes
from gpumemprof.plan.architecture import Architecture, Attention
from gpumemprof.plan.tensor import kv_heads_per_rank


@dataclass(frozen=True, slots=True)
class KVCache:
    """``layer_bytes``: of one token in one layer. ``windows``: for each layer how many tokens it
    keeps, None for all. ``block_size``: tokens of a block. ``formula``: of ``layer_bytes``."""

    layer_bytes: int
    windows: tuple[int | None, ...]
    block_size: int
    formula: str

    @property
    def token_bytes(self) -> int:
        """Of one token in all layers, as if none forgot."""
        return self.layer_bytes * len(self.windows)

    @property
    def block_bytes(self) -> int:
        """Of one block in all layers."""
        return self.token_bytes * self.block_size

    @property
    def full_layers(self) -> int:
        """Layers that keep every token."""
        return sum(window is None for window in self.windows)

    def blocks(self, available: int) -> int:
        """Blocks that ``available`` bytes hold, rounded down."""
        return max(0, available) // self.block_bytes

    def kept(self, length: int) -> int:
        """Tokens, summed over layers, that a sequence of ``length`` keeps: whole blocks, at most
        its window in a layer that has one."""
        full = _rounded(length, self.block_size)
        return sum(
            full if window is None else min(full, _rounded(window, self.block_size))
            for window in self.windows
        )

    def sequence_bytes(self, length: int) -> int:
        """Of one sequence of ``length`` tokens."""
        return self.kept(length) * self.layer_bytes

    def longest(self, available: int, sequences: int = 1) -> int | None:
        """The longest length at which ``sequences`` fit in ``available`` bytes; None if any length
        does (every layer has a window)."""
        tokens = max(0, available) // sequences // self.layer_bytes
        top = max((window or 0 for window in self.windows), default=0)
        if not self.full_layers and self.kept(max(top, 1)) <= tokens:
            return None
        low, high = 0, tokens // self.block_size + 1
        while low < high:  # in blocks
            middle = (low + high + 1) // 2
            if self.kept(middle * self.block_size) <= tokens:
                low = middle
            else:
                high = middle - 1
        return low * self.block_size


def kv_cache(
    model: Architecture,
    ranks: int = 1,
    *,
    dtype: str = "auto",
    block_size: int = 16,
    draft_layers: int = 0,
) -> KVCache:
    """The cache of ``model`` on one of ``ranks``; ``draft_layers``: layers of the same kind that
    speculative decoding adds, which keep every token.

    Raises UsageError for a dtype that is not known or ranks that cannot share the heads."""
    dtype = model.dtype if dtype == "auto" else dtypes.name(dtype)
    attention = model.attention
    if isinstance(attention, Attention):
        heads = kv_heads_per_rank(attention.kv_heads, ranks)
        elements = 2 * heads * attention.head_dim
        formula = f"2 × max(1, {attention.kv_heads} KV heads / {ranks}) × {attention.head_dim}"
    else:
        elements = attention.kv_rank + attention.rope_dim
        formula = f"({attention.kv_rank} latent + {attention.rope_dim} rotated), on every rank,"
    return KVCache(
        dtypes.size(elements, dtype),
        (*model.windows, *[None] * draft_layers),
        block_size,
        f"{formula} × {dtypes.BITS[dtype] / 8:g} bytes ({dtype})",
    )


def _rounded(length: int, block: int) -> int:
    return -(-length // block) * block
