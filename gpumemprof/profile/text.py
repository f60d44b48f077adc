"""Names as people read them. Pure functions on text that a profiled program chose itself."""

from __future__ import annotations

import re

_INSTALLED = re.compile(
    r"^.*/(?:site-packages|dist-packages|lib(?:64)?/python3(?:\.\d+)?t?)/(?=[^/])"
)


def printable(text: str) -> str:
    r"""``text`` with what a terminal or a line-based format could act upon written as escapes.

    Control characters, line separators, direction marks and lone surrogates become ``\x1b``,
    ``\n``, ``\u202e`` and the like; everything else stays.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def valid_utf8(text: str) -> str:
    """``text`` with what UTF-8 cannot hold (lone surrogates) replaced by ``?``.

    They come from file names and Python names that were not UTF-8 in the profiled program."""
    if text.isascii():
        return text
    return text.encode("utf-8", "replace").decode("utf-8")


def short_path(path: str) -> str:
    """A path as import statements see it: ``torch/nn/modules/module.py`` for an installed package
    or the standard library, the whole path for anything else (the user's own code)."""
    return _INSTALLED.sub("", path)
