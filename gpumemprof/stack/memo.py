"""Verified stacks: recognise a stack that was unwound before, by looking at the words that count.

Unwinding is a function of few inputs. It starts from the instruction pointer, and each step is
chosen by the return address before it, so the whole way up is settled by these values alone, read
in this order:

* each **return address**: a word of the stack, which must be equal;
* each **base**: a register at entry or a word of the stack that a frame address was computed from
  (a saved frame pointer in functions with ``alloca``, the saved address of the arguments in
  functions that align their stack). The frame address is base + constant, or the word at base +
  constant, which is then a base itself; so with a base that has the same value *relative to the
  stack pointer* every later word is found at the same place of the window.

By induction, if all of them hold the same, unwinding would read the same words and end the same
way. Registers that were saved but that no frame address depended on do not matter. Not of this
form, and never remembered: frame addresses from other expressions (the CFA of linkage stubs is
constant once the address is known, so those are fine), frames below a signal handler, return
addresses that were not on the stack, and stacks that end at an address without mapping (a library
may have been loaded there since). A stack that was cut is the same only while the window still
ends before the word that was missing. All of it holds only for unchanged code mappings: the owner
clears the memory when these change.

Stacks are kept in a tree that looks only at words in which they differ, so a stack is found by
one comparison at each fork and verified by one pass over its words.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from gpumemprof.stack.architecture import ENTRY_REGISTERS, Registers
from gpumemprof.stack.unwound import Unwound

MAX_STACKS = 4096
"""Stacks remembered for one process, about 2 kB each; beyond it all are forgotten."""
_MASK = (1 << 64) - 1
_FIELD = dict(ENTRY_REGISTERS)
_MISSING = -1
"""The value of a word beyond the window."""


class Check(NamedTuple):
    """One input of unwinding. ``place``: index of a word, or the complement of a DWARF register."""

    place: int
    relative: bool
    """Its value counts relative to the stack pointer."""
    expected: int

    def value(self, registers: Registers, words: memoryview[int]) -> int:
        """What another stack holds there."""
        place = self.place
        if place < 0:
            value: int = getattr(registers, _FIELD[~place])
        elif place < len(words):
            value = words[place]
        else:
            return _MISSING
        return value - registers.sp & _MASK if self.relative else value


def checks(result: Unwound) -> Iterator[Check]:
    """The inputs of a stack in the order they were read."""
    bases = iter(result.bases)
    base = next(bases, None)
    for number, (offset, pc) in enumerate(zip(result.return_slots, result.pcs[1:], strict=True)):
        while base is not None and base.after <= number:
            yield Check(base.place, True, base.relative)
            base = next(bases, None)
        yield Check(offset >> 3, False, pc)
    while base is not None:
        yield Check(base.place, True, base.relative)
        base = next(bases, None)
    if result.missing >= 0:
        yield Check(result.missing >> 3, False, _MISSING)


class _Stack:
    """One remembered stack: a leaf of the tree."""

    __slots__ = (
        "base_distances", "base_registers", "base_words", "expected", "missing", "result",
        "returns",
    )  # fmt: skip

    def __init__(self, result: Unwound) -> None:
        self.result = result
        indices = [offset >> 3 for offset in result.return_slots]
        self.returns = _getter(indices)
        self.expected = result.pcs[1:]
        places = [base.place for base in result.bases if base.place >= 0]
        self.base_words = _getter(places) if places else None
        self.base_distances = [
            base.relative - (base.relative >> 63 << 64) for base in result.bases if base.place >= 0
        ]
        self.base_registers = [
            Check(base.place, True, base.relative) for base in result.bases if base.place < 0
        ]
        self.missing = result.missing >> 3

    def holds(self, registers: Registers, words: memoryview[int]) -> bool:
        if self.returns(words) != self.expected:
            return False
        if 0 <= self.missing < len(words):
            return False
        if self.base_words is not None:
            sp = registers.sp
            if [word - sp for word in self.base_words(words)] != self.base_distances:
                return False
        return all(check.value(registers, words) == check.expected for check in self.base_registers)


def _getter(places: list[int]) -> Callable[[memoryview[int]], tuple[int, ...]]:
    """Reads the words at these places; IndexError if one is beyond the window."""
    if len(places) == 1:
        (place,) = places
        return lambda words: (words[place],)
    return operator.itemgetter(*places)


class _Fork:
    """An input in which the stacks below it differ; those further up are equal in all of them."""

    __slots__ = ("branches", "check", "position")

    def __init__(self, position: int, check: Check) -> None:
        self.position = position
        self.check = check
        self.branches: dict[int, _Fork | _Stack] = {}


class VerifiedStacks:
    """The stacks of one process that were unwound before."""

    def __init__(self, limit: int = MAX_STACKS) -> None:
        self._limit = limit
        self._roots: dict[int, _Fork | _Stack] = {}
        self._addresses: dict[int, int] = {}
        self._count = 0
        self.hits = 0

    def __len__(self) -> int:
        return self._count

    def clear(self) -> None:
        """Forget all stacks: the code mappings changed."""
        self._roots.clear()
        self._addresses.clear()
        self._count = 0

    def find(self, registers: Registers, words: memoryview[int]) -> Unwound | None:
        """What unwinding would give, if the same stack was seen before."""
        node = self._roots.get(registers.ip)
        while isinstance(node, _Fork):
            node = node.branches.get(node.check.value(registers, words))
        try:
            if node is None or not node.holds(registers, words):
                return None
        except IndexError:  # a return address lies beyond this window
            return None
        self.hits += 1
        return node.result

    def add(self, registers: Registers, words: memoryview[int], result: Unwound) -> Unwound:
        """Remember a stack that was just unwound, if it is of the kind that can be."""
        if not result.repeatable or len(result.pcs) < 2:
            return result
        if self._count >= self._limit:
            self.clear()
        # Addresses come again and again: one object for each.
        addresses = self._addresses
        result = replace(result, pcs=tuple(addresses.setdefault(pc, pc) for pc in result.pcs))
        self._insert(registers, words, _Stack(result))
        return result

    def _insert(self, registers: Registers, words: memoryview[int], new: _Stack) -> None:
        ip = registers.ip
        root = self._roots.get(ip)
        if root is None:
            self._roots[ip] = new
            self._count += 1
            return
        nearest = _nearest(root, registers, words)
        position, check = _first_difference(nearest, registers, words)
        above: dict[int, _Fork | _Stack] = self._roots
        key, node = ip, root
        while isinstance(node, _Fork) and node.position < position:
            above, key = node.branches, node.check.value(registers, words)
            node = above[key]
        if check is None:  # nothing differs: what was remembered is out of date
            above[key] = new
            return
        if not (isinstance(node, _Fork) and node.position == position):
            fork = _Fork(position, check)
            fork.branches[check.expected] = node
            above[key] = node = fork
        node.branches[check.value(registers, words)] = new
        self._count += 1


def _nearest(node: _Fork | _Stack, registers: Registers, words: memoryview[int]) -> _Stack:
    """A remembered stack that agrees in as many checks as any."""
    while isinstance(node, _Fork):
        below = node.branches.get(node.check.value(registers, words))
        node = next(iter(node.branches.values())) if below is None else below
    return node


def _first_difference(
    stack: _Stack, registers: Registers, words: memoryview[int]
) -> tuple[int, Check | None]:
    """The first check, and its position, in which a remembered stack is another one."""
    position = 0
    for check in checks(stack.result):
        if check.value(registers, words) != check.expected:
            return position, check
        position += 1
    return position, None
