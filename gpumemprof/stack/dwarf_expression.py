"""Evaluate the DWARF expressions that call-frame information uses (DWARF 5, sections 2.5, 6.4.2).

Compilers and linkers use them in three places: procedure linkage tables (the CFA depends on how far
the stub has run), functions that align their stack, and the frame below a signal handler.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import NoReturn

from gpumemprof.errors import RemoteDataError
from gpumemprof.stack.dwarf import Cursor

MAX_OPERATIONS = 512
"""Operations carried out; expressions may jump backwards."""
MAX_DEPTH = 64
_MASK = (1 << 64) - 1
_SIGN = 1 << 63


def _signed(value: int) -> int:
    return (value & _MASK ^ _SIGN) - _SIGN


def _divide(a: int, b: int) -> int:
    """Signed, towards zero."""
    a, b = _signed(a), _signed(b)
    if b == 0:
        raise RemoteDataError("an expression divides by zero")
    return -(-a // b) if (a < 0) != (b < 0) else a // b


def _modulo(a: int, b: int) -> int:
    if b == 0:
        raise RemoteDataError("an expression divides by zero")
    return a % b


def _compare(test: Callable[[int, int], bool]) -> Callable[[int, int], int]:
    return lambda a, b: int(test(_signed(a), _signed(b)))


_BINARY: dict[int, Callable[[int, int], int]] = {
    0x1A: operator.and_,
    0x1B: _divide,
    0x1C: operator.sub,
    0x1D: _modulo,
    0x1E: operator.mul,
    0x21: operator.or_,
    0x22: operator.add,
    0x24: lambda a, b: a << b if b < 64 else 0,
    0x25: lambda a, b: a >> b if b < 64 else 0,
    0x26: lambda a, b: _signed(a) >> min(b, 63),
    0x27: operator.xor,
    0x29: _compare(operator.eq),
    0x2A: _compare(operator.ge),
    0x2B: _compare(operator.gt),
    0x2C: _compare(operator.le),
    0x2D: _compare(operator.lt),
    0x2E: _compare(operator.ne),
}
_UNARY: dict[int, Callable[[int], int]] = {
    0x19: lambda a: abs(_signed(a)),
    0x1F: operator.neg,
    0x20: operator.invert,
}
# code -> (bytes, signed)
_CONSTANTS: dict[int, tuple[int, bool]] = {
    0x03: (8, False),
    0x08: (1, False),
    0x09: (1, True),
    0x0A: (2, False),
    0x0B: (2, True),
    0x0C: (4, False),
    0x0D: (4, True),
    0x0E: (8, False),
    0x0F: (8, True),
}
_DEREF, _DUP, _DROP, _OVER, _PICK, _SWAP, _ROT = 0x06, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17
_PLUS_UCONST, _BRA, _SKIP, _LIT0, _BREG0, _BREGX, _DEREF_SIZE, _NOP = (
    0x23, 0x28, 0x2F, 0x30, 0x70, 0x92, 0x94, 0x96,
)  # fmt: skip
_CONSTU, _CONSTS = 0x10, 0x11


def evaluate(  # noqa: PLR0912, PLR0915 - one branch for each kind of operation
    expression: bytes,
    register: Callable[[int], int],
    load: Callable[[int, int], int],
    initial: int | None = None,
) -> int:
    """The value an expression leaves on top of its stack.

    ``register``: value of a register by DWARF number; ``load(address, bytes)``: memory;
    ``initial``: pushed first (the CFA, for the rules of registers). Raises RemoteDataError for
    what is no such expression, or runs too long; what the two functions raise passes through.
    """
    cursor = Cursor(expression)
    stack: list[int] = [] if initial is None else [initial]

    def pick(depth: int) -> int:
        if depth >= len(stack):
            _underflow()
        return stack[-1 - depth]

    for _ in range(MAX_OPERATIONS):
        if not cursor.more:
            return pick(0)
        code = cursor.u8()
        if _LIT0 <= code < _LIT0 + 32:
            stack.append(code - _LIT0)
        elif _BREG0 <= code < _BREG0 + 32:
            stack.append(register(code - _BREG0) + cursor.sleb() & _MASK)
        elif code in _BINARY:
            if len(stack) < 2:
                _underflow()
            right = stack.pop()
            stack[-1] = _BINARY[code](stack[-1], right) & _MASK
        elif code in _CONSTANTS:
            size, signed = _CONSTANTS[code]
            stack.append(cursor.number(size, signed=signed) & _MASK)
        elif code in _UNARY:
            stack[-1:] = [_UNARY[code](pick(0)) & _MASK]
        elif code == _DEREF:
            stack[-1:] = [load(pick(0), 8)]
        elif code == _DEREF_SIZE:
            size = cursor.u8()
            if size not in (1, 2, 4, 8):
                raise RemoteDataError(f"an expression reads {size} bytes")
            stack[-1:] = [load(pick(0), size)]
        elif code == _PLUS_UCONST:
            stack[-1:] = [pick(0) + cursor.uleb() & _MASK]
        elif code == _CONSTU:
            stack.append(cursor.uleb())
        elif code == _CONSTS:
            stack.append(cursor.sleb() & _MASK)
        elif code == _BREGX:
            number = cursor.uleb()
            stack.append(register(number) + cursor.sleb() & _MASK)
        elif code == _DUP:
            stack.append(pick(0))
        elif code == _OVER:
            stack.append(pick(1))
        elif code == _PICK:
            stack.append(pick(cursor.u8()))
        elif code == _DROP:
            pick(0)
            stack.pop()
        elif code == _SWAP:
            stack[-2:] = [pick(0), pick(1)]
        elif code == _ROT:
            stack[-3:] = [pick(0), pick(2), pick(1)]
        elif code in (_SKIP, _BRA):
            distance = cursor.number(2, signed=True)
            if code == _SKIP or _popped(stack):
                cursor.position += distance
                if not 0 <= cursor.position <= cursor.end:
                    raise RemoteDataError("an expression jumps out of itself")
        elif code != _NOP:
            raise RemoteDataError(f"expression operation {code:#x}")
        if len(stack) > MAX_DEPTH:
            raise RemoteDataError(f"an expression needs a stack of more than {MAX_DEPTH} values")
    raise RemoteDataError(f"an expression runs for more than {MAX_OPERATIONS} operations")


def _popped(stack: list[int]) -> bool:
    if not stack:
        _underflow()
    return bool(stack.pop())


def _underflow() -> NoReturn:
    raise RemoteDataError("an expression takes from an empty stack")


class NotLinearError(Exception):
    """An expression is not of the form that ``Linear`` can hold."""


class Linear:
    """``register + offset``, or the word at ``register + inner`` plus ``offset``.

    Takes the place of a number in ``evaluate``: adding constants keeps the form, every other
    operation raises NotLinearError. So an expression is found to be linear by evaluating it once.
    """

    __slots__ = ("inner", "offset", "register")

    def __init__(self, register: int, offset: int = 0, inner: int | None = None) -> None:
        self.register = register
        self.offset = offset
        self.inner = inner

    def __add__(self, other: object) -> Linear:
        if not isinstance(other, int):
            raise NotLinearError
        return Linear(self.register, _signed(self.offset + other), self.inner)

    __radd__ = __add__

    def __sub__(self, other: object) -> Linear:
        if not isinstance(other, int):
            raise NotLinearError
        return self + -other

    def __and__(self, mask: object) -> Linear:
        if mask != _MASK:
            raise NotLinearError
        return self

    def loaded(self) -> Linear:
        """The word it points to."""
        if self.inner is not None:
            raise NotLinearError
        return Linear(self.register, 0, self.offset)

    def _refuse(self, *_: object) -> NoReturn:
        raise NotLinearError

    # What evaluate does with numbers beyond addition; all of it ends the attempt.
    __or__ = __ror__ = __xor__ = __rxor__ = __rand__ = __mul__ = __rmul__ = _refuse
    __mod__ = __rmod__ = __neg__ = __invert__ = __rsub__ = _refuse
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __bool__ = _refuse


def linear(
    expression: bytes, constants: dict[int, int], initial: Linear | None = None
) -> Linear | None:
    """The linear form of an expression at a known address, None if it has none.

    ``constants``: registers whose value is known (the instruction pointer), by number.
    """

    def register(number: int) -> int:
        if number in constants:
            return constants[number]
        return Linear(number)  # type: ignore[return-value]

    def load(address: int, size: int) -> int:
        if not isinstance(address, Linear) or size != 8:
            raise NotLinearError
        return address.loaded()

    try:
        value = evaluate(expression, register, load, initial)  # type: ignore[arg-type]
    except (NotLinearError, RemoteDataError):
        return None
    return value if isinstance(value, Linear) else None
