"""What fits: vLLM's budget, blocks and sequences; and what would have to change.

    total × utilisation − weights − RoPE tables − activations − outside PyTorch − CUDA graphs
        = KV cache → blocks of 16 tokens, rounded down

Weights, tables and the cache are exact; the others are estimates with a range unless given as
measured. All sizes are bytes of one rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpumemprof.errors import UsageError
from gpumemprof.plan import dtypes
from gpumemprof.plan.architecture import Architecture
from gpumemprof.plan.kv_cache import KVCache

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Amount:
    """Bytes; an estimate has a range around it. ``formula``: how it came about."""

    bytes: int
    formula: str
    low: int | None = None
    high: int | None = None

    @property
    def estimated(self) -> bool:
        """Whether it is no exact or measured figure."""
        return self.low is not None

    @property
    def range(self) -> tuple[int, int]:
        """The least and the most it may be."""
        return (
            self.bytes if self.low is None else self.low,
            self.bytes if self.high is None else self.high,
        )


def measured(size: int) -> Amount:
    """An amount that the user gave."""
    return Amount(size, "as given")


def rope_tables(model: Architecture, dtype: str) -> Amount:
    """Cosines and sines by position, as vLLM keeps them: one table for all layers of a kind."""
    rows = sum(model.rope_rows)
    shown = " + ".join(f"{n:,}" for n in model.rope_rows)
    width = dtypes.BITS[dtype] // 8
    return Amount(
        rows * model.rope_dim * width, f"({shown}) positions × {model.rope_dim} × {width} bytes"
    )


def activations(model: Architecture, ranks: int, tokens: int, sequences: int) -> Amount:
    """Estimate of PyTorch's peak beside weights and cache in vLLM's profile run: the widest layer
    for ``tokens`` at once, and the logits of ``sequences`` in 32 bits with what sampling copies.

    Measured: 1.26 GiB for Llama-3-8B on one rank and on two (8,192 tokens, 256 sequences);
    from half to twice the estimate is given as the range."""
    width = model.experts.active * model.experts.intermediate if model.experts else 0
    width = max(width, model.intermediate if model.dense_layers else 0)
    layer = tokens * (3 * width // ranks + 4 * model.hidden) * 2
    logits = sequences * model.vocab * 4 * 3
    size = layer + logits
    return Amount(
        size,
        f"{tokens:,} tokens × (3 × {width:,} / {ranks} + 4 × {model.hidden:,}) × 2 bytes + "
        f"{sequences:,} × {model.vocab:,} logits × 12 bytes",
        size // 2,
        size * 2,
    )


def outside_torch(ranks: int) -> Amount:
    """Estimate of CUDA's context and code, cuBLAS workspaces and NCCL.

    vLLM logs 0.13 to 1.79 GiB on one GPU and 0.2 to 3.58 GiB with NCCL (vllm-project/vllm pull
    requests 10511, 12126, 14447); a PyTorch process on an H200 had 0.51 GiB."""
    if ranks == 1:
        return Amount(GIB // 2, "context, code, workspaces: typical", 128 * MIB, 9 * GIB // 5)
    return Amount(GIB, "context, code, workspaces, NCCL: typical", 200 * MIB, 18 * GIB // 5)


def cuda_graphs(eager: bool) -> Amount:
    """Estimate of captured graphs: vLLM logs 0.26 to 0.46 GiB in recent versions, of 2.4 GiB in
    0.5 (vllm-project/vllm pull request 30515, issues 57475 and 7553)."""
    if eager:
        return Amount(0, "none: --enforce-eager")
    return Amount(400 * MIB, "captured graphs: typical", 100 * MIB, 2 * GIB)


@dataclass(frozen=True, slots=True)
class Budget:
    """Of one rank. ``total``: bytes that CUDA tells of the GPU; ``utilization``: which part of it
    the engine takes; ``spent``: what goes before the cache, by name."""

    total: int
    utilization: float
    spent: dict[str, Amount]
    cache: KVCache

    @property
    def usable(self) -> int:
        """``total × utilization``."""
        return int(self.total * self.utilization)

    @property
    def fixed(self) -> int:
        """What goes before the cache."""
        return sum(amount.bytes for amount in self.spent.values())

    @property
    def available(self) -> int:
        """What is left for the cache: negative if not even the rest fits."""
        return self.usable - self.fixed

    @property
    def available_range(self) -> tuple[int, int]:
        """With every estimate at its most, and at its least."""
        ranges = [amount.range for amount in self.spent.values()]
        return (
            self.usable - sum(high for _, high in ranges),
            self.usable - sum(low for low, _ in ranges),
        )

    @property
    def blocks(self) -> int:
        """Blocks of the cache, rounded down."""
        return self.cache.blocks(self.available)

    @property
    def tokens(self) -> int:
        """Tokens in all blocks, as if no layer forgot."""
        return self.blocks * self.cache.block_size

    def concurrency(self, length: int) -> float:
        """How many sequences of ``length`` tokens the blocks hold."""
        return self.blocks * self.cache.block_bytes / self.cache.sequence_bytes(length)

    def needed(self, length: int, sequences: int) -> int:
        """Bytes for ``sequences`` of ``length`` tokens, and all that goes before."""
        return self.fixed + sequences * self.cache.sequence_bytes(length)

    def fits(self, length: int, sequences: int = 1) -> bool:
        """Whether they fit."""
        return self.needed(length, sequences) <= self.usable

    def utilization_for(self, length: int, sequences: int = 1) -> float | None:
        """The least utilisation at which they fit, rounded up to a hundredth; None above 1."""
        hundredths = -(-self.needed(length, sequences) * 100 // self.total)
        return hundredths / 100 if hundredths <= 100 else None

    def length_for(self, sequences: int = 1) -> int | None:
        """The longest length at which ``sequences`` fit, 0 if none; None if any does."""
        return self.cache.longest(self.available, sequences)


def check_inputs(total: int, utilization: float, ranks: int, block_size: int) -> None:
    """Raise UsageError for numbers that no plan can be made of."""
    if not 0 < utilization <= 1:
        raise UsageError(f"--gpu-memory-utilization is above 0 and at most 1, not {utilization:g}")
    if not MIB <= total <= 1 << 50:
        raise UsageError(f"a GPU of {total:,} bytes does not exist")
    if not 1 <= ranks <= 1024:
        raise UsageError(f"--tensor-parallel is from 1 to 1,024, not {ranks}")
    if not 1 <= block_size <= 1 << 16:
        raise UsageError(f"--block-size is from 1 to 65,536, not {block_size}")


def parallel_sizes(most: int = 64) -> Iterator[int]:
    """Ranks worth trying: powers of two, as GPUs come."""
    ranks = 1
    while ranks <= most:
        yield ranks
        ranks *= 2
