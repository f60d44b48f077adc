"""Run call-frame instructions: from a CIE and an FDE to the row that holds at an address.

DWARF 5, section 6.4.2. A row says how to find the canonical frame address (CFA) and, from it, the
caller's registers.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from gpumemprof.errors import RemoteDataError
from gpumemprof.stack.dwarf import Cursor

MAX_REMEMBERED = 64
MAX_EXPRESSION = 256
"""Bytes; those of linkage stubs and signal frames have a dozen."""
MAX_REGISTER = 1023
"""DWARF's numbers of x86-64 end at 130, of arm64 at 127."""


class How(enum.IntEnum):
    """How a caller's register is found."""

    UNDEFINED = 0
    SAME = 1
    AT_CFA = 2
    """Saved in memory at CFA + n."""
    CFA_PLUS = 3
    """Its value is CFA + n."""
    REGISTER = 4
    """Its value is that of register n."""
    AT_EXPRESSION = 5
    """Saved in memory at the address the expression gives."""
    EXPRESSION = 6
    """Its value is what the expression gives."""


class Rule(NamedTuple):
    """``value``: an offset or register number. ``expression``: DWARF operations."""

    how: How
    value: int = 0
    expression: bytes = b""


class CfaRule(NamedTuple):
    """CFA = register + offset, or what ``expression`` gives if it is not empty."""

    register: int
    offset: int
    expression: bytes = b""


class Row(NamedTuple):
    """What holds from ``start`` (virtual address) up to the next row.

    ``cfa`` None: the program defined none. ``rules``: by register number; a register that is not
    in it has no rule (None-rule: callee-saved registers keep their value).
    """

    start: int
    cfa: CfaRule | None
    rules: dict[int, Rule]


class Cie(NamedTuple):
    """Common Information Entry: what many functions share."""

    code_alignment: int
    data_alignment: int
    return_register: int
    pointer_encoding: int
    lsda_encoding: int
    augmented: bool
    """'z': FDEs carry a length of augmentation data."""
    signal_frame: bool
    """'S': a signal handler returns here; the address is not a return address."""
    instructions: bytes


class Fde(NamedTuple):
    """Frame Description Entry: one range of code, ``start`` up to ``end``."""

    cie: Cie
    start: int
    end: int
    instructions: bytes


class _State:
    __slots__ = ("cfa", "cie", "initial", "location", "remembered", "rules")

    def __init__(self, cie: Cie, location: int) -> None:
        self.cie = cie
        self.location = location
        self.cfa: CfaRule | None = None
        self.rules: dict[int, Rule] = {}
        self.initial: dict[int, Rule] = {}
        self.remembered: list[tuple[CfaRule | None, dict[int, Rule]]] = []

    def restore(self, register: int) -> None:
        if register in self.initial:
            self.rules[register] = self.initial[register]
        else:
            self.rules.pop(register, None)

    def base(self) -> CfaRule:
        if self.cfa is None or self.cfa.expression:
            raise RemoteDataError("a CFA rule is changed that is not a register and an offset")
        return self.cfa


def _block(cursor: Cursor) -> bytes:
    size = cursor.uleb()
    if size > MAX_EXPRESSION:
        raise RemoteDataError(f"an expression of {size} bytes")
    return cursor.take(size)


def _register(cursor: Cursor) -> int:
    number = cursor.uleb()
    if number > MAX_REGISTER:
        raise RemoteDataError(f"a rule for register {number}")
    return number


def _set(how: How, operand: Callable[[_State, Cursor], int]) -> _Operation:
    def operation(state: _State, cursor: Cursor) -> None:
        register = _register(cursor)
        state.rules[register] = Rule(how, operand(state, cursor))

    return operation


def _set_expression(how: How) -> _Operation:
    def operation(state: _State, cursor: Cursor) -> None:
        register = _register(cursor)
        state.rules[register] = Rule(how, 0, _block(cursor))

    return operation


def _remember(state: _State, _: Cursor) -> None:
    if len(state.remembered) >= MAX_REMEMBERED:
        raise RemoteDataError(f"more than {MAX_REMEMBERED} remembered states")
    state.remembered.append((state.cfa, dict(state.rules)))


def _restore_state(state: _State, _: Cursor) -> None:
    if not state.remembered:
        raise RemoteDataError("no state was remembered")
    state.cfa, state.rules = state.remembered.pop()


def _def_cfa(state: _State, cursor: Cursor) -> None:
    state.cfa = CfaRule(cursor.uleb(), cursor.uleb())


def _def_cfa_sf(state: _State, cursor: Cursor) -> None:
    state.cfa = CfaRule(cursor.uleb(), cursor.sleb() * state.cie.data_alignment)


def _def_cfa_register(state: _State, cursor: Cursor) -> None:
    state.cfa = CfaRule(cursor.uleb(), state.base().offset)


def _def_cfa_offset(state: _State, cursor: Cursor) -> None:
    state.cfa = CfaRule(state.base().register, cursor.uleb())


def _def_cfa_offset_sf(state: _State, cursor: Cursor) -> None:
    offset = cursor.sleb() * state.cie.data_alignment
    state.cfa = CfaRule(state.base().register, offset)


def _def_cfa_expression(state: _State, cursor: Cursor) -> None:
    expression = _block(cursor)
    if not expression:
        raise RemoteDataError("an empty expression")
    state.cfa = CfaRule(0, 0, expression)


def _negative_offset(state: _State, cursor: Cursor) -> None:
    register = _register(cursor)
    state.rules[register] = Rule(How.AT_CFA, -cursor.uleb() * state.cie.data_alignment)


def _zero(state: _State, cursor: Cursor) -> int:
    return 0


def _unsigned(state: _State, cursor: Cursor) -> int:
    return cursor.uleb()


def _factored(state: _State, cursor: Cursor) -> int:
    return cursor.uleb() * state.cie.data_alignment


def _factored_signed(state: _State, cursor: Cursor) -> int:
    return cursor.sleb() * state.cie.data_alignment


def _ignore(state: _State, cursor: Cursor) -> None:
    """Nothing that concerns the caller's registers."""


def _skip_uleb(state: _State, cursor: Cursor) -> None:
    cursor.uleb()


def _restore_extended(state: _State, cursor: Cursor) -> None:
    state.restore(cursor.uleb())


_Operation: TypeAlias = "Callable[[_State, Cursor], None]"

# The operations that do not move to another address, by code.
_OPERATIONS: dict[int, _Operation] = {
    0x00: _ignore,  # DW_CFA_nop
    0x05: _set(How.AT_CFA, _factored),  # DW_CFA_offset_extended
    0x06: _restore_extended,
    0x07: _set(How.UNDEFINED, _zero),
    0x08: _set(How.SAME, _zero),
    0x09: _set(How.REGISTER, _unsigned),
    0x0A: _remember,
    0x0B: _restore_state,
    0x0C: _def_cfa,
    0x0D: _def_cfa_register,
    0x0E: _def_cfa_offset,
    0x0F: _def_cfa_expression,
    0x10: _set_expression(How.AT_EXPRESSION),
    0x11: _set(How.AT_CFA, _factored_signed),
    0x12: _def_cfa_sf,
    0x13: _def_cfa_offset_sf,
    0x14: _set(How.CFA_PLUS, _factored),
    0x15: _set(How.CFA_PLUS, _factored_signed),
    0x16: _set_expression(How.EXPRESSION),
    0x2E: _skip_uleb,  # DW_CFA_GNU_args_size
    0x2F: _negative_offset,  # DW_CFA_GNU_negative_offset_extended
}
_ADVANCE_SIZES = {0x02: 1, 0x03: 2, 0x04: 4, 0x1D: 8}
_DW_CFA_SET_LOC = 0x01


def rows(fde: Fde, instructions_vaddr: int = 0) -> Iterator[Row]:
    """The rows of an FDE in order of address; several may start at one address, the last holds.

    ``instructions_vaddr``: virtual address of the FDE's instructions, for DW_CFA_set_loc.
    The rules dictionary of a row is valid until the next row is asked for. Raises RemoteDataError
    on damaged instructions; work is bounded by their length.
    """
    state = _initial(fde)
    for location in _run(state, fde.instructions, instructions_vaddr):
        yield Row(state.location, state.cfa, state.rules)
        state.location = location
    yield Row(state.location, state.cfa, state.rules)


def row_at(fde: Fde, vaddr: int, instructions_vaddr: int = 0) -> Row:
    """The row that holds at a virtual address inside the FDE's range."""
    state = _initial(fde)
    for location in _run(state, fde.instructions, instructions_vaddr):
        if location > vaddr:
            break
        state.location = location
    return Row(state.location, state.cfa, state.rules)


def _initial(fde: Fde) -> _State:
    """What the CIE says of every function, at the start of this one."""
    state = _State(fde.cie, fde.start)
    for _ in _run(state, fde.cie.instructions, 0):
        raise RemoteDataError("a CIE moves to another address")
    state.initial = dict(state.rules)
    return state


def _run(state: _State, instructions: bytes, vaddr: int) -> Iterator[int]:
    """Carry instructions out; yields each new location before it takes effect."""
    cursor = Cursor(instructions)
    cie = state.cie
    while cursor.more:
        code = cursor.u8()
        high, low = code & 0xC0, code & 0x3F
        if high == 0x40:  # DW_CFA_advance_loc
            yield state.location + low * cie.code_alignment
        elif high == 0x80:  # DW_CFA_offset
            state.rules[low] = Rule(How.AT_CFA, cursor.uleb() * cie.data_alignment)
        elif high == 0xC0:  # DW_CFA_restore
            state.restore(low)
        elif code in _ADVANCE_SIZES:
            yield state.location + cursor.number(_ADVANCE_SIZES[code]) * cie.code_alignment
        elif code == _DW_CFA_SET_LOC:
            yield cursor.pointer(cie.pointer_encoding, vaddr + cursor.position)
        elif code in _OPERATIONS:
            _OPERATIONS[code](state, cursor)
        else:
            raise RemoteDataError(f"call-frame instruction {code:#x}")
