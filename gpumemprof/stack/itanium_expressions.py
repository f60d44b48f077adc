"""Expressions in C++ names (Itanium C++ ABI, section 5.1.6): stepped over. See ``itanium``."""

from __future__ import annotations

from collections.abc import Callable

from gpumemprof.stack.itanium_cursor import OPERATORS, NameCursor, NotReadableError


class ExpressionReader(NameCursor):
    """Steps over expressions."""

    def literal(self) -> None:
        """``<expr-primary>``"""
        self.expect("L")
        if self.accept("_Z") or self.accept("Z"):
            self.encoding()
            self.expect("E")
            return
        self.type()
        self.cost += 1
        self.until("E")

    def expressions_until_end(self, end: str = "E") -> None:
        """Expressions up to ``end``."""
        while not self.accept(end):
            self.expression()

    def expression(self) -> None:
        """``<expression>``"""
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
        elif code in OPERATORS:
            self.position += 2
            operands = OPERATORS[code][1]
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
        """A name that depends on template arguments, or a plain one."""
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
        """``sr``: a member of a type that is not known yet."""
        if self.peek().isdigit():
            while not self.accept("E"):
                self.unresolved_name()
        else:
            self.type()
        self.base_name()

    def base_name(self) -> None:
        """``<base-unresolved-name>``"""
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
        """``cv``: one value, or a list in ``_ E``."""
        self.type()
        if self.accept("_"):
            self.expressions_until_end()
        else:
            self.expression()

    def typed_list(self) -> None:
        """``tl``: a braced list of a type."""
        self.type()
        self.expressions_until_end()

    def member(self) -> None:
        """``dt``, ``pt``: an object and one of its members."""
        self.expression()
        if self.peek().isdigit() or self.peek(2) in ("on", "dn"):
            self.base_name()
        else:
            self.expression()

    def new(self) -> None:
        """``nw``, ``na``: placement, type, initialiser."""
        self.expressions_until_end("_")
        self.type()
        if self.accept("pi"):
            self.expressions_until_end()
        elif not self.accept("E"):
            self.expression()

    def cast(self) -> None:
        """A type and a value."""
        self.type()
        self.expression()

    def function_parameter(self) -> None:
        """``fp``, ``fL``: a parameter of the function itself."""
        if self.text[self.position - 1] == "L":
            self.number()
            self.expect("p")
        if self.accept("T"):  # this
            return
        while self.peek() in "rVK":
            self.position += 1
        self.until("_")

    def fold(self, operands: int) -> None:
        """A fold over an operator, with so many operands."""
        self.position += 2
        for _ in range(operands):
            self.expression()

    def left_fold_or_parameter(self) -> None:
        """``fL`` means either."""
        if self.peek().isdigit():
            self.function_parameter()
        else:
            self.fold(2)

    def packed_arguments(self) -> None:
        """``sP``: template arguments up to the end."""
        while not self.accept("E"):
            self.template_argument()

    def pack_size(self) -> None:
        """``sZ``: of what."""
        if self.peek() == "T":
            self.template_parameter()
        else:
            self.function_parameter_reference()

    def function_parameter_reference(self) -> None:
        """A parameter where nothing else may stand."""
        if not self.accept("fp") and not self.accept("fL"):
            raise NotReadableError
        self.function_parameter()

    def nothing(self) -> None:
        """No operands."""

    def requires(self) -> None:
        """``rq``, ``rQ``: a requires expression."""
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
        """The concept of a requirement."""
        self.name()


_E = ExpressionReader
# Code -> what follows it, beyond the operators.
_EXPRESSIONS: dict[str, Callable[[ExpressionReader], None]] = {
    "cl": _E.expressions_until_end, "cp": _E.expressions_until_end,
    "cv": _E.conversion, "tl": _E.typed_list, "il": _E.expressions_until_end,
    "dc": _E.cast, "sc": _E.cast, "cc": _E.cast, "rc": _E.cast,
    "ti": lambda reader: _void(reader.type()), "te": _E.expression,
    "st": lambda reader: _void(reader.type()), "sz": _E.expression,
    "at": lambda reader: _void(reader.type()), "az": _E.expression,
    "nx": _E.expression, "dt": _E.member, "pt": _E.member,
    "sZ": _E.pack_size, "sP": _E.packed_arguments, "sp": _E.expression,
    "tw": _E.expression, "tr": _E.nothing, "sr": _E.scope_resolution,
    "fp": _E.function_parameter, "fL": _E.left_fold_or_parameter,
    "fl": lambda reader: reader.fold(1), "fr": lambda reader: reader.fold(1),
    "fR": lambda reader: reader.fold(2), "nw": _E.new, "na": _E.new,
    "on": lambda reader: _void(reader.operator_name()), "rq": _E.requires,
    "rQ": _E.requires, "dX": lambda reader: reader.fold(0),
}  # fmt: skip


def _void(_: object) -> None:
    """Drop a value."""
