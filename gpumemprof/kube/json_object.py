"""Looking into JSON that others wrote: nothing in it is as it should be until it was checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

JsonObject = Mapping[str, Any]
"""As it came."""


def mapping_in(json: JsonObject, key: str) -> JsonObject:
    """The object under ``key``; an empty one where there is none."""
    value = json.get(key)
    return value if isinstance(value, Mapping) else {}


def text_in(json: JsonObject, key: str) -> str:
    """The text under ``key``; an empty one where there is none."""
    value = json.get(key)
    return value if isinstance(value, str) else ""
