"""Types, template arguments and back references in C++ names.

Itanium C++ ABI, sections 5.1.5 and 5.1.8; see ``itanium``.
"""

from __future__ import annotations

from collections.abc import Callable

from gpumemprof.stack.itanium_cursor import NotReadableError
from gpumemprof.stack.itanium_expressions import ExpressionReader

_STANDARD = {
    "t": "std",
    "a": "std::allocator",
    "b": "std::basic_string",
    "s": "std::string",
    "i": "std::istream",
    "o": "std::ostream",
    "d": "std::iostream",
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


class TypeReader(ExpressionReader):
    """Reads types, of which a short form is kept for conversion operators."""

    # Back references

    def substitution(self) -> str:
        """``<substitution>``: something seen before, or an abbreviation."""
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
        """``<template-param>``"""
        self.expect("T")
        if self.accept("L"):
            self.until("_")
        self.until("_")
        self.cost += max(self.argument_cost, 1)
        return "T"

    def template_arguments(self) -> None:
        """``<template-args>``"""
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
        """``<template-arg>``"""
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
        """``<template-param-decl>``"""
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
        """``<type>``"""
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
        """const, volatile, restrict"""
        words = {"r": " restrict", "V": " volatile", "K": " const"}
        suffix = ""
        while self.peek() in words:
            suffix = words[self.peek()] + suffix
            self.position += 1
        return self.type() + suffix

    def pointer(self) -> str:
        """Pointers and references."""
        sign = {"P": "*", "R": "&", "O": "&&"}[self.peek()]
        self.position += 1
        inner = self.type()
        if " (*)" in inner or inner.endswith("()"):
            return inner
        return inner + sign

    def function_type(self) -> str:
        """``<function-type>``"""
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
        """``<array-type>``"""
        self.expect("A")
        if self.peek().isdigit():
            self.number()
        elif self.peek() != "_":
            self.expression()
        self.expect("_")
        return f"{self.type()} []"

    def member_pointer(self) -> str:
        """``<pointer-to-member-type>``"""
        self.expect("M")
        owner = self.type()
        return f"{self.type()} {owner}::*"

    def parameter_type(self) -> str:
        """A template argument as a type, or an elaborated one."""
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
        """A qualifier of a vendor, or a type without name."""
        if self.peek(2) in ("Ut", "Ul"):
            return self.unnamed()
        self.expect("U")
        self.source_name()
        if self.peek() == "I":
            self.template_arguments()
        return self.type()

    def vendor_builtin(self) -> str:
        """A built-in type of a vendor."""
        self.expect("u")
        text = self.source_name()
        if self.peek() == "I":
            self.template_arguments()
        return text

    def complex_type(self) -> str:
        """``_Complex`` and ``_Imaginary``: told as their part."""
        self.position += 1
        return self.type()

    def d_type(self) -> str:
        """What begins with D: packs, decltype, vectors, numbers of given width, ``noexcept``."""
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


_TYPES: dict[str, Callable[[TypeReader], str]] = {
    "r": TypeReader.qualified, "V": TypeReader.qualified, "K": TypeReader.qualified,
    "P": TypeReader.pointer, "R": TypeReader.pointer, "O": TypeReader.pointer,
    "F": TypeReader.function_type, "A": TypeReader.array, "M": TypeReader.member_pointer,
    "T": TypeReader.parameter_type, "U": TypeReader.vendor_type, "u": TypeReader.vendor_builtin,
    "C": TypeReader.complex_type, "G": TypeReader.complex_type, "D": TypeReader.d_type,
}  # fmt: skip
