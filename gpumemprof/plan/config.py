"""Reading a model's config.json into an Architecture. Every value of the file is checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpumemprof.errors import UsageError
from gpumemprof.plan import dtypes, quantization
from gpumemprof.plan.architecture import Architecture, Attention, Experts, LatentAttention, Vision
from gpumemprof.plan.families import FAMILIES, VISION_DEFAULTS, ExpertKeys, Family
from gpumemprof.plan.positions import rope_rows, windows
from gpumemprof.plan.values import MAX_POSITIONS, MAX_SIZE, Values, bounded, show
from gpumemprof.profile.text import printable

MAX_CONFIG = 8 << 20
"""Bytes of a config.json that are read."""
MAX_LAYERS = 1_000
_MAX_EXPERTS = 10_000
_MAX_VOCAB = 1 << 28


def load(path: Path) -> Architecture:
    """The architecture that the config.json at ``path`` describes.

    Raises UsageError if it cannot be read, is not JSON, or ``architecture`` refuses it."""
    try:
        if path.exists() and not path.is_file():  # a pipe without a writer would never answer
            raise UsageError(f"{printable(str(path))} is no plain file")
        with path.open("rb") as file:
            data = file.read(MAX_CONFIG + 1)
    except OSError as error:
        raise UsageError(
            f"{printable(str(path))} cannot be read: {error.strerror or error}"
        ) from error
    if len(data) > MAX_CONFIG:
        raise UsageError(f"{printable(str(path))} has more than {MAX_CONFIG:,} bytes, the limit")
    try:
        config = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{printable(str(path))} is not JSON") from error
    try:
        return architecture(config)
    except UsageError as error:
        raise UsageError(f"{printable(str(path))}: {error}") from error


def architecture(config: object) -> Architecture:
    """The architecture that ``config`` describes, a config.json as Python values.

    Raises UsageError, with the key and the reason, for a model type that is not known, a key that
    is missing, out of bounds or of another type, and for keys that contradict each other."""
    if not isinstance(config, dict):
        raise UsageError("a config.json is an object, this is something else")
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise UsageError("it has no model_type: is it a model's config.json?")
    family = FAMILIES.get(kind)
    if family is None:
        raise UsageError(
            f"the model type {printable(kind[:60])!r} is not known (known: {', '.join(FAMILIES)})"
        )
    if not family.vision:
        return _Reader(config, family).architecture()
    text = config.get("text_config")
    if not isinstance(text, dict):
        raise UsageError(f"a {kind} config needs a text_config")
    kind += "_text"
    outer = {
        key: config[key]
        for key in ("torch_dtype", "dtype", "quantization_config", "tie_word_embeddings")
        if key in config
    }
    reader = _Reader({**outer, **text}, FAMILIES[kind])
    vision = config.get("vision_config")
    return reader.architecture(_vision(vision) if vision is not None else None)


class _Reader:
    """Reads one flat config, with its family's defaults."""

    def __init__(self, config: Mapping[str, Any], family: Family) -> None:
        self._values = Values(config, family.defaults)
        self._config = config
        self._family = family

    def architecture(self, vision: Vision | None = None) -> Architecture:
        family = self._family
        hidden = self._values.size("hidden_size")
        layers = self._values.size("num_hidden_layers", most=MAX_LAYERS)
        attention = self._latent() if family.latent else self._attention(hidden)
        rotary = (
            attention.rope_dim if isinstance(attention, LatentAttention) else attention.head_dim
        )
        positions = self._values.size("max_position_embeddings", most=MAX_POSITIONS)
        experts, moe_layers = self._experts(layers)
        intermediate = (
            self._values.size("intermediate_size") if len(moe_layers) < layers or not experts
            else self._values.size("intermediate_size", experts.intermediate)
        )  # fmt: skip
        return Architecture(
            family=family.title,
            hidden=hidden,
            layers=layers,
            vocab=self._values.size("vocab_size", most=_MAX_VOCAB),
            intermediate=intermediate,
            attention=attention,
            tied=self._values.flag("tie_word_embeddings"),
            dtype=self._dtype(),
            max_positions=positions,
            windows=windows(self._values, family, layers),
            rope_rows=rope_rows(self._values, family, positions),
            rope_dim=int(rotary * self._values.fraction("partial_rotary_factor")),
            norms=family.norms,
            mlp_bias=self._values.switch(family.mlp_bias),
            experts=experts,
            moe_layers=moe_layers,
            draft_layers=self._values.count(family.draft_key) if family.draft_key else 0,
            vision=vision,
            quantization=self._quantization(),
        )

    def _dtype(self) -> str:
        value = self._values.get("dtype") or self._values.get("torch_dtype") or "bfloat16"
        if not isinstance(value, str):
            raise UsageError(f"torch_dtype is a name, not {show(value)}")
        found = dtypes.name(value)
        if found not in dtypes.WEIGHT_DTYPES:
            raise UsageError(f"weights in {found} need a quantization_config")
        return found

    def _attention(self, hidden: int) -> Attention:
        heads = self._values.size("num_attention_heads")
        kv_heads = self._values.size("num_key_value_heads", heads)
        if heads % kv_heads:
            raise UsageError(
                f"num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}"
            )
        if self._values.get("head_dim") is None and hidden % heads:
            raise UsageError(f"hidden_size {hidden} is no multiple of num_attention_heads {heads}")
        return Attention(
            heads,
            kv_heads,
            self._values.size("head_dim", hidden // heads),
            qkv_bias=self._values.switch(self._family.qkv_bias),
            output_bias=self._values.switch(self._family.output_bias),
            qk_norm=self._family.qk_norm,
            sinks=self._family.sinks,
        )

    def _latent(self) -> LatentAttention:
        rank = self._values.get("q_lora_rank")
        return LatentAttention(
            self._values.size("num_attention_heads"),
            None if rank is None else self._values.size("q_lora_rank"),
            self._values.size("kv_lora_rank"),
            self._values.size("qk_nope_head_dim"),
            self._values.size("qk_rope_head_dim"),
            self._values.size("v_head_dim"),
        )

    def _experts(self, layers: int) -> tuple[Experts | None, tuple[int, ...]]:
        keys = self._family.experts
        if keys is None or self._values.get(keys.count) is None:
            if keys is not None and not self._family.latent:
                raise UsageError(f"{keys.count} is missing")
            return None, ()
        count = self._values.size(keys.count, most=_MAX_EXPERTS)
        active = self._values.size(keys.active, most=_MAX_EXPERTS)
        if active > count:
            raise UsageError(f"{keys.active} {active} is more than {keys.count} {count}")
        intermediate = self._values.size(keys.intermediate)
        shared = self._values.count(keys.shared) if keys.shared else 0
        if keys.shared_count:
            shared = intermediate * self._values.count(keys.shared_count, _MAX_EXPERTS)
        experts = Experts(
            count,
            active,
            intermediate,
            shared,
            shared_gate=keys.shared_gate and shared > 0,
            router_bias=keys.router_bias,
            score_bias=keys.score_bias and self._values.get("topk_method") == "noaux_tc",
            bias=keys.bias,
        )
        return experts, self._moe_layers(keys, layers)

    def _moe_layers(self, keys: ExpertKeys, layers: int) -> tuple[int, ...]:
        step = self._values.size(keys.every, 1) if keys.every else 1
        first = self._values.count(keys.first) if keys.first else 0
        dense = self._values.get(keys.dense) if keys.dense else None
        dense = [] if dense is None else dense
        if not isinstance(dense, list) or not all(type(layer) is int for layer in dense):
            raise UsageError(f"{keys.dense} is a list of layers, not {show(dense)}")
        without = set(dense)
        if not keys.first:  # Qwen counts layers from 1, DeepSeek from 0
            return tuple(i for i in range(layers) if (i + 1) % step == 0 and i not in without)
        return tuple(i for i in range(first, layers) if i % step == 0 and i not in without)

    def _quantization(self) -> quantization.Scheme:
        config = self._config.get("quantization_config")
        if config is None:
            return quantization.NONE
        if not isinstance(config, dict):
            raise UsageError(f"quantization_config is an object, not {show(config)}")
        return quantization.from_config(config)


def _vision(config: object) -> Vision:
    if not isinstance(config, dict):
        raise UsageError(f"vision_config is an object, not {show(config)}")
    sizes = {
        key: bounded(f"vision_config.{key}", config.get(key, default), 1, MAX_SIZE)
        for key, default in VISION_DEFAULTS.items()
    }
    if sizes["num_hidden_layers"] > MAX_LAYERS:
        raise UsageError(f"vision_config.num_hidden_layers is more than {MAX_LAYERS:,}")
    return Vision(*sizes.values())
