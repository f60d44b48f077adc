"""Single values of a config.json: each checked, each refusal with the key and the reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpumemprof.errors import UsageError
from gpumemprof.profile.text import printable

MAX_SIZE = 1 << 24
"""Of a dimension."""
MAX_POSITIONS = 1 << 32


class Values:
    """One flat config with its family's defaults. Every method raises UsageError for a value of
    another type or out of bounds."""

    def __init__(self, config: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        self._config = config
        self._defaults = defaults

    def get(self, key: str) -> Any:
        """A value as it is; what is missing or null is the family's default."""
        value = self._config.get(key)
        return self._defaults.get(key) if value is None else value

    def size(self, key: str, default: int | None = None, *, most: int = MAX_SIZE) -> int:
        """A whole number from 1 to ``most``."""
        value = self.get(key)
        if value is None:
            value = default
        if value is None:
            raise UsageError(f"{key} is missing")
        return bounded(key, value, 1, most)

    def count(self, key: str, most: int = MAX_SIZE) -> int:
        """A whole number from 0 to ``most``; 0 where it is missing."""
        value = self.get(key)
        return 0 if value is None else bounded(key, value, 0, most)

    def flag(self, key: str) -> bool:
        """True or false; false where it is missing."""
        value = self.get(key)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise UsageError(f"{key} is true or false, not {show(value)}")
        return value

    def switch(self, switch: bool | str) -> bool:
        """A constant, or the flag of that key."""
        return self.flag(switch) if isinstance(switch, str) else switch

    def fraction(self, key: str) -> float:
        """Above 0 and at most 1; 1 where it is missing."""
        value = self.get(key)
        value = 1.0 if value is None else value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
            raise UsageError(f"{key} is a number above 0 and at most 1, not {show(value)}")
        return float(value)


def bounded(key: str, value: object, least: int, most: int) -> int:
    """``value`` if it is a whole number from ``least`` to ``most``."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{key} is a whole number, not {show(value)}")
    if not least <= value <= most:
        raise UsageError(f"{key} is from {least:,} to {most:,}, not {show(value)}")
    return value


def show(value: object) -> str:
    """A value of the file, short and safe to print."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and value.bit_length() > 200:
        return "a number of more than 60 digits"
    return printable(repr(value)[:60])
