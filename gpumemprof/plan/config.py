"""Reading a model's config.json into an Architecture. Every value of the file is checked."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpumemprof.errors import UsageError
from gpumemprof.plan import dtypes, quantization
from gpumemprof.plan.architecture import Architecture, Attention, Experts, LatentAttention, Vision
from gpumemprof.plan.families import FAMILIES, VISION_DEFAULTS, ExpertKeys, Family
from gpumemprof.profile.text import printable

MAX_CONFIG = 8 << 20
"""Bytes of a config.json that are read."""
MAX_LAYERS = 1_000
_MAX_EXPERTS = 10_000
_MAX_SIZE = 1 << 24
_MAX_VOCAB = 1 << 28
_MAX_POSITIONS = 1 << 32


def load(path: Path) -> Architecture:
    """The architecture that the config.json at ``path`` describes.

    Raises UsageError if it cannot be read, is not JSON, or ``architecture`` refuses it."""
    try:
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
        return _Reader(config, family, kind).architecture()
    text = config.get("text_config")
    if not isinstance(text, dict):
        raise UsageError(f"a {kind} config needs a text_config")
    kind += "_text"
    outer = {
        key: config[key]
        for key in ("torch_dtype", "dtype", "quantization_config", "tie_word_embeddings")
        if key in config
    }
    reader = _Reader({**outer, **text}, FAMILIES[kind], kind)
    vision = config.get("vision_config")
    return reader.architecture(_vision(vision) if vision is not None else None)


class _Reader:
    """Reads one flat config, with its family's defaults."""

    def __init__(self, config: Mapping[str, Any], family: Family, kind: str) -> None:
        self._config = config
        self._family = family
        self._kind = kind

    def architecture(self, vision: Vision | None = None) -> Architecture:
        family = self._family
        hidden = self._size("hidden_size")
        layers = self._size("num_hidden_layers", most=MAX_LAYERS)
        attention = self._latent() if family.latent else self._attention(hidden)
        rotary = (
            attention.rope_dim if isinstance(attention, LatentAttention) else attention.head_dim
        )
        positions = self._size("max_position_embeddings", most=_MAX_POSITIONS)
        experts, moe_layers = self._experts(layers)
        intermediate = (
            self._size("intermediate_size") if len(moe_layers) < layers or not experts
            else self._size("intermediate_size", experts.intermediate)
        )  # fmt: skip
        return Architecture(
            family=family.title,
            hidden=hidden,
            layers=layers,
            vocab=self._size("vocab_size", most=_MAX_VOCAB),
            intermediate=intermediate,
            attention=attention,
            tied=self._flag("tie_word_embeddings"),
            dtype=self._dtype(),
            max_positions=positions,
            windows=self._windows(layers),
            rope_rows=self._rope_rows(positions),
            rope_dim=int(rotary * self._fraction("partial_rotary_factor")),
            norms=family.norms,
            mlp_bias=self._switch(family.mlp_bias),
            experts=experts,
            moe_layers=moe_layers,
            draft_layers=self._count(family.draft_key) if family.draft_key else 0,
            vision=vision,
            quantization=self._quantization(),
        )

    def _get(self, key: str) -> Any:
        value = self._config.get(key)
        return self._family.defaults.get(key) if value is None else value

    def _size(self, key: str, default: int | None = None, *, most: int = _MAX_SIZE) -> int:
        value = self._get(key)
        if value is None:
            value = default
        if value is None:
            raise UsageError(f"{key} is missing")
        return _bounded(key, value, 1, most)

    def _count(self, key: str, most: int = _MAX_SIZE) -> int:
        value = self._get(key)
        return 0 if value is None else _bounded(key, value, 0, most)

    def _flag(self, key: str) -> bool:
        value = self._get(key)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise UsageError(f"{key} is true or false, not {_show(value)}")
        return value

    def _switch(self, switch: bool | str) -> bool:
        return self._flag(switch) if isinstance(switch, str) else switch

    def _fraction(self, key: str) -> float:
        value = self._get(key)
        value = 1.0 if value is None else value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
            raise UsageError(f"{key} is a number above 0 and at most 1, not {_show(value)}")
        return float(value)

    def _dtype(self) -> str:
        value = self._get("dtype") or self._get("torch_dtype") or "bfloat16"
        if not isinstance(value, str):
            raise UsageError(f"torch_dtype is a name, not {_show(value)}")
        found = dtypes.name(value)
        if found not in dtypes.WEIGHT_DTYPES:
            raise UsageError(f"weights in {found} need a quantization_config")
        return found

    def _attention(self, hidden: int) -> Attention:
        heads = self._size("num_attention_heads")
        kv_heads = self._size("num_key_value_heads", heads)
        if heads % kv_heads:
            raise UsageError(
                f"num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}"
            )
        if self._get("head_dim") is None and hidden % heads:
            raise UsageError(f"hidden_size {hidden} is no multiple of num_attention_heads {heads}")
        return Attention(
            heads,
            kv_heads,
            self._size("head_dim", hidden // heads),
            qkv_bias=self._switch(self._family.qkv_bias),
            output_bias=self._switch(self._family.output_bias),
            qk_norm=self._family.qk_norm,
            sinks=self._family.sinks,
        )

    def _latent(self) -> LatentAttention:
        rank = self._get("q_lora_rank")
        return LatentAttention(
            self._size("num_attention_heads"),
            None if rank is None else self._size("q_lora_rank"),
            self._size("kv_lora_rank"),
            self._size("qk_nope_head_dim"),
            self._size("qk_rope_head_dim"),
            self._size("v_head_dim"),
        )

    def _experts(self, layers: int) -> tuple[Experts | None, tuple[int, ...]]:
        keys = self._family.experts
        if keys is None or self._get(keys.count) is None:
            if keys is not None and not self._family.latent:
                raise UsageError(f"{keys.count} is missing")
            return None, ()
        count = self._size(keys.count, most=_MAX_EXPERTS)
        active = self._size(keys.active, most=_MAX_EXPERTS)
        if active > count:
            raise UsageError(f"{keys.active} {active} is more than {keys.count} {count}")
        intermediate = self._size(keys.intermediate)
        shared = self._count(keys.shared) if keys.shared else 0
        if keys.shared_count:
            shared = intermediate * self._count(keys.shared_count, _MAX_EXPERTS)
        experts = Experts(
            count,
            active,
            intermediate,
            shared,
            shared_gate=keys.shared_gate and shared > 0,
            router_bias=keys.router_bias,
            score_bias=keys.score_bias and self._get("topk_method") == "noaux_tc",
            bias=keys.bias,
        )
        return experts, self._moe_layers(keys, layers)

    def _moe_layers(self, keys: ExpertKeys, layers: int) -> tuple[int, ...]:
        step = self._size(keys.every, 1) if keys.every else 1
        first = self._count(keys.first) if keys.first else 0
        dense = self._get(keys.dense) if keys.dense else None
        dense = [] if dense is None else dense
        if not isinstance(dense, list) or not all(type(layer) is int for layer in dense):
            raise UsageError(f"{keys.dense} is a list of layers, not {_show(dense)}")
        without = set(dense)
        if not keys.first:  # Qwen counts layers from 1, DeepSeek from 0
            return tuple(i for i in range(layers) if (i + 1) % step == 0 and i not in without)
        return tuple(i for i in range(first, layers) if i % step == 0 and i not in without)

    def _windows(self, layers: int) -> tuple[int | None, ...]:
        window = self._get("sliding_window")
        window = None if window is None else self._size("sliding_window", most=_MAX_POSITIONS)
        types = self._get("layer_types")
        if types is not None:
            return self._typed_windows(types, layers, window)
        slides = _WINDOWS[self._family.windows](self, layers) if window else [False] * layers
        return tuple(window if slide else None for slide in slides)

    def _typed_windows(
        self, types: object, layers: int, window: int | None
    ) -> tuple[int | None, ...]:
        if not isinstance(types, list) or len(types) != layers:
            raise UsageError(f"layer_types does not have one type for each of {layers} layers")
        windows: list[int | None] = []
        for one in types:
            if one == "full_attention":
                windows.append(None)
            elif one == "sliding_attention":
                if window is None:
                    raise UsageError(
                        "layer_types has sliding layers, but sliding_window is missing"
                    )
                windows.append(window)
            else:
                raise UsageError(f"layers of the type {_show(one)} are not known")
        return tuple(windows)

    def window_all(self, layers: int) -> Sequence[bool]:
        return [True] * layers

    def window_qwen(self, layers: int) -> Sequence[bool]:
        if not self._flag("use_sliding_window"):
            return [False] * layers
        first = self._count("max_window_layers")
        return [layer >= first for layer in range(layers)]

    def window_pattern(self, layers: int) -> Sequence[bool]:
        every = self._size("sliding_window_pattern")
        return [(layer + 1) % every != 0 for layer in range(layers)]

    def _rope_rows(self, positions: int) -> tuple[int, ...]:
        """Rows of each table as vLLM builds them."""
        rope = self._get("rope_scaling") or self._get("rope_parameters")
        if not isinstance(rope, dict):
            rope = {}
        parts = [part for part in rope.values() if isinstance(part, dict)]
        scaled = [self._rows(positions, part) for part in parts or [rope]]
        if self._family.local_rope and len(scaled) == 1:
            scaled.append(positions)
        return tuple(scaled)

    def _rows(self, positions: int, rope: Mapping[str, Any]) -> int:
        kind = rope.get("rope_type", rope.get("type"))
        factor = rope.get("factor", 1.0)
        if (
            isinstance(factor, bool)
            or not isinstance(factor, (int, float))
            or not 1 <= factor <= 1e6
        ):
            raise UsageError(
                f"the RoPE factor is a number from 1 to a million, not {_show(factor)}"
            )
        original = rope.get("original_max_position_embeddings")
        if original is None:
            original = self._get("original_max_position_embeddings")
        start = positions if original is None else _bounded(
            "original_max_position_embeddings", original, 1, _MAX_POSITIONS
        )  # fmt: skip
        if kind == "yarn":
            return int(start * factor)
        if kind == "linear":
            return int(positions * factor)
        return positions + start if kind == "longrope" else positions

    def _quantization(self) -> quantization.Scheme:
        config = self._config.get("quantization_config")
        if config is None:
            return quantization.NONE
        if not isinstance(config, dict):
            raise UsageError(f"quantization_config is an object, not {_show(config)}")
        return quantization.from_config(config)


_WINDOWS: dict[str, Callable[[_Reader, int], Sequence[bool]]] = {
    "none": lambda reader, layers: [False] * layers,
    "all": _Reader.window_all,
    "qwen": _Reader.window_qwen,
    "pattern": _Reader.window_pattern,
}


def _vision(config: object) -> Vision:
    if not isinstance(config, dict):
        raise UsageError(f"vision_config is an object, not {_show(config)}")
    sizes = {
        key: _bounded(f"vision_config.{key}", config.get(key, default), 1, _MAX_SIZE)
        for key, default in VISION_DEFAULTS.items()
    }
    if sizes["num_hidden_layers"] > MAX_LAYERS:
        raise UsageError(f"vision_config.num_hidden_layers is more than {MAX_LAYERS:,}")
    return Vision(*sizes.values())


def _bounded(key: str, value: object, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{key} is a whole number, not {_show(value)}")
    if not least <= value <= most:
        raise UsageError(f"{key} is from {least:,} to {most:,}, not {_show(value)}")
    return value


def _show(value: object) -> str:
    """A value of the file, short and safe to print."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and value.bit_length() > 200:
        return "a number of more than 60 digits"
    return printable(repr(value)[:60])
