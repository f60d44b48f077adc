"""Read linker names of C++ (Itanium C++ ABI, section 5.1) for the function they name.

A demangler writes everything out, and then the reader cuts most of it away; libstdc++'s refuses
names beyond 1,024 characters, which templates exceed, and a hostile name of a few hundred
characters makes it write gigabytes, since each back reference may double what is written. So names
are read here once, from left to right, keeping only the words that make up the function's name;
types and template arguments are stepped over. On the way the size of the full text is added up.
"""

from __future__ import annotations

from typing import NamedTuple

from gpumemprof.stack.itanium_cursor import MAX_COST, OPERATORS, NotReadableError
from gpumemprof.stack.itanium_types import TypeReader

__all__ = ["MAX_COST", "CppName", "NotReadableError", "read"]

# The abbreviated classes by the name that their constructors and destructors have.
_STANDARD_CLASS = {
    "std::string": "std::basic_string",
    "std::istream": "std::basic_istream",
    "std::ostream": "std::basic_ostream",
    "std::iostream": "std::basic_iostream",
}
_ANONYMOUS = "_GLOBAL__N_"


class CppName(NamedTuple):
    """``short``: the function without arguments. ``cost``: size of the full text, in tokens."""

    short: str
    cost: int


def read(mangled: str) -> CppName:
    """Read a name that begins with ``_Z``. Raises NotReadableError."""
    if not mangled.startswith("_Z"):
        raise NotReadableError
    reader = _NameReader(mangled)
    reader.position = 2
    try:
        short = reader.encoding()
    except (IndexError, ValueError, RecursionError):
        raise NotReadableError from None
    if reader.position < len(mangled) and mangled[reader.position] not in ".@":
        raise NotReadableError
    return CppName(short, reader.cost)


class _NameReader(TypeReader):
    """Reads names."""

    def encoding(self) -> str:
        self.deeper()
        if self.peek() in "TG" and self.peek(2) != "Ty":
            name = self.special()
        else:
            name = self.name()
            while self.accept("."):  # a clone inside a local name
                while self.peek().isalnum() or self.peek() == "_":
                    self.position += 1
            if self.position < len(self.text) and self.peek() not in "E.@":
                self.parameters()
        self.depth -= 1
        return name

    def parameters(self) -> None:
        """Types up to the end of the encoding, and a trailing requires clause."""
        while self.position < len(self.text) and self.peek() not in "E.@":
            if self.accept("Q"):
                self.expression()
            else:
                self.type()

    def special(self) -> str:
        if self.accept("Tc"):
            self.call_offset()
            self.call_offset()
            return self.encoding()
        if self.peek(2) in ("Th", "Tv"):
            self.position += 1
            self.call_offset()
            return self.encoding()
        if self.accept("GTt") or self.accept("GTn"):
            return self.encoding()
        if self.accept("GR"):
            name = self.name()
            if not self.accept("_"):
                self.until("_")
            return name
        if self.peek(2) in ("GV", "TW", "TH"):
            self.position += 2
            return self.name()
        if self.peek(2) in ("TV", "TT", "TI", "TS"):
            self.position += 2
            return self.type()
        raise NotReadableError

    def call_offset(self) -> None:
        kind = self.peek()
        self.position += 1
        self.until("_")
        if kind == "v":
            self.until("_")
        elif kind != "h":
            raise NotReadableError

    def name(self) -> str:
        started = self.cost
        if self.accept("N"):
            return self.nested()
        if self.accept("Z"):
            return self.local()
        if self.peek() == "S" and self.peek(2) != "St":
            text = self.substitution()
        else:
            prefix = "std::" if self.accept("St") else ""
            text = prefix + self.unqualified("")
            if self.peek() == "I":
                self.remember(text, started)
        if self.peek() == "I":
            self.template_arguments()
        return text

    def nested(self) -> str:
        self.deeper()
        self.accept("H")
        while self.peek() in "rVK":
            self.position += 1
        if self.peek() in "RO":
            self.position += 1
        text, started = "", self.cost
        while not self.accept("E"):
            char = self.peek()
            if char == "I":
                self.template_arguments()
            elif char == "S" and self.peek(2) != "St":
                text = self.substitution()
                continue
            elif self.accept("St"):
                text = "std"
                continue
            elif char == "T":
                text = self.template_parameter()
            elif self.peek(2) in ("Dt", "DT"):
                text = self.type()
                continue
            elif self.accept("M"):
                continue
            else:
                if char in "CD":
                    text = _STANDARD_CLASS.get(text, text)
                unqualified = self.unqualified(text)
                text = f"{text}::{unqualified}" if text else unqualified
            if self.peek() != "E":
                self.remember(text, started)
        self.depth -= 1
        return text

    def local(self) -> str:
        outer = self.encoding()
        self.expect("E")
        if self.accept("s"):
            self.discriminator()
            return f"{outer}::string literal"
        if self.accept("d"):  # in the default argument of a parameter
            if self.peek().isdigit():
                self.number()
            self.expect("_")
        inner = self.name()
        self.discriminator()
        return f"{outer}::{inner}"

    def discriminator(self) -> None:
        if self.accept("__"):
            self.number()
            self.expect("_")
        elif self.peek() == "_" and self.peek(2)[1:].isdigit():
            self.position += 2

    def unqualified(self, scope: str) -> str:
        while self.accept("W"):  # module names
            self.accept("P")
            self.source_name()
        self.accept("F")  # a friend
        self.accept("L")  # internal linkage
        char = self.peek()
        if char.isdigit():
            text = self.source_name()
        elif char == "U":
            text = self.unnamed()
        elif char == "C" and (self.peek(2)[1:].isdigit() or self.peek(2) == "CI"):
            text = self.structor(scope, "")
        elif char == "D" and self.peek(2)[1:].isdigit():
            text = self.structor(scope, "~")
        elif self.accept("DC"):
            names = []
            while not self.accept("E"):
                names.append(self.source_name())
            text = f"[{', '.join(names)}]"
        else:
            text = self.operator_name()
        while self.accept("B"):  # ABI tags
            self.source_name()
        return text

    def structor(self, scope: str, sign: str) -> str:
        inheriting = self.peek(2) == "CI"
        self.position += 3 if inheriting else 2
        if inheriting:
            self.type()
        self.cost += 1
        return sign + scope.rpartition("::")[2]

    def source_name(self) -> str:
        length = self.number()
        text = self.peek(length)
        if len(text) != length or not length:
            raise NotReadableError
        self.position += length
        self.cost += 1 + length // 8
        return "(anonymous namespace)" if text.startswith(_ANONYMOUS) else text

    def unnamed(self) -> str:
        if self.accept("Ut"):
            return f"{{unnamed type#{self.ordinal()}}}"
        if self.accept("Ul"):
            while not self.accept("E"):
                if self.peek() == "T" and self.peek(2) in ("Ty", "Tn", "Tt", "Tp"):
                    self.template_parameter_declaration()
                else:
                    self.type()
            return f"{{lambda#{self.ordinal()}}}"
        if self.accept("Ub"):
            return f"{{block#{self.ordinal()}}}"
        raise NotReadableError

    def ordinal(self) -> int:
        digits = self.until("_")
        return int(digits) + 2 if digits else 1

    def operator_name(self) -> str:
        if self.accept("cv"):
            return f"operator {self.type()}"
        if self.accept("li"):
            return f'operator"" {self.source_name()}'
        if self.peek() == "v" and self.peek(2)[1:].isdigit():
            self.position += 2
            return f"operator {self.source_name()}"
        code = self.peek(2)
        if code not in OPERATORS:
            raise NotReadableError
        self.position += 2
        self.cost += 1
        return f"operator{OPERATORS[code][0]}"
