"""Number formats: how many bits an element takes."""

from __future__ import annotations

from gpumemprof.errors import UsageError

BITS: dict[str, int] = {
    "float64": 64,
    "float32": 32,
    "float16": 16,
    "bfloat16": 16,
    "float8": 8,
    "int8": 8,
    "int4": 4,
    "float4": 4,
}
"""Bits of an element, by name."""

_ALIASES = {
    "fp32": "float32",
    "float": "float32",
    "fp16": "float16",
    "half": "float16",
    "bf16": "bfloat16",
    "fp8": "float8",
    "fp8_e4m3": "float8",
    "fp8_e5m2": "float8",
    "float8_e4m3fn": "float8",
    "float8_e5m2": "float8",
}

WEIGHT_DTYPES = ("float32", "float16", "bfloat16")
"""What weights that are not quantised may be."""

KV_DTYPES = ("auto", "float32", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "int8")
"""What ``--kv-cache-dtype`` takes; ``auto`` is the model's own."""

SAFETENSORS: dict[str, int] = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
    "C64": 64,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
}
"""Bits of an element, by the names in safetensors headers (the format's own list)."""


def name(text: str) -> str:
    """The one name of a format: ``torch.bfloat16``, ``bf16`` and ``bfloat16`` are one.

    Raises UsageError for one that is not known."""
    short = text.removeprefix("torch.").lower()
    short = _ALIASES.get(short, short)
    if short not in BITS:
        raise UsageError(f"the number format {text[:40]!r} is not known (known: {', '.join(BITS)})")
    return short


def size(elements: int, dtype: str) -> int:
    """Bytes of ``elements`` packed without gaps, rounded up to whole bytes."""
    return -(-elements * BITS[name(dtype)] // 8)
