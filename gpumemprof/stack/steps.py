"""One step of unwinding, made from a row of call-frame information for one address.

Most code is compiled without frame pointers: the CFA is the stack pointer plus a constant and the
return address stands just below it. Such a step is one number; the rest is kept for the few
callers whose frames need it.
"""

from __future__ import annotations

import enum

from gpumemprof.errors import RemoteDataError
from gpumemprof.stack.architecture import Architecture
from gpumemprof.stack.cfi_rows import Cie, How, Row, Rule
from gpumemprof.stack.dwarf_expression import Linear, linear

CFA = -1
"""Stands for the canonical frame address where a register number is expected."""


class UnwindEnd(enum.Enum):
    """Why a stack has no further frames. The value is the sentence a user reads."""

    ROOT = "outermost frame"
    WINDOW_CUT = "the captured part of the stack ends here"
    NO_CFI = "no call-frame information"
    NO_MAPPING = "the return address is not in code"
    BAD_CFI = "call-frame information cannot be used"
    JIT_CODE = "code made at run time"
    FILE_UNREADABLE = "the file of the code cannot be read"
    OTHER_STACK = "the frames below the signal are on another stack"
    TOO_DEEP = "more frames than are unwound"
    LOOP = "the frames repeat"

    @property
    def complete(self) -> bool:
        """Whether the stack reaches its root."""
        return self is UnwindEnd.ROOT


class Step:
    """How to get from one frame to its caller.

    ``words``: if not 0, the CFA is the stack pointer plus so many words and the return address is
    the word below it. ``cfa``: else the CFA as a linear form, or bytes of an expression.
    ``saved``: rules of registers by number: a linear form is where it is saved, relative to a
    register or the CFA; anything else is a Rule. ``end``: the step leads nowhere.
    """

    __slots__ = ("base", "cfa", "detail", "end", "plain", "saved", "signal_frame", "words")

    def __init__(
        self,
        cfa: Linear | bytes,
        saved: dict[int, Linear | Rule],
        *,
        words: int = 0,
        base: int = 0,
        plain: bool = False,
        signal_frame: bool = False,
        end: UnwindEnd | None = None,
        detail: str = "",
    ) -> None:
        self.cfa = cfa
        self.saved = saved
        self.words = words
        self.base = base
        """Register of a CFA that is a register plus an offset."""
        self.plain = plain
        """The return address is the word below the CFA and registers are saved relative to it."""
        self.signal_frame = signal_frame
        self.end = end
        self.detail = detail

    @property
    def weight(self) -> int:
        """Memory it takes, in units of a plain step's."""
        held = len(self.cfa) if isinstance(self.cfa, bytes) else 0
        if not self.plain:
            held += sum(len(rule.expression) for rule in self.saved.values() if type(rule) is Rule)
        return 1 + held // 128

    @classmethod
    def stop(cls, end: UnwindEnd, detail: str = "") -> Step:
        """A step that leads nowhere."""
        return cls(b"", {}, end=end, detail=detail)


def compile_row(row: Row, cie: Cie, pc: int, architecture: Architecture) -> Step:
    """The step for the instruction at ``pc`` (the process's address: some tables of linkage stubs
    depend on it). Raises RemoteDataError when the row is of no use."""
    if row.cfa is None:
        raise RemoteDataError("no rule for the frame address")
    return_register = cie.return_register
    if return_register != architecture.return_address:
        raise RemoteDataError(f"the return address is in register {return_register}")
    return_rule = row.rules.get(return_register)
    if return_rule is not None and return_rule.how is How.UNDEFINED:
        return Step.stop(UnwindEnd.ROOT)
    constants = {return_register: pc}
    cfa: Linear | bytes
    if row.cfa.expression:
        simple = linear(row.cfa.expression, constants)
        cfa = row.cfa.expression if simple is None else simple
    else:
        cfa = Linear(row.cfa.register, row.cfa.offset)
    saved: dict[int, Linear | Rule] = {}
    for register, rule in row.rules.items():
        if register < len(architecture.register_names) and rule.how is not How.SAME:
            saved[register] = _location(rule, constants)
    return _classified(cfa, saved, cie.signal_frame, architecture)


def _location(rule: Rule, constants: dict[int, int]) -> Linear | Rule:
    if rule.how is How.AT_CFA:
        return Linear(CFA, rule.value)
    if rule.how is How.AT_EXPRESSION:
        simple = linear(rule.expression, constants, Linear(CFA))
        return rule if simple is None else simple
    return rule


def _classified(
    cfa: Linear | bytes,
    saved: dict[int, Linear | Rule],
    signal_frame: bool,
    architecture: Architecture,
) -> Step:
    word = architecture.word
    returns = saved.get(architecture.return_address)
    plain = (
        not signal_frame
        and isinstance(cfa, Linear)
        and cfa.inner is None
        and isinstance(returns, Linear)
        and (returns.register, returns.offset, returns.inner) == (CFA, -word, None)
        and architecture.stack_pointer not in saved
        and all(
            isinstance(place, Linear)
            and place.register == CFA
            and place.inner is None
            and place.offset % word == 0
            for place in saved.values()
        )
    )
    words = base = 0
    if plain:
        assert isinstance(cfa, Linear)
        base = cfa.register
        if base == architecture.stack_pointer and cfa.offset > 0 and cfa.offset % word == 0:
            words = cfa.offset // word
    return Step(cfa, saved, words=words, base=base, plain=plain, signal_frame=signal_frame)
