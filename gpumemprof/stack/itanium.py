"""Read linker names of C++ (Itanium C++ ABI, section 5.1) for the function they name.

A demangler writes everything out, and then the reader cuts most of it away; libstdc++'s refuses
names beyond 1,024 characters, which templates exceed, and a hostile name of a few hundred
characters makes it write gigabytes, since each back reference may double what is written. So names
are read here once, from left to right, keeping only the words that make up the function's name;
types and template arguments are stepped over. On the way the size of the full text is added up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

MAX_DEPTH = 120
MAX_TEXT = 16 << 10
MAX_COST = 50_000
"""Size of the full text, in tokens, beyond which it is not asked for."""

_STANDARD = {
    "t": "std",
    "a": "std::allocator",
    "b": "std::basic_string",
    "s": "std::string",
    "i": "std::istream",
    "o": "std::ostream",
    "d": "std::iostream",
}
# The abbreviated classes by the name that their constructors and destructors have.
_STANDARD_CLASS = {
    "std::string": "std::basic_string",
    "std::istream": "std::basic_istream",
    "std::ostream": "std::basic_ostream",
    "std::iostream": "std::basic_iostream",
}
_BUILTIN = {
    "v": "void", "w": "wchar_t", "b": "bool", "c": "char", "a": "signed char",
    "h": "unsigned char", "s": "short", "t": "unsigned short", "i": "int", "j": "unsigned int",
    "l": "long", "m": "unsigned long", "x": "long long", "y": "unsigned long long",
    "n": "__int128", "o": "unsigned __int128", "f": "float", "d": "double", "e": "long double",
    "g": "__float128", "z": "...",
}  # fmt: skip
_BUILTIN_D = {
    "Dd": "decimal64", "De": "decimal128", "Df": "decimal32", "Dh": "half", "Di": "char32_t",
    "Ds": "char16_t", "Du": "char8_t", "Da": "auto", "Dc": "decltype(auto)",
    "Dn": "decltype(nullptr)",
}  # fmt: skip
# code -> (how it is written, number of operands in an expression)
_OPERATORS: dict[str, tuple[str, int]] = {
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
_ANONYMOUS = "_GLOBAL__N_"


class NotReadableError(Exception):
    """The name does not follow the grammar, or is nested too deep."""


class CppName(NamedTuple):
    """``short``: the function without arguments. ``cost``: size of the full text, in tokens."""

    short: str
    cost: int


def read(mangled: str) -> CppName:
    """Read a name that begins with ``_Z``. Raises NotReadableError."""
    if not mangled.startswith("_Z"):
        raise NotReadableError
    reader = _Reader(mangled)
    reader.position = 2
    try:
        short = reader.encoding()
    except (IndexError, ValueError, RecursionError):
        raise NotReadableError from None
    if reader.position < len(mangled) and mangled[reader.position] not in ".@":
        raise NotReadableError
    return CppName(short, reader.cost)


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.cost = 0
        self.depth = 0
        self.seen: list[tuple[str, int]] = []
        """Substitution candidates: (short text, cost)."""
        self.argument_cost = 0
        """Of the dearest template argument list so far: what a T_ may stand for."""

    # Small things

    def peek(self, count: int = 1) -> str:
        """The next characters; a NUL, which is in no name, at the end."""
        return self.text[self.position : self.position + count] or "\0"

    def accept(self, token: str) -> bool:
        if self.text.startswith(token, self.position):
            self.position += len(token)
            self.cost += 1
            return True
        return False

    def expect(self, token: str) -> None:
        if not self.accept(token):
            raise NotReadableError

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise NotReadableError

    def number(self) -> int:
        start = self.position
        while self.peek().isdigit():
            self.position += 1
        if self.position - start > 6:
            raise NotReadableError
        return int(self.text[start : self.position])

    def until(self, end: str) -> str:
        stop = self.text.index(end, self.position)
        value = self.text[self.position : stop]
        self.position = stop + len(end)
        return value

    def remember(self, text: str, started: int) -> None:
        if len(text) > MAX_TEXT:  # pointers to members can double it
            raise NotReadableError
        self.seen.append((text, self.cost - started))

    # Names

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
        if code not in _OPERATORS:
            raise NotReadableError
        self.position += 2
        self.cost += 1
        return f"operator{_OPERATORS[code][0]}"

    # Back references

    def substitution(self) -> str:
        self.position += 1
        char = self.peek()
        if char in _STANDARD:
            self.position += 1
            self.cost += 3
            return _STANDARD[char]
        digits = self.until("_")
        index = int(digits, 36) + 1 if digits else 0
        text, cost = self.seen[index]
        self.cost += cost
        return text

    def template_parameter(self) -> str:
        self.expect("T")
        if self.accept("L"):
            self.until("_")
        self.until("_")
        self.cost += max(self.argument_cost, 1)
        return "T"

    def template_arguments(self) -> None:
        self.deeper()
        started = self.cost
        self.expect("I")
        while not self.accept("E"):
            self.template_argument()
            if self.accept("Q"):
                self.expression()
        self.argument_cost = max(self.argument_cost, self.cost - started)
        self.depth -= 1

    def template_argument(self) -> None:
        self.deeper()
        if self.accept("X"):
            self.expression()
            self.expect("E")
        elif self.peek() == "L":
            self.literal()
        elif self.accept("J") or self.accept("I"):  # a pack; I is how compilers began to write it
            while not self.accept("E"):
                self.template_argument()
        elif self.peek() == "T" and self.peek(2) in ("Ty", "Tn", "Tt", "Tp", "Tk"):
            self.template_parameter_declaration()
            if self.peek() != "E":
                self.template_argument()
        else:
            self.type()
        self.depth -= 1

    def template_parameter_declaration(self) -> None:
        self.deeper()
        if self.accept("Ty"):
            pass
        elif self.accept("Tk"):
            self.name()
        elif self.accept("Tn"):
            self.type()
        elif self.accept("Tp"):
            self.template_parameter_declaration()
        elif self.accept("Tt"):
            while not self.accept("E"):
                self.template_parameter_declaration()
        else:
            raise NotReadableError
        self.depth -= 1

    # Types

    def type(self) -> str:
        self.deeper()
        started = self.cost
        self.cost += 1
        char = self.peek()
        if char in _BUILTIN:
            self.position += 1
            text, remembered = _BUILTIN[char], False
        elif self.peek(2) in _BUILTIN_D:
            text, remembered = _BUILTIN_D[self.peek(2)], False
            self.position += 2
        else:
            text, remembered = self.compound_type(char)
        if remembered:
            self.remember(text, started)
        self.depth -= 1
        return text

    def compound_type(self, char: str) -> tuple[str, bool]:
        """(short text, whether it is a substitution candidate)."""
        simple = _TYPES.get(char)
        if simple is not None:
            return simple(self), True
        if char == "S" and self.peek(2) != "St":
            text = self.substitution()
            if self.peek() != "I":
                return text, False
            self.template_arguments()
            return text, True
        if char.isdigit() or char in "NZ" or self.peek(2) == "St" or self.peek(2) in ("Ut", "Ul"):
            return self.name(), True
        raise NotReadableError

    def qualified(self) -> str:
        words = {"r": " restrict", "V": " volatile", "K": " const"}
        suffix = ""
        while self.peek() in words:
            suffix = words[self.peek()] + suffix
            self.position += 1
        return self.type() + suffix

    def pointer(self) -> str:
        sign = {"P": "*", "R": "&", "O": "&&"}[self.peek()]
        self.position += 1
        inner = self.type()
        if " (*)" in inner or inner.endswith("()"):
            return inner
        return inner + sign

    def function_type(self) -> str:
        self.expect("F")
        self.accept("Y")
        result = self.type()
        while not self.accept("E"):
            if self.peek() in "RO" and self.peek(2)[1:] == "E":
                self.position += 1
            else:
                self.type()
        return f"{result} (*)()"

    def array(self) -> str:
        self.expect("A")
        if self.peek().isdigit():
            self.number()
        elif self.peek() != "_":
            self.expression()
        self.expect("_")
        return f"{self.type()} []"

    def member_pointer(self) -> str:
        self.expect("M")
        owner = self.type()
        return f"{self.type()} {owner}::*"

    def parameter_type(self) -> str:
        if self.peek(2) in ("Ts", "Tu", "Te"):
            self.position += 2
            return self.name()
        started = self.cost
        text = self.template_parameter()
        if self.peek() == "I":
            self.remember(text, started)
            self.template_arguments()
        return text

    def vendor_type(self) -> str:
        if self.peek(2) in ("Ut", "Ul"):
            return self.unnamed()
        self.expect("U")
        self.source_name()
        if self.peek() == "I":
            self.template_arguments()
        return self.type()

    def vendor_builtin(self) -> str:
        self.expect("u")
        text = self.source_name()
        if self.peek() == "I":
            self.template_arguments()
        return text

    def complex_type(self) -> str:
        self.position += 1
        return self.type()

    def d_type(self) -> str:
        code = self.peek(2)
        self.position += 2
        if code == "Dp":
            return self.type()
        if code in ("Dt", "DT"):
            self.expression()
            self.expect("E")
            return "decltype(...)"
        if code == "Dv":
            if self.peek() == "_":
                self.position += 1
                self.expression()
            else:
                self.number()
            self.expect("_")
            return f"{self.type()} vector"
        if code == "DF":
            self.number()
            if self.peek() not in ("_", "b", "x"):
                raise NotReadableError
            self.position += 1
            return "_Float"
        if code in ("DB", "DU"):
            self.until("_")
            return "_BitInt"
        if code in ("Do", "DO", "Dw", "Dx"):  # exception specification of a function type
            if code == "DO":
                self.expression()
                self.expect("E")
            elif code == "Dw":
                while not self.accept("E"):
                    self.type()
            return self.function_type()
        raise NotReadableError

    # Expressions: stepped over

    def literal(self) -> None:
        self.expect("L")
        if self.accept("_Z") or self.accept("Z"):
            self.encoding()
            self.expect("E")
            return
        self.type()
        self.cost += 1
        self.until("E")

    def expressions_until_end(self, end: str = "E") -> None:
        while not self.accept(end):
            self.expression()

    def expression(self) -> None:
        self.deeper()
        self.cost += 1
        char, code = self.peek(), self.peek(2)
        self.accept("gs")
        code = self.peek(2)
        if char == "L":
            self.literal()
        elif char == "T":
            self.template_parameter()
        elif code in _EXPRESSIONS:
            self.position += 2
            _EXPRESSIONS[code](self)
        elif code in _OPERATORS:
            self.position += 2
            operands = _OPERATORS[code][1]
            if code in ("pp", "mm"):
                self.accept("_")
            for _ in range(operands):
                self.expression()
        elif self.accept("u"):
            self.source_name()
            while not self.accept("E"):
                self.template_argument()
        elif char.isdigit() or char in "SN":
            self.unresolved_name()
        else:
            raise NotReadableError
        self.depth -= 1

    def unresolved_name(self) -> None:
        if self.peek().isdigit() or self.accept("on"):
            if self.peek().isdigit():
                self.source_name()
            else:
                self.operator_name()
            if self.peek() == "I":
                self.template_arguments()
        else:
            self.name()

    def scope_resolution(self) -> None:
        if self.peek().isdigit():
            while not self.accept("E"):
                self.unresolved_name()
        else:
            self.type()
        self.base_name()

    def base_name(self) -> None:
        if self.accept("on"):
            self.operator_name()
        elif self.accept("dn"):
            if self.peek().isdigit():
                self.source_name()
            else:
                self.type()
        else:
            self.source_name()
        if self.peek() == "I":
            self.template_arguments()

    def conversion(self) -> None:
        self.type()
        if self.accept("_"):
            self.expressions_until_end()
        else:
            self.expression()

    def typed_list(self) -> None:
        self.type()
        self.expressions_until_end()

    def member(self) -> None:
        self.expression()
        if self.peek().isdigit() or self.peek(2) in ("on", "dn"):
            self.base_name()
        else:
            self.expression()

    def new(self) -> None:
        self.expressions_until_end("_")
        self.type()
        if self.accept("pi"):
            self.expressions_until_end()
        elif not self.accept("E"):
            self.expression()

    def cast(self) -> None:
        self.type()
        self.expression()

    def function_parameter(self) -> None:
        if self.text[self.position - 1] == "L":
            self.number()
            self.expect("p")
        if self.accept("T"):  # this
            return
        while self.peek() in "rVK":
            self.position += 1
        self.until("_")

    def fold(self, operands: int) -> None:
        self.position += 2
        for _ in range(operands):
            self.expression()

    def left_fold_or_parameter(self) -> None:
        if self.peek().isdigit():
            self.function_parameter()
        else:
            self.fold(2)

    def packed_arguments(self) -> None:
        while not self.accept("E"):
            self.template_argument()

    def pack_size(self) -> None:
        if self.peek() == "T":
            self.template_parameter()
        else:
            self.function_parameter_reference()

    def function_parameter_reference(self) -> None:
        if not self.accept("fp") and not self.accept("fL"):
            raise NotReadableError
        self.function_parameter()

    def nothing(self) -> None:
        pass

    def requires(self) -> None:
        if self.text[self.position - 1] == "Q":
            while not self.accept("_"):
                self.type()
        while not self.accept("E"):
            if self.accept("X"):
                self.expression()
                self.accept("N")
                if self.accept("R"):
                    self.type_constraint()
            elif self.accept("T"):
                self.type()
            elif self.accept("Q"):
                self.expression()
            else:
                raise NotReadableError

    def type_constraint(self) -> None:
        self.name()


_TYPES: dict[str, Callable[[_Reader], str]] = {
    "r": _Reader.qualified, "V": _Reader.qualified, "K": _Reader.qualified,
    "P": _Reader.pointer, "R": _Reader.pointer, "O": _Reader.pointer,
    "F": _Reader.function_type, "A": _Reader.array, "M": _Reader.member_pointer,
    "T": _Reader.parameter_type, "U": _Reader.vendor_type, "u": _Reader.vendor_builtin,
    "C": _Reader.complex_type, "G": _Reader.complex_type, "D": _Reader.d_type,
}  # fmt: skip
_EXPRESSIONS: dict[str, Callable[[_Reader], None]] = {
    "cl": _Reader.expressions_until_end, "cp": _Reader.expressions_until_end,
    "cv": _Reader.conversion, "tl": _Reader.typed_list, "il": _Reader.expressions_until_end,
    "dc": _Reader.cast, "sc": _Reader.cast, "cc": _Reader.cast, "rc": _Reader.cast,
    "ti": lambda reader: void(reader.type()), "te": _Reader.expression,
    "st": lambda reader: void(reader.type()), "sz": _Reader.expression,
    "at": lambda reader: void(reader.type()), "az": _Reader.expression,
    "nx": _Reader.expression, "dt": _Reader.member, "pt": _Reader.member,
    "sZ": _Reader.pack_size, "sP": _Reader.packed_arguments, "sp": _Reader.expression,
    "tw": _Reader.expression, "tr": _Reader.nothing, "sr": _Reader.scope_resolution,
    "fp": _Reader.function_parameter, "fL": _Reader.left_fold_or_parameter,
    "fl": lambda reader: reader.fold(1), "fr": lambda reader: reader.fold(1),
    "fR": lambda reader: reader.fold(2), "nw": _Reader.new, "na": _Reader.new,
    "on": lambda reader: void(reader.operator_name()), "rq": _Reader.requires,
    "rQ": _Reader.requires, "dX": lambda reader: reader.fold(0),
}  # fmt: skip


def void(_: object) -> None:
    """Drop a value."""
