"""What unwinding must know of a processor: the one place to add another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gpumemprof.process.elf import EM_X86_64


class Registers(NamedTuple):
    """The registers of a thread at the entry of a function, as the kernel captured them.

    ``sp`` points to the return address. Registers that a called function may change are not
    captured: no caller's frame depends on them.
    """

    ip: int
    sp: int
    bp: int = 0
    bx: int = 0
    r12: int = 0
    r13: int = 0
    r14: int = 0
    r15: int = 0


@dataclass(frozen=True, slots=True)
class Architecture:
    """Register numbers are DWARF's."""

    machine: int
    """``e_machine`` of its ELF files."""
    register_names: tuple[str, ...]
    """By number: all that call-frame information may speak of."""
    stack_pointer: int
    return_address: int
    callee_saved: frozenset[int]
    """A register that call-frame information does not mention keeps its value only if it is one
    of these."""
    word: int = 8


# System V ABI, AMD64 supplement, figures 3.4 and 3.36.
X86_64 = Architecture(
    machine=EM_X86_64,
    register_names=(
        "rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp",
        "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rip",
    ),
    stack_pointer=7,
    return_address=16,
    callee_saved=frozenset({3, 6, 12, 13, 14, 15}),
)  # fmt: skip

ENTRY_REGISTERS: tuple[tuple[int, str], ...] = (
    (3, "bx"), (6, "bp"), (12, "r12"), (13, "r13"), (14, "r14"), (15, "r15"),
)  # fmt: skip
"""Which field of ``Registers`` holds which DWARF register."""
