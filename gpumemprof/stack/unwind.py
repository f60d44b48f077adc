"""Unwind a captured stack: from registers and bytes to return addresses.

The kernel captures a thread's registers at the entry of a call and its stack from the stack
pointer upwards. Here ``.eh_frame`` tells, for one return address after the other, where its
function keeps the return address of its caller. Nothing is guessed: where there is no information
the stack ends, and says why.
"""

from __future__ import annotations

from gpumemprof.stack.architecture import Registers
from gpumemprof.stack.code_files import CodeFile, FileCache
from gpumemprof.stack.image import ProcessImage
from gpumemprof.stack.memo import VerifiedStacks
from gpumemprof.stack.steps import UnwindEnd
from gpumemprof.stack.unwound import Unwound
from gpumemprof.stack.walk import MAX_FRAMES, Walk

__all__ = [
    "MAX_FRAMES",
    "CodeFile",
    "FileCache",
    "ProcessImage",
    "Registers",
    "UnwindEnd",
    "Unwinder",
    "Unwound",
]


class Unwinder:
    """Unwinds the stacks of one process. Not thread-safe."""

    def __init__(self, image: ProcessImage, *, memo: bool = True) -> None:
        """``memo``: whether to recognise stacks seen before without unwinding them again."""
        self.image = image
        self._memo = VerifiedStacks() if memo else None
        self._generation = image.generation

    def unwind(self, registers: Registers, window: bytes | memoryview) -> Unwound:
        """The stack of a thread at the entry of a function.

        ``window``: what the stack holds from ``registers.sp`` upwards, as much as was captured.
        Equal stacks give the same object. Never raises for what the process did to its stack or
        its files.
        """
        whole = memoryview(window)
        words = whole[: len(whole) & ~7].cast("Q")
        memo = self._memo
        if memo is None:
            return Walk(self.image, registers, words).run()
        if self._generation != self.image.generation:
            memo.clear()
            self._generation = self.image.generation
        known = memo.find(registers, words)
        if known is not None:
            return known
        result = Walk(self.image, registers, words).run()
        if self._generation != self.image.generation:  # mappings were read anew on the way
            memo.clear()
            self._generation = self.image.generation
            result = Walk(self.image, registers, words).run()
        return memo.add(registers, words, result)

    @property
    def memo_hits(self) -> int:
        """Stacks recognised without unwinding."""
        return self._memo.hits if self._memo is not None else 0
