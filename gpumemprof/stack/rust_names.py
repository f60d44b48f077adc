"""Read linker names of Rust: the legacy form and v0 (RFC 2603).

Legacy names are C++-like paths that end in a hash. v0 names hold types and may refer back to
themselves, so what is written is bounded: a short hostile name could stand for a text without end.
"""

from __future__ import annotations

import re
from collections.abc import Callable

MAX_STEPS = 4096
"""Paths, types and constants read for one name, back references included."""
MAX_DEPTH = 100

_ESCAPES = {
    "SP": "@", "BP": "*", "RF": "&", "LT": "<", "GT": ">", "LP": "(", "RP": ")", "C": ",",
}  # fmt: skip
_ESCAPE = re.compile(r"\$([A-Z]+|u[0-9a-f]{1,6})\$")
_BASIC = {
    "a": "i8", "b": "bool", "c": "char", "d": "f64", "e": "str", "f": "f32", "h": "u8",
    "i": "isize", "j": "usize", "l": "i32", "m": "u32", "n": "i128", "o": "u128", "s": "i16",
    "t": "u16", "u": "()", "v": "...", "x": "i64", "y": "u64", "z": "!", "p": "_",
}  # fmt: skip
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


class NotRustError(Exception):
    """The name is not of the form, or stands for too long a text."""


def read_legacy(mangled: str) -> str:
    """``_ZN4core3fmt5write17h0123456789abcdefE`` is ``core::fmt::write``. Raises NotRustError."""
    if not is_legacy(mangled):
        raise NotRustError
    parts, position = [], 3
    while mangled[position] != "E":
        digits = position
        while mangled[position].isdigit():
            position += 1
        if not 0 < position - digits < 6:
            raise NotRustError
        length = int(mangled[digits:position])
        part = mangled[position : position + length]
        position += length
        if position >= len(mangled):
            raise NotRustError
        parts.append(_unescaped(part))
    return "::".join(parts[:-1])  # the last part is the hash


def is_legacy(mangled: str) -> bool:
    """Whether the name ends in the hash that tells Rust from C++."""
    return re.match(r"_ZN.+17h[0-9a-f]{16}E(\.|$)", mangled) is not None


def _unescaped(part: str) -> str:
    if part.startswith("_$"):
        part = part[1:]
    part = part.replace("..", "::")

    def replaced(match: re.Match[str]) -> str:
        code = match[1]
        if code.startswith("u"):
            number = int(code[1:], 16)
            return chr(number) if 32 <= number < 0xD800 else match[0]
        return _ESCAPES.get(code, match[0])

    return _ESCAPE.sub(replaced, part)


def read_v0(mangled: str, *, short: bool = True) -> str:
    """The path a v0 name stands for; ``short``: without generic arguments. Raises NotRustError."""
    reader = _Reader(mangled, short)
    try:
        return reader.path(value=True)
    except (IndexError, ValueError, KeyError, RecursionError, UnicodeError):
        raise NotRustError from None


class _Reader:
    def __init__(self, mangled: str, short: bool) -> None:
        if not mangled.startswith("_R"):
            raise NotRustError
        self.text = mangled.split(".", 1)[0][2:]
        self.short = short
        self.position = 0
        self.steps = 0
        self.depth = 0

    def peek(self) -> str:
        return self.text[self.position]

    def take(self) -> str:
        char = self.text[self.position]
        self.position += 1
        return char

    def accept(self, char: str) -> bool:
        if self.text[self.position : self.position + 1] == char:
            self.position += 1
            return True
        return False

    def enter(self) -> None:
        self.steps += 1
        self.depth += 1
        if self.steps > MAX_STEPS or self.depth > MAX_DEPTH:
            raise NotRustError

    def base62(self) -> int:
        if self.accept("_"):
            return 0
        value = 0
        while not self.accept("_"):
            value = value * 62 + _DIGITS.index(self.take())
            if value > 1 << 64:
                raise NotRustError
        return value + 1

    def optional(self, tag: str) -> int:
        return self.base62() + 1 if self.accept(tag) else 0

    def identifier(self) -> tuple[str, int]:
        """(name, disambiguator)."""
        disambiguator = self.optional("s")
        punycode = self.accept("u")
        digits = ""
        while self.text[self.position : self.position + 1].isdigit() and digits != "0":
            digits += self.take()
        length = int(digits[:6])
        self.accept("_")
        name = self.text[self.position : self.position + length]
        if len(name) != length:
            raise NotRustError
        self.position += length
        if punycode:
            head, _, tail = name.rpartition("_")
            name = f"{head}-{tail}".lstrip("-").encode().decode("punycode")
        return name, disambiguator

    def path(self, *, value: bool = False) -> str:
        """``value``: a function's path, whose generic arguments are written after ``::``."""
        self.enter()
        tag = self.take()
        if tag == "C":
            text = self.identifier()[0]
        elif tag == "N":
            text = self.nested(value)
        elif tag == "M":
            self.implementation()
            text = self.self_type()
        elif tag in "XY":
            if tag == "X":
                self.implementation()
            kind = self.type()
            text = f"<{kind} as {self.path()}>"
        elif tag == "I":
            text = self.path(value=value)
            arguments = self.generic_arguments()
            if not self.short:
                text += f"::<{arguments}>" if value else f"<{arguments}>"
        elif tag == "B":
            text = self.back(lambda: self.path(value=value))
        else:
            raise NotRustError
        self.depth -= 1
        return text

    def implementation(self) -> None:
        """Where an impl block stands: not told."""
        self.optional("s")
        self.path()

    def self_type(self) -> str:
        text = self.type()
        # A path reads well without brackets; other types do not.
        plain = self.short and text.replace("::", "").replace("_", "").isalnum()
        return text if plain else f"<{text}>"

    def nested(self, value: bool) -> str:
        namespace = self.take()
        text = self.path(value=value)
        name, disambiguator = self.identifier()
        if namespace.isupper():
            kind = {"C": "closure", "S": "shim"}.get(namespace, namespace)
            name = f":{name}" if name else ""
            return f"{text}::{{{kind}{name}#{disambiguator}}}"
        return f"{text}::{name}" if name else text

    def generic_arguments(self) -> str:
        arguments = []
        while not self.accept("E"):
            if self.accept("L"):
                self.base62()
                arguments.append("'_")
            elif self.accept("K"):
                arguments.append(self.constant())
            else:
                arguments.append(self.type())
        return ", ".join(arguments)

    def back(self, read: Callable[[], str]) -> str:
        start = self.position - 1
        target = self.base62()
        if target >= start:
            raise NotRustError
        here, self.position = self.position, target
        text = read()
        self.position = here
        return text

    def type(self) -> str:
        self.enter()
        tag = self.peek()
        if tag in _BASIC:
            self.position += 1
            text = _BASIC[tag]
        elif tag in _TYPES:
            self.position += 1
            text = _TYPES[tag](self)
        else:
            text = self.path()
        self.depth -= 1
        return text

    def reference(self, words: str) -> str:
        if self.accept("L"):
            self.base62()
        return f"&{words}{self.type()}"

    def array(self) -> str:
        text = self.type()
        return f"[{text}; {self.constant()}]"

    def tuple(self) -> str:
        parts = []
        while not self.accept("E"):
            parts.append(self.type())
        return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"

    def function(self) -> str:
        self.optional("G")
        words = "unsafe " if self.accept("U") else ""
        if self.accept("K"):
            abi = "C" if self.accept("C") else self.identifier()[0].replace("_", "-")
            words += f'extern "{abi}" '
        parts = []
        while not self.accept("E"):
            parts.append(self.type())
        result = self.type()
        arrow = "" if result == "()" else f" -> {result}"
        return f"{words}fn({', '.join(parts)}){arrow}"

    def dynamic(self) -> str:
        self.optional("G")
        traits = []
        while not self.accept("E"):
            trait = self.path()
            while self.accept("p"):
                binding = f"{self.identifier()[0]} = {self.type()}"
                if self.short:
                    continue
                inside, closed, _ = (
                    trait.rpartition(">") if trait.endswith(">") else (trait, "", "")
                )
                trait = f"{inside}, {binding}>" if closed else f"{inside}<{binding}>"
            traits.append(trait)
        if self.accept("L"):
            self.base62()
        return "dyn " + " + ".join(traits)

    def constant(self) -> str:
        self.enter()
        if self.accept("B"):
            text = self.back(self.constant)
        elif self.accept("p"):
            text = "_"
        else:
            kind = self.take()
            sign = "-" if self.accept("n") else ""
            end = self.text.index("_", self.position)
            digits = self.text[self.position : end]
            self.position = end + 1
            text = _constant_text(kind, sign, digits)
        self.depth -= 1
        return text


def _constant_text(kind: str, sign: str, digits: str) -> str:
    value = int(digits or "0", 16)
    if kind == "b":
        return "true" if value else "false"
    if kind == "c":
        return repr(chr(value))
    if kind not in _BASIC:
        raise NotRustError
    return f"{sign}{value}" if value < 1 << 64 else f"{sign}0x{digits}"


_TYPES: dict[str, Callable[[_Reader], str]] = {
    "R": lambda reader: reader.reference(""),
    "Q": lambda reader: reader.reference("mut "),
    "P": lambda reader: f"*const {reader.type()}",
    "O": lambda reader: f"*mut {reader.type()}",
    "A": _Reader.array,
    "S": lambda reader: f"[{reader.type()}]",
    "T": _Reader.tuple,
    "F": _Reader.function,
    "D": _Reader.dynamic,
    "B": lambda reader: reader.back(reader.type),
}
