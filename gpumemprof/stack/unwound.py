"""What unwinding a stack gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gpumemprof.stack.steps import UnwindEnd


class Base(NamedTuple):
    """A value that a frame address was computed from: a register at entry, or a word of the stack
    (``memo`` says what for). ``after``: return addresses read before it; ``place``: index of the
    word in the window, or the complement of a DWARF register; ``relative``: its value less the
    stack pointer, modulo 2^64."""

    after: int
    place: int
    relative: int


@dataclass(frozen=True, slots=True)
class Unwound:
    """A stack from the leaf to the root.

    ``pcs``: the entry address of the call, then return addresses. ``return_slots``: byte offset
    from the stack pointer of each return address, so one less than ``pcs``. ``bases``: what else
    the result depends on. ``end``, ``detail``: why there are no more. ``missing``: byte offset of
    the word beyond the window that was needed, -1 if none. ``exact``: indices in ``pcs`` that are
    not preceded by a call (where a signal struck, and the handler's return). ``repeatable``:
    whether another stack with the same words at ``return_slots`` and the same ``bases`` has the
    same result.
    """

    pcs: tuple[int, ...]
    return_slots: tuple[int, ...]
    bases: tuple[Base, ...]
    end: UnwindEnd
    detail: str = ""
    missing: int = -1
    exact: tuple[int, ...] = ()
    repeatable: bool = True

    @property
    def lookups(self) -> tuple[int, ...]:
        """``pcs`` as addresses to look symbols up with: a return address less one, so that it lies
        in the calling instruction, which may be the last of its function."""
        exact = (0, *self.exact)
        return tuple(pc if i in exact else pc - 1 for i, pc in enumerate(self.pcs))

    @property
    def frame_pointer_slots(self) -> tuple[tuple[int, int], ...]:
        """(byte offset, value relative to the stack pointer) of the words in ``bases``."""
        return tuple((base.place * 8, base.relative) for base in self.bases if base.place >= 0)
