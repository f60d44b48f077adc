"""What of a model decides its memory, as one value. Sizes are element counts unless named."""

from __future__ import annotations

from dataclasses import dataclass

from gpumemprof.plan.quantization import NONE, Scheme


@dataclass(frozen=True, slots=True)
class Attention:
    """Multi-head attention with shared key and value heads (all, some or one of them).

    ``qk_norm``: ``""``, ``"head"`` (one weight per element of a head) or ``"heads"`` (one per
    element of every head). ``sinks``: a learned scalar per head (GPT-OSS)."""

    heads: int
    kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: str = ""
    sinks: bool = False


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek V2 and later): what is cached is one latent vector
    and one rotated key per token, whatever the number of heads. ``q_rank``: None where queries
    are not compressed."""

    heads: int
    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class Experts:
    """The mixture of experts of a layer. ``shared``: width of the experts that every token goes
    through, 0 if there are none; ``shared_gate``: their output is weighed by a learned gate;
    ``router_bias``, ``score_bias``: a bias per expert in the router, or in the choice only;
    ``bias``: the experts' own matrices have biases."""

    count: int
    active: int
    intermediate: int
    shared: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    score_bias: bool = False
    bias: bool = False


@dataclass(frozen=True, slots=True)
class Vision:
    """A SigLIP image encoder and its projector (Gemma 3)."""

    hidden: int
    intermediate: int
    layers: int
    patch: int
    image: int
    channels: int = 3


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder-only transformer.

    ``moe_layers``: which layers have experts instead of one MLP. ``windows``: for each layer how
    many tokens its attention sees, None for all. ``norms``: layer norms of hidden size per layer.
    ``rope_rows``: rows of each different RoPE table; ``rope_dim``: elements of a row.
    ``draft_layers``: layers for multi-token prediction that the
    checkpoint has and that serve only speculative decoding. ``dtype``: of what is not quantised.
    """

    family: str
    hidden: int
    layers: int
    vocab: int
    intermediate: int
    attention: Attention | LatentAttention
    tied: bool
    dtype: str
    max_positions: int
    windows: tuple[int | None, ...]
    rope_rows: tuple[int, ...]
    rope_dim: int
    norms: int = 2
    mlp_bias: bool = False
    experts: Experts | None = None
    moe_layers: tuple[int, ...] = ()
    draft_layers: int = 0
    vision: Vision | None = None
    quantization: Scheme = NONE

    @property
    def dense_layers(self) -> tuple[int, ...]:
        """Layers with one MLP."""
        moe = set(self.moe_layers)
        return tuple(layer for layer in range(self.layers) if layer not in moe)
