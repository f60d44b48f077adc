"""Kubernetes label selectors, as written on kubectl's command line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

MAX_LENGTH = 4096
"""Characters of a selector."""
MAX_REQUIREMENTS = 64

_TOKEN = re.compile(r"\s*(?:(?P<word>[^\s,()!=<>]+)|(?P<symbol>==|!=|[,()!=<>]))")
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_DNS_NAME = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
)
_INTEGER = re.compile(r"[0-9]{1,18}")


class SelectorError(ValueError):
    """Why a text is no label selector."""


class Requirement(NamedTuple):
    """One condition. ``operator``: ``exists``, ``!``, ``in``, ``notin``, ``<`` or ``>``."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """As the API server decides: what is not there is in no set."""
        value = labels.get(self.key)
        if self.operator == "exists":
            return value is not None
        if self.operator == "!":
            return value is None
        if self.operator == "in":
            return value in self.values
        if self.operator == "notin":
            return value not in self.values
        if value is None or not _INTEGER.fullmatch(value):
            return False
        (bound,) = self.values
        return int(value) > int(bound) if self.operator == ">" else int(value) < int(bound)


@dataclass(frozen=True, slots=True)
class Selector:
    """Conditions that labels must all meet."""

    requirements: tuple[Requirement, ...]

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a pod with these labels is meant."""
        return all(requirement.matches(labels) for requirement in self.requirements)

    @classmethod
    def parse(cls, text: str) -> Selector:
        """Parse ``app in (a, b),tier!=web,!debug,gpu``. Raises SelectorError; an empty text is one.

        >>> Selector.parse("app in (trainer, eval),!debug").matches({"app": "eval"})
        True
        """
        if len(text) > MAX_LENGTH:
            raise SelectorError(f"longer than {MAX_LENGTH:,} characters")
        return cls(tuple(_Parser(text).requirements()))


class _Token(NamedTuple):
    text: str
    word: bool


_END = _Token("", False)


class _Parser:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str) -> None:
        self._tokens: list[_Token] = []
        at, text = 0, text.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            assert match is not None  # every character is a word's or a symbol
            word = match["word"]
            self._tokens.append(_Token(word or match["symbol"], word is not None))
            at = match.end()
        self._at = 0

    def requirements(self) -> Iterator[Requirement]:
        for _ in range(MAX_REQUIREMENTS):
            yield self._requirement()
            separator = self._next()
            if separator is _END:
                return
            if separator != (",", False):
                raise SelectorError(f"a comma is expected before {separator.text!r}")
        raise SelectorError(f"more than {MAX_REQUIREMENTS} conditions")

    def _peek(self) -> _Token:
        return self._tokens[self._at] if self._at < len(self._tokens) else _END

    def _next(self) -> _Token:
        token = self._peek()
        self._at += 1
        return token

    def _requirement(self) -> Requirement:
        if self._peek() == ("!", False):
            self._next()
            return Requirement(self._key(), "!")
        key = self._key()
        token = self._peek()
        if token is _END or token == (",", False):
            return Requirement(key, "exists")
        self._next()
        if token in {("=", False), ("==", False)}:
            return Requirement(key, "in", frozenset({self._value()}))
        if token == ("!=", False):
            return Requirement(key, "notin", frozenset({self._value()}))
        if token in {("<", False), (">", False)}:
            bound = self._value()
            if not _INTEGER.fullmatch(bound):
                raise SelectorError(f"{bound!r} is not a whole number")
            return Requirement(key, token.text, frozenset({bound}))
        if token in {("in", True), ("notin", True)}:
            return Requirement(key, token.text, frozenset(self._values()))
        raise SelectorError(f"{token.text!r} is not an operator")

    def _key(self) -> str:
        token = self._next()
        if not token.word:
            raise SelectorError(f"a label is expected before {token.text or 'the end'!r}")
        prefix, slash, name = token.text.rpartition("/")
        if not _LABEL_NAME.fullmatch(name) or (slash and not _DNS_NAME.fullmatch(prefix)):
            raise SelectorError(f"{token.text!r} cannot be the name of a label")
        return token.text

    def _value(self) -> str:
        token = self._peek()
        if not token.word:  # "a=" and "a in (b,)": the empty value
            return ""
        self._next()
        if not _LABEL_NAME.fullmatch(token.text):
            raise SelectorError(f"{token.text!r} cannot be the value of a label")
        return token.text

    def _values(self) -> Iterator[str]:
        token = self._next()
        if token != ("(", False):
            raise SelectorError(f"'(' is expected before {token.text or 'the end'!r}")
        while True:
            yield self._value()
            token = self._next()
            if token == (")", False):
                return
            if token != (",", False):
                raise SelectorError(f"',' or ')' is expected before {token.text or 'the end'!r}")
