"""What of a config depends on positions: attention windows of layers, rows of RoPE tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpumemprof.errors import UsageError
from gpumemprof.plan.families import Family
from gpumemprof.plan.values import MAX_POSITIONS, Values, bounded, show


def windows(values: Values, family: Family, layers: int) -> tuple[int | None, ...]:
    """For each layer how many tokens its attention sees, None for all; raises UsageError."""
    window = values.get("sliding_window")
    window = None if window is None else values.size("sliding_window", most=MAX_POSITIONS)
    types = values.get("layer_types")
    if types is not None:
        return _typed(types, layers, window)
    slides = _SLIDING[family.windows](values, layers) if window else [False] * layers
    return tuple(window if slide else None for slide in slides)


def _typed(types: object, layers: int, window: int | None) -> tuple[int | None, ...]:
    if not isinstance(types, list) or len(types) != layers:
        raise UsageError(f"layer_types does not have one type for each of {layers} layers")
    windows: list[int | None] = []
    for one in types:
        if one == "full_attention":
            windows.append(None)
        elif one == "sliding_attention":
            if window is None:
                raise UsageError("layer_types has sliding layers, but sliding_window is missing")
            windows.append(window)
        else:
            raise UsageError(f"layers of the type {show(one)} are not known")
    return tuple(windows)


def _all(values: Values, layers: int) -> Sequence[bool]:
    return [True] * layers


def _qwen(values: Values, layers: int) -> Sequence[bool]:
    if not values.flag("use_sliding_window"):
        return [False] * layers
    first = values.count("max_window_layers")
    return [layer >= first for layer in range(layers)]


def _pattern(values: Values, layers: int) -> Sequence[bool]:
    every = values.size("sliding_window_pattern")
    return [(layer + 1) % every != 0 for layer in range(layers)]


_SLIDING: dict[str, Callable[[Values, int], Sequence[bool]]] = {
    "none": lambda values, layers: [False] * layers,
    "all": _all,
    "qwen": _qwen,
    "pattern": _pattern,
}
"""By ``Family.windows``: which layers slide."""


def rope_rows(values: Values, family: Family, positions: int) -> tuple[int, ...]:
    """Rows of each table as vLLM builds them."""
    rope = values.get("rope_scaling") or values.get("rope_parameters")
    if not isinstance(rope, dict):
        rope = {}
    parts = [part for part in rope.values() if isinstance(part, dict)]
    scaled = [_rows(values, positions, part) for part in parts or [rope]]
    if family.local_rope and len(scaled) == 1:
        scaled.append(positions)
    return tuple(scaled)


def _rows(values: Values, positions: int, rope: Mapping[str, Any]) -> int:
    kind = rope.get("rope_type", rope.get("type"))
    factor = rope.get("factor", 1.0)
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 1 <= factor <= 1e6:
        raise UsageError(f"the RoPE factor is a number from 1 to a million, not {show(factor)}")
    original = rope.get("original_max_position_embeddings")
    if original is None:
        original = values.get("original_max_position_embeddings")
    start = positions if original is None else bounded(
        "original_max_position_embeddings", original, 1, MAX_POSITIONS
    )  # fmt: skip
    if kind == "yarn":
        return int(start * factor)
    if kind == "linear":
        return int(positions * factor)
    return positions + start if kind == "longrope" else positions
