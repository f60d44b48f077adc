"""The families of decoder-only models: how their config.json is to be read, as data.

Source: the models' own config.json files and the class defaults of Hugging Face transformers'
configuration classes, checked by the published parameter counts (tests/unit/plan). Adding a family
is adding a row here, and its tensors, where they are new, to parameters.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Switch: TypeAlias = "bool | str"
"""Always so, or as the config's key of that name says (absent: as ``defaults`` says, else no)."""


@dataclass(frozen=True, slots=True)
class ExpertKeys:
    """Under which keys a config tells its experts. ``shared``: key of the width of the shared
    expert; ``shared_count``: key of how many experts' width it is instead. ``every``, ``first``,
    ``dense``: keys of the step between layers with experts, of the first such layer, and of the
    list of layers without. ``score_bias``: a bias in the choice, if ``topk_method`` says so."""

    count: str = "num_local_experts"
    active: str = "num_experts_per_tok"
    intermediate: str = "intermediate_size"
    shared: str = ""
    shared_count: str = ""
    shared_gate: bool = False
    router_bias: bool = False
    score_bias: bool = False
    bias: bool = False
    every: str = ""
    first: str = ""
    dense: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """``windows``: which layers see a window only: ``none``, ``all``, ``qwen`` (from
    ``max_window_layers`` on, if ``use_sliding_window``), ``pattern`` (all but every
    ``sliding_window_pattern``-th). A config's own ``layer_types`` goes before it.
    ``latent``: multi-head latent attention. ``vision``: has a ``text_config`` and maybe a
    ``vision_config``."""

    title: str
    qkv_bias: Switch = False
    output_bias: Switch = False
    mlp_bias: Switch = False
    qk_norm: str = ""
    qk_norm_if: str = ""
    sinks: bool = False
    norms: int = 2
    latent: bool = False
    experts: ExpertKeys | None = None
    windows: str = "none"
    local_rope: bool = False
    draft_key: str = ""
    vision: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)


_LLAMA = Family("Llama", "attention_bias", "attention_bias", "mlp_bias")
_QWEN2 = Family(
    "Qwen2", qkv_bias=True, windows="qwen",
    defaults={"max_window_layers": 28, "sliding_window": 4096},
)  # fmt: skip
_QWEN3 = Family(
    "Qwen3", "attention_bias", "attention_bias", qk_norm="head", windows="qwen",
    defaults={"head_dim": 128, "max_window_layers": 28, "sliding_window": 4096},
)  # fmt: skip
_QWEN2_EXPERTS = ExpertKeys(
    "num_experts", intermediate="moe_intermediate_size", shared="shared_expert_intermediate_size",
    shared_gate=True, every="decoder_sparse_step", dense="mlp_only_layers",
)  # fmt: skip
_QWEN3_EXPERTS = ExpertKeys(
    "num_experts", intermediate="moe_intermediate_size",
    every="decoder_sparse_step", dense="mlp_only_layers",
)  # fmt: skip
_DEEPSEEK = ExpertKeys(
    "n_routed_experts", intermediate="moe_intermediate_size", shared_count="n_shared_experts",
    score_bias=True, every="moe_layer_freq", first="first_k_dense_replace",
)  # fmt: skip
_DEEPSEEK_V2 = Family(
    "DeepSeek V2", latent=True, experts=_DEEPSEEK, defaults={"tie_word_embeddings": False}
)
_DEEPSEEK_V3 = Family(
    "DeepSeek V3", latent=True, experts=_DEEPSEEK, draft_key="num_nextn_predict_layers",
    defaults={"topk_method": "noaux_tc"},
)  # fmt: skip
_GEMMA3_TEXT = Family(
    "Gemma 3", "attention_bias", "attention_bias", qk_norm="head", norms=4, windows="pattern",
    local_rope=True,
    defaults={
        "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "max_position_embeddings": 131072, "sliding_window": 4096, "sliding_window_pattern": 6,
        "tie_word_embeddings": True,
    },
)  # fmt: skip

FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "internlm2": _LLAMA,
    "smollm3": _LLAMA,
    "mistral": Family("Mistral", windows="all", defaults={"sliding_window": None}),
    "mixtral": Family("Mixtral", experts=ExpertKeys(), windows="all"),
    "qwen2": _QWEN2,
    "qwen2_moe": Family(
        "Qwen2 MoE", qkv_bias=True, windows="qwen", experts=_QWEN2_EXPERTS,
        defaults=_QWEN2.defaults,
    ),
    "qwen3": _QWEN3,
    "qwen3_moe": Family(
        "Qwen3 MoE", "attention_bias", "attention_bias", qk_norm="head", windows="qwen",
        experts=_QWEN3_EXPERTS, defaults=_QWEN3.defaults,
    ),
    "gemma": Family(
        "Gemma", "attention_bias", "attention_bias",
        defaults={"tie_word_embeddings": True, "head_dim": 256},
    ),
    "gemma2": Family(
        "Gemma 2", "attention_bias", "attention_bias", norms=4, windows="pattern",
        defaults={
            "tie_word_embeddings": True, "head_dim": 256, "sliding_window": 4096,
            "sliding_window_pattern": 2,
        },
    ),
    "gemma3_text": _GEMMA3_TEXT,
    "gemma3": Family("Gemma 3", vision=True),
    "phi3": Family("Phi-3", windows="all"),
    "deepseek_v2": _DEEPSEEK_V2,
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
    "gpt_oss": Family(
        "GPT-OSS", True, True, sinks=True, windows="pattern",
        experts=ExpertKeys(router_bias=True, bias=True),
        defaults={"sliding_window": 128, "sliding_window_pattern": 2},
    ),
    "granite": Family("Granite", "attention_bias", "attention_bias", "mlp_bias"),
    "granitemoe": Family(
        "Granite MoE", "attention_bias", "attention_bias", experts=ExpertKeys()
    ),
    "olmo2": Family("OLMo 2", "attention_bias", "attention_bias", qk_norm="heads"),
    "olmoe": Family(
        "OLMoE", "attention_bias", "attention_bias", qk_norm="heads",
        experts=ExpertKeys("num_experts"),
    ),
}  # fmt: skip
"""By ``model_type``."""

VISION_DEFAULTS: Mapping[str, int] = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "patch_size": 14,
    "image_size": 896,
}
"""Of Gemma 3's image encoder, where a config leaves them out."""
