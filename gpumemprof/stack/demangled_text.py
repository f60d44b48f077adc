"""Cut a demangled C++ name down to the function: no arguments, return type, template arguments."""

from __future__ import annotations

import re

_PROTECTED = "\x01"
"""Stands for a space that belongs to the name."""
_THUNKS = ("non-virtual thunk to ", "virtual thunk to ", "covariant return thunk to ")
_CLONE = re.compile(r" \[clone [^]]*\]")
_ABI_TAG = re.compile(r"\[abi:[^]]*\]")
_ANONYMOUS = "(anonymous namespace)"
# Longest first: each is the start of others.
_OPERATORS = (
    "()", "[]", "<=>", "<<=", ">>=", "->*", "<<", ">>", "<=", ">=", "->", "==", "!=", "&&", "||",
    "++", "--", "+=", "-=", "*=", "/=", "%=", "^=", "&=", "|=", "+", "-", "*", "/", "%", "^", "&",
    "|", "~", "!", "=", "<", ">", ",",
)  # fmt: skip
_ALLOCATION = re.compile(r" (new|delete)(\[\])?(?![\w:])")
_LITERAL = re.compile(r'"" ?(\w+)')
_INNER_QUALIFIER = re.compile(r"( (const|volatile|&&?))+(?=::)")
_QUALIFIER = re.compile(r" (const|volatile|&&?|\[clone.*)$")


def shortened(text: str) -> str:
    """``std::vector<int>::push_back(int const&)`` becomes ``std::vector::push_back``."""
    for thunk in _THUNKS:
        text = text.removeprefix(thunk)
    text = _ABI_TAG.sub("", _CLONE.sub("", text))
    name = _INNER_QUALIFIER.sub("", _without_groups(text))
    while True:
        trimmed = _QUALIFIER.sub("", name)
        if trimmed == name:
            break
        name = trimmed
    name = name.strip().rpartition(" ")[2].replace(_PROTECTED, " ")
    return name.lstrip("*&") or text


def _without_groups(text: str) -> str:
    """Leave out what is in brackets, keep what is part of a name."""
    out: list[str] = []
    position = 0
    while position < len(text):
        char = text[position]
        if text.startswith(_ANONYMOUS, position):
            out.append(_ANONYMOUS.replace(" ", _PROTECTED))
            position += len(_ANONYMOUS)
        elif char == "{":
            end = _closing(text, position)
            out.append(_braces(text[position:end]))
            position = end
        elif char == "<":
            position = _closing(text, position)
        elif char == "(":
            end = _closing(text, position)
            if text.startswith(("(*", "(&"), position):  # a function that returns a function
                inner = text[position + 1 : end - 1].lstrip("*& ")
                return "".join(out) + " " + _without_groups(inner)
            position = end
        elif text.startswith("operator", position) and _starts_word(text, position):
            operator, position = _operator(text, position + len("operator"))
            out.append("operator" + operator)
        else:
            out.append(char)
            position += 1
    return "".join(out)


def _starts_word(text: str, position: int) -> bool:
    return position == 0 or not (text[position - 1].isalnum() or text[position - 1] == "_")


def _operator(text: str, position: int) -> tuple[str, int]:
    """What follows the word ``operator``, and where the text goes on."""
    found = _ALLOCATION.match(text, position) or _LITERAL.match(text, position)
    if found:
        return found.group().replace(" ", _PROTECTED), found.end()
    if position < len(text) and (text[position].isalnum() or text[position] == "_"):
        return "", position  # a name that begins with these letters
    if text.startswith(" ", position):  # a conversion: its argument list is the last "()"
        end = text.rfind("()")
        type_end = end if end > position else len(text)
        target = _without_groups(text[position:type_end]).strip().replace(" ", _PROTECTED)
        return _PROTECTED + target, type_end
    for symbol in _OPERATORS:
        if text.startswith(symbol, position):
            position += len(symbol)
            if text.startswith(" <", position):  # "operator<< <int>"
                position += 1
            return symbol, position
    return "", position


def _braces(text: str) -> str:
    """``{lambda(int)#1}`` becomes ``{lambda#1}``."""
    if text.startswith("{lambda("):
        end = _closing(text, len("{lambda"))
        text = "{lambda" + text[end:]
    return text.replace(" ", _PROTECTED)


def _closing(text: str, position: int) -> int:
    """The position after the bracket that closes the one at ``position``.

    In parentheses ``<`` and ``>`` may be comparisons: what is open there ends with them.
    """
    pairs = {")": "(", "}": "{", "]": "["}
    opened: list[str] = []
    while position < len(text):
        char = text[position]
        if text.startswith("operator", position) and _starts_word(text, position):
            symbol = next((s for s in _OPERATORS if text.startswith(s, position + 8)), "")
            position += 8 + len(symbol)
            continue
        if char in "({[<":
            opened.append(char)
        elif char == ">":
            if opened[-1] == "<" and text[position - 1] != "-":
                opened.pop()
        elif char in pairs:
            while opened and opened[-1] != pairs[char]:
                opened.pop()
            if opened:
                opened.pop()
        position += 1
        if not opened:
            return position
    return len(text)
