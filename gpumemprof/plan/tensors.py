"""The tensors of a model: shapes, where they are, what tensor parallelism does to each.

One table for all families; a row is there for a model if its ``layers`` says in which layers.
Matrices are (outputs, inputs). Names are those of Hugging Face checkpoints, of which engines fuse
some (q, k and v; gate and up): that changes no size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpumemprof.plan.architecture import Architecture, Attention, Experts, LatentAttention, Vision
from gpumemprof.plan.tensor import Shape, Split, Tensor


def tensors(model: Architecture, *, draft: bool = False) -> Iterator[Tensor]:
    """Every tensor of ``model``; ``draft``: with its layers for multi-token prediction."""
    for row in _ROWS:
        layers = row.layers(model)
        if layers is None or layers:
            yield Tensor(row.name, row.shape(model), row.split, row.role, layers, row.copies(model))
    if model.vision is not None:
        yield from _vision(model.vision, model.hidden)
    if draft and model.draft_layers:
        yield from _draft(model)


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    shape: Callable[[Architecture], Shape]
    split: Split
    role: str
    layers: Callable[[Architecture], tuple[int, ...] | None]
    copies: Callable[[Architecture], int] = lambda model: 1


def _all(model: Architecture) -> tuple[int, ...]:
    return tuple(range(model.layers))


def _if(condition: Callable[[Architecture], bool]) -> Callable[[Architecture], tuple[int, ...]]:
    return lambda model: _all(model) if condition(model) else ()


def _plain(model: Architecture) -> Attention:
    assert isinstance(model.attention, Attention)
    return model.attention


def _latent(model: Architecture) -> LatentAttention:
    assert isinstance(model.attention, LatentAttention)
    return model.attention


def _is(condition: Callable[[Attention], bool]) -> Callable[[Architecture], tuple[int, ...]]:
    return _if(lambda m: isinstance(m.attention, Attention) and condition(m.attention))


def _mla(condition: Callable[[LatentAttention], bool]) -> Callable[[Architecture], tuple[int, ...]]:
    return _if(lambda m: isinstance(m.attention, LatentAttention) and condition(m.attention))


def _experts(model: Architecture) -> Experts:
    assert model.experts is not None
    return model.experts


def _moe(condition: Callable[[Experts], bool]) -> Callable[[Architecture], tuple[int, ...]]:
    return lambda m: m.moe_layers if m.experts is not None and condition(m.experts) else ()


def _count(model: Architecture) -> int:
    return _experts(model).count


def _queries(m: Architecture) -> int:
    return _plain(m).heads * _plain(m).head_dim


def _keys(m: Architecture) -> int:
    return _plain(m).kv_heads * _plain(m).head_dim


def _rotated(m: Architecture) -> int:
    latent = _latent(m)
    return latent.heads * (latent.nope_dim + latent.rope_dim)


_L = "model.layers.*."
_A = _L + "self_attn."
_M = _L + "mlp."
_X = _M + "experts."
_S = _M + "shared_expert."

_ROWS: tuple[_Row, ...] = (
    _Row("model.embed_tokens.weight", lambda m: (m.vocab, m.hidden), Split.VOCAB, "embedding",
         lambda m: None),
    _Row("lm_head.weight", lambda m: (m.vocab, m.hidden), Split.VOCAB, "head",
         lambda m: () if m.tied else None),
    _Row("model.norm.weight", lambda m: (m.hidden,), Split.WHOLE, "norm", lambda m: None),
    _Row(_L + "input_layernorm.weight", lambda m: (m.norms * m.hidden,), Split.WHOLE, "norm", _all),
    _Row(_A + "q_proj.weight", lambda m: (_queries(m), m.hidden), Split.HEADS, "attention",
         _is(lambda a: True)),
    _Row(_A + "k_proj.weight", lambda m: (_keys(m), m.hidden), Split.KV_HEADS, "attention",
         _is(lambda a: True)),
    _Row(_A + "v_proj.weight", lambda m: (_keys(m), m.hidden), Split.KV_HEADS, "attention",
         _is(lambda a: True)),
    _Row(_A + "o_proj.weight", lambda m: (m.hidden, _queries(m)), Split.INPUTS, "attention",
         _is(lambda a: True)),
    _Row(_A + "q_proj.bias", lambda m: (_queries(m),), Split.HEADS, "bias",
         _is(lambda a: a.qkv_bias)),
    _Row(_A + "k_proj.bias", lambda m: (_keys(m),), Split.KV_HEADS, "bias",
         _is(lambda a: a.qkv_bias)),
    _Row(_A + "v_proj.bias", lambda m: (_keys(m),), Split.KV_HEADS, "bias",
         _is(lambda a: a.qkv_bias)),
    _Row(_A + "o_proj.bias", lambda m: (m.hidden,), Split.WHOLE, "bias",
         _is(lambda a: a.output_bias)),
    _Row(_A + "q_norm.weight", lambda m: (_plain(m).head_dim,), Split.WHOLE, "norm",
         _is(lambda a: a.qk_norm == "head")),
    _Row(_A + "k_norm.weight", lambda m: (_plain(m).head_dim,), Split.WHOLE, "norm",
         _is(lambda a: a.qk_norm == "head")),
    _Row(_A + "q_norm.weight", lambda m: (_queries(m),), Split.WHOLE, "norm",
         _is(lambda a: a.qk_norm == "heads")),
    _Row(_A + "k_norm.weight", lambda m: (_keys(m),), Split.WHOLE, "norm",
         _is(lambda a: a.qk_norm == "heads")),
    _Row(_A + "sinks", lambda m: (_plain(m).heads,), Split.HEADS, "bias", _is(lambda a: a.sinks)),
    # Multi-head latent attention: what is compressed is replicated, what has heads is split.
    _Row(_A + "q_proj.weight", lambda m: (_rotated(m), m.hidden), Split.HEADS, "attention",
         _mla(lambda a: a.q_rank is None)),
    _Row(_A + "q_a_proj.weight", lambda m: (_latent(m).q_rank or 0, m.hidden), Split.WHOLE,
         "attention", _mla(lambda a: a.q_rank is not None)),
    _Row(_A + "q_a_layernorm.weight", lambda m: (_latent(m).q_rank or 0,), Split.WHOLE, "norm",
         _mla(lambda a: a.q_rank is not None)),
    _Row(_A + "q_b_proj.weight", lambda m: (_rotated(m), _latent(m).q_rank or 0), Split.HEADS,
         "attention", _mla(lambda a: a.q_rank is not None)),
    _Row(_A + "kv_a_proj_with_mqa.weight",
         lambda m: (_latent(m).kv_rank + _latent(m).rope_dim, m.hidden), Split.WHOLE, "attention",
         _mla(lambda a: True)),
    _Row(_A + "kv_a_layernorm.weight", lambda m: (_latent(m).kv_rank,), Split.WHOLE, "norm",
         _mla(lambda a: True)),
    _Row(_A + "kv_b_proj.weight",
         lambda m: (_latent(m).heads * (_latent(m).nope_dim + _latent(m).value_dim),
                    _latent(m).kv_rank), Split.HEADS, "attention", _mla(lambda a: True)),
    _Row(_A + "o_proj.weight", lambda m: (m.hidden, _latent(m).heads * _latent(m).value_dim),
         Split.INPUTS, "attention", _mla(lambda a: True)),
    _Row(_M + "gate_proj.weight", lambda m: (m.intermediate, m.hidden), Split.OUTPUTS, "mlp",
         lambda m: m.dense_layers),
    _Row(_M + "up_proj.weight", lambda m: (m.intermediate, m.hidden), Split.OUTPUTS, "mlp",
         lambda m: m.dense_layers),
    _Row(_M + "down_proj.weight", lambda m: (m.hidden, m.intermediate), Split.INPUTS, "mlp",
         lambda m: m.dense_layers),
    _Row(_M + "gate_proj.bias", lambda m: (m.intermediate,), Split.OUTPUTS, "bias",
         lambda m: m.dense_layers if m.mlp_bias else ()),
    _Row(_M + "up_proj.bias", lambda m: (m.intermediate,), Split.OUTPUTS, "bias",
         lambda m: m.dense_layers if m.mlp_bias else ()),
    _Row(_M + "down_proj.bias", lambda m: (m.hidden,), Split.WHOLE, "bias",
         lambda m: m.dense_layers if m.mlp_bias else ()),
    _Row(_M + "gate.weight", lambda m: (_count(m), m.hidden), Split.WHOLE, "router",
         _moe(lambda x: True)),
    _Row(_M + "gate.bias", lambda m: (_count(m),), Split.WHOLE, "router",
         _moe(lambda x: x.router_bias)),
    _Row(_M + "gate.e_score_correction_bias", lambda m: (_count(m),), Split.WHOLE, "router",
         _moe(lambda x: x.score_bias)),
    _Row(_X + "gate_proj.weight", lambda m: (_experts(m).intermediate, m.hidden), Split.OUTPUTS,
         "expert", _moe(lambda x: True), _count),
    _Row(_X + "up_proj.weight", lambda m: (_experts(m).intermediate, m.hidden), Split.OUTPUTS,
         "expert", _moe(lambda x: True), _count),
    _Row(_X + "down_proj.weight", lambda m: (m.hidden, _experts(m).intermediate), Split.INPUTS,
         "expert", _moe(lambda x: True), _count),
    _Row(_X + "gate_up_proj.bias", lambda m: (2 * _experts(m).intermediate,), Split.OUTPUTS, "bias",
         _moe(lambda x: x.bias), _count),
    _Row(_X + "down_proj.bias", lambda m: (m.hidden,), Split.WHOLE, "bias",
         _moe(lambda x: x.bias), _count),
    _Row(_S + "gate_proj.weight", lambda m: (_experts(m).shared, m.hidden), Split.OUTPUTS, "mlp",
         _moe(lambda x: x.shared > 0)),
    _Row(_S + "up_proj.weight", lambda m: (_experts(m).shared, m.hidden), Split.OUTPUTS, "mlp",
         _moe(lambda x: x.shared > 0)),
    _Row(_S + "down_proj.weight", lambda m: (m.hidden, _experts(m).shared), Split.INPUTS, "mlp",
         _moe(lambda x: x.shared > 0)),
    _Row(_M + "shared_expert_gate.weight", lambda m: (1, m.hidden), Split.WHOLE, "router",
         _moe(lambda x: x.shared_gate)),
)  # fmt: skip


def _vision(vision: Vision, hidden: int) -> Iterator[Tensor]:
    """SigLIP, and the projection to the text model; engines keep it whole on every rank."""
    wide, layers = vision.hidden, tuple(range(vision.layers))
    patches = (vision.image // vision.patch) ** 2
    once: tuple[tuple[str, Shape], ...] = (
        ("embeddings.patch_embedding.weight", (wide, vision.channels, vision.patch, vision.patch)),
        ("embeddings.patch_embedding.bias", (wide,)),
        ("embeddings.position_embedding.weight", (patches, wide)),
        ("post_layernorm.weight", (wide,)),
        ("post_layernorm.bias", (wide,)),
        ("multi_modal_projector.mm_input_projection_weight", (wide, hidden)),
        ("multi_modal_projector.mm_soft_emb_norm.weight", (wide,)),
    )
    each: tuple[tuple[str, Shape], ...] = (
        ("self_attn.qkvo.weight", (4 * wide, wide)),
        ("self_attn.qkvo.bias", (4 * wide,)),
        ("mlp.fc1.weight", (vision.intermediate, wide)),
        ("mlp.fc1.bias", (vision.intermediate,)),
        ("mlp.fc2.weight", (wide, vision.intermediate)),
        ("mlp.fc2.bias", (wide,)),
        ("layer_norms", (4 * wide,)),
    )
    for name, shape in once:
        yield Tensor(f"vision_tower.{name}", shape, Split.WHOLE, "vision", None)
    for name, shape in each:
        yield Tensor(f"vision_tower.layers.*.{name}", shape, Split.WHOLE, "vision", layers)


def _draft(model: Architecture) -> Iterator[Tensor]:
    """DeepSeek's layers for multi-token prediction: a decoder layer each, two norms and one more
    before the head, and a projection of two hidden states to one; embeddings and head are the
    model's own."""
    own = tuple(range(model.layers, model.layers + model.draft_layers))
    for row in _ROWS:
        layers = row.layers(model)
        last_is_in = layers is not None and model.layers - 1 in layers
        if last_is_in:
            yield Tensor(row.name, row.shape(model), row.split, row.role, own, row.copies(model))
    yield Tensor(_L + "eh_proj.weight", (model.hidden, 2 * model.hidden), Split.WHOLE, "draft", own)
    yield Tensor(_L + "draft_norms", (3 * model.hidden,), Split.WHOLE, "norm", own)
