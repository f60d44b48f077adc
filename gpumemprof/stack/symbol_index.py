"""Which function of one symbol table covers an address, without keeping the table.

libtorch_cpu.so has 540,000 symbols. Only their numbers are kept, sorted by coarse ranges of
address (4 bytes for each function); the entries and names of the few that are asked for are read
from the file.
"""

from __future__ import annotations

import bisect
import struct
from array import array
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from gpumemprof.errors import RemoteDataError
from gpumemprof.process.elf import PT_LOAD, SHF_EXECINSTR, ElfFile, Section
from gpumemprof.process.elf_source import c_string, chunks
from gpumemprof.process.elf_symbols import (
    STB_LOCAL,
    STT_FUNC,
    STT_GNU_IFUNC,
    STT_NOTYPE,
    SYMBOL_SIZE,
    symbol_table,
)

MAX_SYMBOLS = 2_000_000
"""The largest libraries of this field have 550,000."""
MAX_NAME = 16 << 10
MAX_ALIASES = 32
"""Names compared for one address."""
MAX_LOOK_BACK = 16
"""Occupied ranges looked through for the function an address is in."""
_SYMBOLS_PER_RANGE = 4
_STEP = SYMBOL_SIZE * 65_536
# Symbol type -> whether it is code by its type; a label is if its section is.
_KINDS = {STT_FUNC: True, STT_GNU_IFUNC: True, STT_NOTYPE: False}
_ENTRY = struct.Struct("<IBBHQQ")


class Candidate(NamedTuple):
    """A symbol that may name an address. ``size`` 0: not told."""

    vaddr: int
    size: int
    local: bool
    name: bytes


class SymbolIndex:
    """The functions of one symbol table (``.symtab`` or ``.dynsym``)."""

    def __init__(self, elf: ElfFile, kind: int) -> None:
        """Reads the table once. Raises RemoteDataError when it is damaged."""
        self._elf = elf
        self._order: array[int] = array("I")
        self._starts: array[int] = array("I", [0])
        self._shift = self._base = 0
        tables = symbol_table(elf, kind)
        if tables is None:
            return
        self._symbols, self._strings = tables
        self._code_sections = frozenset(
            number for number, s in enumerate(elf.sections) if s.flags & SHF_EXECINSTR
        )
        self._build()

    def __len__(self) -> int:
        return len(self._order)

    @property
    def bytes_held(self) -> int:
        """Memory the index takes."""
        return 4 * (len(self._order) + len(self._starts))

    def _build(self) -> None:
        """Sort symbol numbers by range of address: count, add up, place."""
        count = self._symbols.size // SYMBOL_SIZE
        if count > MAX_SYMBOLS:
            raise RemoteDataError(f"{count} symbols")
        spans = [
            (s.vaddr, s.vaddr + s.memory_size) for s in self._elf.segments if s.type == PT_LOAD
        ]
        low, high = min(s for s, _ in spans) if spans else 0, max((e for _, e in spans), default=0)
        wanted = max(1, count // _SYMBOLS_PER_RANGE)
        self._base = low
        self._shift = max(4, ((high - low) // wanted).bit_length())
        ranges = (high - low >> self._shift) + 1
        elsewhere = ranges  # what is no function goes into one range more
        numbers = array("I")
        for data in chunks(self._elf.source, self._symbols.offset, count * SYMBOL_SIZE, _STEP):
            numbers.extend(self._ranges_of(data, low, ranges, elsewhere))
        counts = array("I", bytes(4 * (ranges + 1)))
        for number in numbers:
            counts[number] += 1
        placed = array("I", accumulate(counts, initial=0))
        functions = placed[elsewhere]
        self._starts = placed[: ranges + 1]
        order = array("I", bytes(4 * functions))
        for symbol, number in enumerate(numbers):
            if number != elsewhere:
                order[placed[number]] = symbol
                placed[number] += 1
        self._order = order

    def _ranges_of(self, data: bytes, low: int, ranges: int, elsewhere: int) -> array[int]:
        words = array("Q", data)
        shift = self._shift
        code = self._code_sections
        # A word holds name (32 bits), type and binding (8), visibility (8), section (16).
        return array(
            "I",
            [
                number
                if (kind := _KINDS.get(head >> 32 & 15)) is not None
                and head >> 48
                and (kind or head >> 48 in code)
                and 0 <= (number := value - low >> shift) < ranges
                else elsewhere
                for head, value in zip(words[0::3], words[1::3], strict=True)
            ],
        )

    def find(self, vaddr: int) -> list[Candidate]:
        """The symbols that name the function an address is in, all with the same start.

        A symbol covers its size. One without a size (hand-written assembly) covers what follows up
        to the next symbol.
        """
        nearest: list[tuple[int, tuple[int, ...]]] = []
        nearest_start = -1
        for entries in self._look_back(vaddr):
            below = [e for e in entries if e[1][4] <= vaddr]
            covering = [e for e in below if vaddr < e[1][4] + e[1][5]]
            if not nearest and below:
                nearest_start = max(e[1][4] for e in below)
                nearest = [e for e in below if e[1][4] == nearest_start]
            if covering:
                start = max(e[1][4] for e in covering)
                return self._named([e for e in covering if e[1][4] == start])
        if nearest and all(e[1][5] == 0 for e in nearest) and self._same_section(nearest, vaddr):
            return self._named(nearest)
        return []

    def _look_back(self, vaddr: int) -> Iterator[list[tuple[int, tuple[int, ...]]]]:
        """The entries of the address's range, then of those before it that have any."""
        number = min(vaddr - self._base >> self._shift, len(self._starts) - 2)
        looked = 0
        while number >= 0 and looked < MAX_LOOK_BACK:
            first, last = self._starts[number], self._starts[number + 1]
            if first < last:
                yield [(symbol, self._entry(symbol)) for symbol in self._order[first:last][:4096]]
                looked += 1
            # The last range before this one that is not empty.
            number = bisect.bisect_left(self._starts, first) - 1

    def _entry(self, symbol: int) -> tuple[int, ...]:
        offset = self._symbols.offset + symbol * SYMBOL_SIZE
        return _ENTRY.unpack(self._elf.read(offset, SYMBOL_SIZE))

    def _same_section(self, entries: list[tuple[int, tuple[int, ...]]], vaddr: int) -> bool:
        sections: tuple[Section, ...] = self._elf.sections
        for _, (_, _, _, number, _, _) in entries:
            if number < len(sections):
                section = sections[number]
                if section.vaddr <= vaddr < section.vaddr + section.size:
                    return True
        return False

    def _named(self, entries: list[tuple[int, tuple[int, ...]]]) -> list[Candidate]:
        found = []
        for _, (name, info, _, _, vaddr, size) in entries[:MAX_ALIASES]:
            try:
                text = c_string(self._elf.source, self._strings.offset + name, MAX_NAME)
            except RemoteDataError:
                continue
            if text and not text.startswith((b"$", b".L")):
                found.append(Candidate(vaddr, size, info >> 4 == STB_LOCAL, text))
        return found


def best(candidates: list[Candidate]) -> Candidate | None:
    """The one a reader expects: the function that starts nearest, by its public name.

    Aliases of one function are told apart by binding (local ones are the library's own), by the
    underscores an internal name begins with, then by length.
    """
    if not candidates:
        return None
    return min(
        candidates,
        key=lambda c: (
            c.size == 0,
            -c.vaddr,
            c.local,
            len(c.name) - len(c.name.lstrip(b"_")) if not c.name.startswith(b"_Z") else 0,
            len(c.name),
            c.name,
        ),
    )
