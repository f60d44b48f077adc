"""The ground that reading C++ names stands on: a position in the text, limits, what was seen.

See ``itanium``.
"""

from __future__ import annotations

import abc

MAX_DEPTH = 120
MAX_TEXT = 16 << 10
MAX_COST = 50_000
"""Size of the full text, in tokens, beyond which it is not asked for."""

# code -> (how it is written, number of operands in an expression)
OPERATORS: dict[str, tuple[str, int]] = {
    "aN": ("&=", 2), "aS": ("=", 2), "aa": ("&&", 2), "ad": ("&", 1), "an": ("&", 2),
    "aw": (" co_await", 1), "cl": ("()", 0), "cm": (",", 2), "co": ("~", 1), "dV": ("/=", 2),
    "da": (" delete[]", 1), "de": ("*", 1), "dl": (" delete", 1), "ds": (".*", 2), "dv": ("/", 2),
    "eO": ("^=", 2), "eo": ("^", 2), "eq": ("==", 2), "ge": (">=", 2), "gt": (">", 2),
    "ix": ("[]", 2), "lS": ("<<=", 2), "le": ("<=", 2), "ls": ("<<", 2), "lt": ("<", 2),
    "mI": ("-=", 2), "mL": ("*=", 2), "mi": ("-", 2), "ml": ("*", 2), "mm": ("--", 1),
    "na": (" new[]", 0), "ne": ("!=", 2), "ng": ("-", 1), "nt": ("!", 1), "nw": (" new", 0),
    "oR": ("|=", 2), "oo": ("||", 2), "or": ("|", 2), "pL": ("+=", 2), "pl": ("+", 2),
    "pm": ("->*", 2), "pp": ("++", 1), "ps": ("+", 1), "pt": ("->", 2), "qu": ("?", 3),
    "rM": ("%=", 2), "rS": (">>=", 2), "rm": ("%", 2), "rs": (">>", 2), "ss": ("<=>", 2),
}  # fmt: skip


class NotReadableError(Exception):
    """The name does not follow the grammar, or is nested too deep."""


class NameCursor(abc.ABC):
    """A position in a mangled name, and what the part before it added up to."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.cost = 0
        self.depth = 0
        self.seen: list[tuple[str, int]] = []
        """Substitution candidates: (short text, cost)."""
        self.argument_cost = 0
        """Of the dearest template argument list so far: what a T_ may stand for."""

    def peek(self, count: int = 1) -> str:
        """The next characters; a NUL, which is in no name, at the end."""
        return self.text[self.position : self.position + count] or "\0"

    def accept(self, token: str) -> bool:
        """Step over ``token`` if it comes next; whether it did."""
        if self.text.startswith(token, self.position):
            self.position += len(token)
            self.cost += 1
            return True
        return False

    def expect(self, token: str) -> None:
        """Step over ``token``, which must come next."""
        if not self.accept(token):
            raise NotReadableError

    def deeper(self) -> None:
        """Count one more level of nesting; the caller counts it off."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise NotReadableError

    def number(self) -> int:
        """A decimal number."""
        start = self.position
        while self.peek().isdigit():
            self.position += 1
        if self.position - start > 6:
            raise NotReadableError
        return int(self.text[start : self.position])

    def until(self, end: str) -> str:
        """The text up to ``end``, which is stepped over."""
        stop = self.text.index(end, self.position)
        value = self.text[self.position : stop]
        self.position = stop + len(end)
        return value

    def remember(self, text: str, started: int) -> None:
        """Note what later back references may mean: ``text``, which began at cost ``started``."""
        if len(text) > MAX_TEXT:  # pointers to members can double it
            raise NotReadableError
        self.seen.append((text, self.cost - started))

    # What the readers built on this one provide

    @abc.abstractmethod
    def encoding(self) -> str:
        """A function or variable with its type; its short name."""

    @abc.abstractmethod
    def name(self) -> str:
        """A name; its short form."""

    @abc.abstractmethod
    def source_name(self) -> str:
        """An identifier."""

    @abc.abstractmethod
    def operator_name(self) -> str:
        """An operator as a function is called after it."""

    @abc.abstractmethod
    def unnamed(self) -> str:
        """A lambda or a type without name."""

    @abc.abstractmethod
    def type(self) -> str:
        """A type; its short form."""

    @abc.abstractmethod
    def template_parameter(self) -> str:
        """A reference to a template argument."""

    @abc.abstractmethod
    def template_arguments(self) -> None:
        """A list of them, brackets included."""

    @abc.abstractmethod
    def template_argument(self) -> None:
        """One of them."""
