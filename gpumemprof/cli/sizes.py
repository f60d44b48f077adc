"""Sizes as people type them on the command line."""

from __future__ import annotations

import re
from decimal import Decimal

import click

_UNITS = {
    "": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip
_SIZE = re.compile(r"^(\d{1,18}(?:\.\d{1,9})?)\s*([a-z]*)$")


def size(text: str) -> int:
    """Bytes: ``85899345920``, ``80GiB``, ``24112MiB``; ``80GB`` is 80 · 10⁹."""
    match = _SIZE.match(text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise click.BadParameter(f"{text!r} is no size: bytes, or KiB, MiB, GiB (GB is 10⁹ bytes)")
    return round(Decimal(match[1]) * _UNITS[match[2]])
