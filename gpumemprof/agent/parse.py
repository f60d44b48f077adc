"""From the text of a setting to its value. Each parser raises ValueError with the rule."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

_UNITS = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600)}
_SIZES = {
    "": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
    "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
}  # fmt: skip
_NUMBER = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([A-Za-z]*)")
_DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,254}")


class Endpoint(tuple[str, int]):
    """(host, port) to listen on. Port 0 takes any free one."""

    __slots__ = ()

    @property
    def host(self) -> str:
        """Address or name; "" is every address."""
        return self[0]

    @property
    def port(self) -> int:
        """TCP port."""
        return self[1]


Parse = Callable[[object], Any]
"""From what a file or a variable holds to the value; raises ValueError with the rule."""


def text(value: object) -> str:
    """A line of text."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("it must be text")
    line = str(value)
    if not line.isprintable() or len(line) > 4096:
        raise ValueError("it must be a line of at most 4096 characters")
    return line


def name(value: object) -> str:
    """A Kubernetes name, or nothing."""
    line = text(value)
    if line and not _DNS_NAME.fullmatch(line):
        raise ValueError("it must be a Kubernetes name: lower case letters, digits, '-' and '.'")
    return line


def path(value: object) -> Path | None:
    """A path; None for nothing."""
    line = text(value)
    return Path(line) if line else None


def choice(*names: str) -> Parse:
    """One of the names."""

    def parse(value: object) -> str:
        if isinstance(value, bool):  # on, off in YAML
            value = "on" if value else "off"
        if value not in names:
            raise ValueError(f"it must be one of {', '.join(names)}")
        return str(value)

    return parse


def flag(value: object) -> bool:
    """True or false."""
    if isinstance(value, bool):
        return value
    word = str(value).lower()
    if word in {"true", "on", "yes", "1"}:
        return True
    if word in {"false", "off", "no", "0"}:
        return False
    raise ValueError("it must be true or false")


def seconds(least: float, most: float) -> Parse:
    """A duration in seconds, within bounds."""

    def parse(value: object) -> float:
        match = _NUMBER.fullmatch(text(value).strip())
        unit = _UNITS.get(match[2] or "s") if match else None
        if match is None or unit is None:
            raise ValueError("it must be a time like 15s, 500ms or 1m")
        found = float(Decimal(match[1]) * unit)
        if not least <= found <= most:
            raise ValueError(f"it must be between {least:g}s and {most:g}s")
        return found

    return parse


def size(least: int, most: int) -> Parse:
    """A size in bytes, within bounds."""

    def parse(value: object) -> int:
        match = _NUMBER.fullmatch(text(value).strip())
        if match is None or match[2] not in _SIZES:
            raise ValueError("it must be a size like 32KiB or 256MiB")
        found = round(Decimal(match[1]) * _SIZES[match[2]])
        if not least <= found <= most:
            raise ValueError(f"it must be between {least:,} and {most:,} bytes")
        return found

    return parse


def number(least: int, most: int) -> Parse:
    """A whole number within bounds."""

    def parse(value: object) -> int:
        line = text(value).strip()
        if not line.isascii() or not line.isdigit() or not least <= int(line[:19]) <= most:
            raise ValueError(f"it must be a whole number between {least:,} and {most:,}")
        return int(line)

    return parse


def endpoint(value: object) -> Endpoint:
    """``host:port``, ``[::1]:port``, ``:port``."""
    host, _, port = text(value).strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not port.isascii() or not port.isdigit() or int(port[:6]) > 65535 or " " in host:
        raise ValueError("it must be an address and a port, like 0.0.0.0:9464")
    return Endpoint((host, int(port)))


def optional_endpoint(value: object) -> Endpoint | None:
    """The same; None for nothing."""
    return endpoint(value) if text(value).strip() else None


def labels(value: object) -> Mapping[str, str]:
    """A mapping in a file, ``a=b,c=d`` elsewhere."""
    if isinstance(value, str):
        pairs = [part.partition("=") for part in value.split(",") if part.strip()]
        if any(not middle for _, middle, _ in pairs):
            raise ValueError("it must be like name=value,name=value")
        value = {key.strip(): label.strip() for key, _, label in pairs}
    if not isinstance(value, Mapping) or len(value) > 16:
        raise ValueError("it must be at most 16 names with values")
    for key in value:
        if not isinstance(key, str) or not _LABEL_NAME.fullmatch(key):
            raise ValueError(f"{key!r} is no label name: letters, digits and _")
    return MappingProxyType({key: text(label) for key, label in value.items()})
