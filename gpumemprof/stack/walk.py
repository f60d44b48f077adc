"""One stack on its way up: ``.eh_frame`` tells, for one return address after the other, where its
function keeps the return address of its caller, and where it saved registers.
"""

from __future__ import annotations

from typing import NamedTuple

from gpumemprof.errors import RemoteDataError
from gpumemprof.stack.architecture import ENTRY_REGISTERS, X86_64, Architecture, Registers
from gpumemprof.stack.cfi_rows import How, Rule
from gpumemprof.stack.dwarf_expression import Linear, evaluate
from gpumemprof.stack.image import ProcessImage
from gpumemprof.stack.steps import CFA, Step, UnwindEnd
from gpumemprof.stack.unwound import Base, Unwound

MAX_FRAMES = 512
_MASK = (1 << 64) - 1
_STACK_LIMIT = 1 << 63
_MAX_STACK = 1 << 32
"""A distance beyond this is not within one stack, bytes."""
_CONSTANT = -1000
# What a function finds when it is entered by a call: the return address on top of the stack.
_ENTRY = Step(Linear(X86_64.stack_pointer, 8), {}, words=1, base=X86_64.stack_pointer, plain=True)


class _CutError(Exception):
    """A word beyond the captured window is needed. ``args[0]``: its index."""


class _Value(NamedTuple):
    """A register's value. ``origin``: the word it was read from, the complement of the register at
    entry, _CONSTANT if it follows from the addresses alone, None if it cannot be told."""

    number: int
    origin: int | None


class Walk:
    """One stack on its way up. Places are word indices relative to the stack pointer at entry."""

    __slots__ = (
        "architecture", "bases", "detail", "end", "exact", "image", "known", "missing", "pcs",
        "repeatable", "resumed", "seen", "slots", "start", "steps", "words",
    )  # fmt: skip

    def __init__(
        self,
        image: ProcessImage,
        registers: Registers,
        words: memoryview[int],
        architecture: Architecture = X86_64,
    ) -> None:
        self.image = image
        self.architecture = architecture
        self.words = words
        self.start = registers.sp
        self.pcs: list[int] = [registers.ip]
        self.slots: list[int] = []
        """Where each return address stands; -1: not in the window."""
        self.steps: list[Step] = []
        """The plain steps since ``resumed``: that at i found its CFA above slot resumed + i."""
        self.resumed = 0
        self.known: dict[int, _Value] = {
            number: _Value(getattr(registers, name), ~number) for number, name in ENTRY_REGISTERS
        }
        """Registers of the frame at ``resumed``; later frames find theirs through ``steps``."""
        self.bases: list[Base] = []
        self.repeatable = True
        self.missing = -1
        self.exact: list[int] = []
        self.seen: set[tuple[int, int]] = set()
        """(address, stack pointer) where signals struck: the only place to turn round."""
        self.end = UnwindEnd.TOO_DEEP
        self.detail = ""

    def run(self) -> Unwound:
        """Climb as far as it goes. Never raises for what the stack or the files hold."""
        if self.start >= _STACK_LIMIT:
            self._stop(UnwindEnd.BAD_CFI, "the stack pointer is no address of a program")
        else:
            try:
                self._up(_ENTRY, 0)
            except _CutError as cut:
                self._stop(UnwindEnd.WINDOW_CUT)
                self.missing = cut.args[0]
            except RemoteDataError as error:
                self._stop(UnwindEnd.BAD_CFI, str(error))
        # A library may have been loaded there since the mappings were read.
        repeatable = self.repeatable and self.end is not UnwindEnd.NO_MAPPING
        return Unwound(
            pcs=tuple(self.pcs),
            return_slots=tuple([8 * slot for slot in self.slots]),
            bases=tuple(self.bases),
            end=self.end,
            detail=self.detail,
            missing=8 * self.missing if self.missing >= 0 else -1,
            exact=tuple(self.exact),
            repeatable=repeatable,
        )

    def _stop(self, end: UnwindEnd, detail: str = "") -> None:
        self.end = end
        self.detail = detail

    def _up(self, step: Step, top: int) -> None:
        """Climb from a frame whose stack pointer is at word ``top``, as far as it goes."""
        words, pcs, slots, steps = self.words, self.pcs, self.slots, self.steps
        known, size = self.image.steps, len(self.words)
        while True:
            count = step.words
            if count:
                top += count
                slot = top - 1
                if slot >= size:
                    raise _CutError(slot)
                pc = words[slot]
                steps.append(step)
            elif step.end is not None:
                self._stop(step.end, step.detail)
                return
            elif step.plain:
                top = self._plain_base(step, top)
                slot = top - 1
                pc = words[slot]
                steps.append(step)
            else:
                if step.signal_frame:  # returned to, but not by a call: nothing precedes it
                    self.exact.append(len(pcs) - 1)
                pc, slot, top = self._climb(step, top)
            if pc == 0:
                # The word that says so is no return address that could be verified.
                self.repeatable = False
                self._stop(UnwindEnd.ROOT)
                return
            if len(pcs) >= MAX_FRAMES:
                return
            slots.append(slot)
            pcs.append(pc)
            if step.signal_frame:
                if not self._struck(pc, top):
                    return
                step = self.image.step(pc, after_call=False)
            else:
                found = known.get(pc)
                step = self.image.step(pc) if found is None else found

    def _plain_base(self, step: Step, top: int) -> int:
        """The word of a CFA that is a register other than the stack pointer, plus an offset."""
        assert isinstance(step.cfa, Linear)
        cfa = self._need(step.base, top) + step.cfa.offset
        above = self._word(cfa)
        if above <= top:
            raise RemoteDataError("a frame address lies below its frame")
        if above > len(self.words):
            raise _CutError(above - 1)
        return above

    def _word(self, address: int) -> int:
        distance = address - self.start
        if distance & 7:
            raise RemoteDataError("a frame address is not aligned")
        if distance < 0 or distance > _MAX_STACK:
            raise RemoteDataError("a frame address lies outside the stack")
        return distance >> 3

    # Registers

    def _find(self, register: int, top: int) -> _Value | None:
        """The value of a register in the current frame, None if nothing tells it."""
        if register == self.architecture.stack_pointer:
            return _Value(self.start + 8 * top, _CONSTANT)
        for i in range(len(self.steps) - 1, -1, -1):
            place = self.steps[i].saved.get(register)
            if place is not None:
                assert isinstance(place, Linear)
                word = self.slots[self.resumed + i] + 1 + (place.offset >> 3)
                if word < 0:
                    raise RemoteDataError("a register is saved below the stack")
                if word >= len(self.words):
                    raise _CutError(word)
                return _Value(self.words[word], word)
        if self.steps and register not in self.architecture.callee_saved:
            return None
        return self.known.get(register)

    def _need(self, register: int, top: int) -> int:
        """The value of a register that an address depends on."""
        value = self._find(register, top)
        if value is None:
            names = self.architecture.register_names
            name = names[register] if 0 <= register < len(names) else str(register)
            raise RemoteDataError(f"register {name} is not known")
        self._depend(value)
        return value.number

    def _depend(self, value: _Value) -> None:
        if value.origin is None:
            self.repeatable = False
        elif value.origin != _CONSTANT:
            relative = value.number - self.start & _MASK
            self.bases.append(Base(len(self.slots), value.origin, relative))

    def _load(self, address: int, size: int = 8) -> _Value:
        """A word of the window."""
        distance = address - self.start
        if distance < 0 or distance > _MAX_STACK:
            raise RemoteDataError("memory outside the stack is needed")
        word = distance >> 3
        if distance + size > 8 * len(self.words):
            raise _CutError(word)
        if distance & 7 == 0 and size == 8:
            return _Value(self.words[word], word)
        data = self.words.cast("B")[distance : distance + size]
        return _Value(int.from_bytes(data, "little"), None)

    # Frames of any other form

    def _climb(self, step: Step, top: int) -> tuple[int, int, int]:
        """(return address, its slot, word of the caller's stack pointer)."""
        architecture = self.architecture
        if step.signal_frame:
            self.repeatable = False
        cfa = self._cfa(step, top)
        values: dict[int, _Value] = {}
        for register in architecture.callee_saved:
            if register not in step.saved:
                value = self._find_or_none(register, top)
                if value is not None:
                    values[register] = value
        for register, place in step.saved.items():
            needed = register in (architecture.return_address, architecture.stack_pointer)
            try:
                value = self._placed(place, cfa, top)
            except (_CutError, RemoteDataError):
                if needed:
                    raise
                continue
            if value is not None:
                values[register] = value
        returns = values.pop(architecture.return_address, None)
        if returns is None:
            raise RemoteDataError("no rule for the return address")
        pointer = values.pop(architecture.stack_pointer, None)
        stack_pointer = cfa if pointer is None else pointer.number
        if returns.origin is None or returns.origin < 0 or pointer is not None:
            self.repeatable = False
        self.known = values
        self.resumed = len(self.slots) + 1
        self.steps.clear()
        slot = returns.origin if returns.origin is not None and returns.origin >= 0 else -1
        return returns.number, slot, self._above(stack_pointer, top, step.signal_frame)

    def _above(self, stack_pointer: int, top: int, signal_frame: bool) -> int:
        if signal_frame:
            # May be anywhere; -1: not in the window.
            distance = stack_pointer - self.start
            inside = 0 <= distance < 8 * len(self.words) and distance & 7 == 0
            return distance >> 3 if inside else -1
        above = self._word(stack_pointer)
        if above <= top:
            raise RemoteDataError("the stack pointer does not grow")
        return above

    def _cfa(self, step: Step, top: int) -> int:
        if isinstance(step.cfa, Linear):
            return self._linear(step.cfa, 0, top).number
        self.repeatable = False
        return evaluate(
            step.cfa, lambda n: self._need(n, top), lambda a, size: self._load(a, size).number
        )

    def _linear(self, place: Linear, cfa: int, top: int) -> _Value:
        """The number a linear form gives."""
        number = cfa if place.register == CFA else self._need(place.register, top)
        if place.inner is None:
            return _Value(number + place.offset & _MASK, _CONSTANT)
        value = self._load(number + place.inner & _MASK)
        self._depend(value)
        return _Value(value.number + place.offset & _MASK, _CONSTANT)

    def _placed(self, place: Linear | Rule, cfa: int, top: int) -> _Value | None:
        """A caller's register by its rule."""
        if isinstance(place, Linear):
            return self._load(self._linear(place, cfa, top).number)
        if place.how is How.CFA_PLUS:
            return _Value(cfa + place.value & _MASK, None)
        if place.how is How.REGISTER:
            return self._find(place.value, top)
        if place.how in (How.EXPRESSION, How.AT_EXPRESSION):
            number = evaluate(
                place.expression,
                lambda n: self._need(n, top),
                lambda a, size: self._load(a, size).number,
                cfa,
            )
            if place.how is How.EXPRESSION:
                return _Value(number, None)
            return _Value(self._load(number).number, None)
        return None

    def _find_or_none(self, register: int, top: int) -> _Value | None:
        try:
            return self._find(register, top)
        except (_CutError, RemoteDataError):
            return None

    def _struck(self, pc: int, top: int) -> bool:
        """Note an address where a signal struck; False if the walk cannot go on from there."""
        self.exact.append(len(self.pcs) - 1)
        if top < 0:
            self._stop(UnwindEnd.OTHER_STACK)
            return False
        if (pc, top) in self.seen:
            self._stop(UnwindEnd.LOOP)
            return False
        self.seen.add((pc, top))
        return True
