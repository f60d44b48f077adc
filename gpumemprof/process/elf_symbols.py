"""Find named functions of an ELF file without reading its whole symbol table.

Layouts: System V ABI (``.hash``), and for ``.gnu.hash`` the description that the GNU and LLVM
linkers share: header, Bloom filter, buckets, chains of hashes whose lowest bit ends the chain.
"""

from __future__ import annotations

import contextlib
import struct
from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gpumemprof.errors import RemoteDataError
from gpumemprof.process.elf import (
    DT_GNU_HASH,
    DT_HASH,
    DT_STRSZ,
    DT_STRTAB,
    DT_SYMTAB,
    DT_VERSYM,
    SHT_DYNSYM,
    SHT_SYMTAB,
    ElfFile,
    Section,
)
from gpumemprof.process.elf_source import chunks

STT_NOTYPE, STT_FUNC, STT_GNU_IFUNC = 0, 2, 10
STB_LOCAL, STB_GLOBAL, STB_WEAK = 0, 1, 2
SYMBOL_SIZE = 24
MAX_CHAIN = 1024
"""Symbols looked at in one hash chain; real chains have a few."""
MAX_SYMBOL_TABLE = 1 << 30
MAX_STRING_TABLE = 2 << 30
MAX_SCANNED = 64 << 20
"""Bytes of tables that are read from end to end for names (a CUDA runtime has 0.3 MB)."""
MAX_PLACES = 65_536
"""Places at which the names may stand in a string table."""
_SYMBOL = struct.Struct("<IBBHQQ")
_HIDDEN_VERSION = 0x8000
_SCAN_STEP = 4 << 20


class FunctionSymbol(NamedTuple):
    """A function that the file defines. ``size`` 0: not told."""

    name: str
    vaddr: int
    size: int


def file_offsets(elf: ElfFile, names: Iterable[str]) -> dict[str, int]:
    """File offsets of functions the file defines, by name: where uprobes go.

    Exported functions are found through the dynamic symbol hash; names left over are looked up in
    ``.symtab`` where there is one (a statically linked runtime). Of several versions of a name the
    default one counts. Indirect functions (IFUNC) are left out: their symbol is the resolver. Names
    that are not found are not in the result.
    """
    offsets = {}
    for name, symbol in find_functions(elf, names).items():
        with contextlib.suppress(RemoteDataError):
            offsets[name] = elf.offset_of(symbol.vaddr)
    return offsets


def find_functions(elf: ElfFile, names: Iterable[str]) -> dict[str, FunctionSymbol]:
    """The defined functions among ``names``, as ``file_offsets`` looks for them."""
    wanted = {name for name in names if name and "\0" not in name}
    found = _find_dynamic(elf, wanted)
    left = wanted - found.keys()
    if left:
        try:
            found.update(_scan_table(elf, SHT_SYMTAB, left))
        except RemoteDataError:
            if not found:
                raise
    return found


def find_exported(elf: ElfFile, names: Iterable[str]) -> dict[str, FunctionSymbol]:
    """The exported functions among ``names``: a few reads for each, whatever the file's size."""
    return _find_dynamic(elf, {name for name in names if name and "\0" not in name})


def _find_dynamic(elf: ElfFile, names: set[str]) -> dict[str, FunctionSymbol]:
    tags = elf.dynamic
    if DT_SYMTAB not in tags or DT_STRTAB not in tags:
        return {}
    if DT_GNU_HASH not in tags and DT_HASH not in tags:
        return _scan_table(elf, SHT_DYNSYM, names)
    table = _DynamicSymbols(elf)
    return {name: symbol for name in names if (symbol := table.find(name)) is not None}


class _DynamicSymbols:
    """The hash table that the dynamic linker itself uses; needs no section headers."""

    def __init__(self, elf: ElfFile) -> None:
        tags = elf.dynamic
        self._elf = elf
        self._symbols = elf.offset_of(tags[DT_SYMTAB])
        self._strings = elf.offset_of(tags[DT_STRTAB])
        self._strings_size = tags.get(DT_STRSZ, 0)
        self._versions = elf.offset_of(tags[DT_VERSYM]) if DT_VERSYM in tags else None
        if DT_GNU_HASH in tags:
            self._candidates = self._gnu_candidates
            self._table = elf.offset_of(tags[DT_GNU_HASH])
            header = struct.unpack("<IIII", elf.read(self._table, 16))
            self._bucket_count, self._first_symbol, self._bloom_words, self._bloom_shift = header
        else:
            self._candidates = self._sysv_candidates
            self._table = elf.offset_of(tags[DT_HASH])
            self._bucket_count, self._chain_count = struct.unpack("<II", elf.read(self._table, 8))

    def find(self, name: str) -> FunctionSymbol | None:
        encoded = name.encode()
        fallback = None
        if self._bucket_count == 0:
            return None
        for index in self._candidates(encoded):
            entry = self._elf.read(self._symbols + index * SYMBOL_SIZE, SYMBOL_SIZE)
            name_offset, info, _, section, vaddr, size = _SYMBOL.unpack(entry)
            if section == 0 or info & 15 not in (STT_FUNC, STT_GNU_IFUNC) or info >> 4 == STB_LOCAL:
                continue
            if name_offset + len(encoded) + 1 > self._strings_size:
                continue
            stored = self._elf.read(self._strings + name_offset, len(encoded) + 1)
            if stored != encoded + b"\0":
                continue
            direct = info & 15 == STT_FUNC
            symbol = FunctionSymbol(name, vaddr, size) if direct else None
            if not self._hidden(index):
                return symbol
            fallback = fallback or symbol
        return fallback

    def _hidden(self, index: int) -> bool:
        """Whether the symbol is an old version, kept for old programs (``name@V``)."""
        if self._versions is None:
            return False
        (version,) = struct.unpack("<H", self._elf.read(self._versions + 2 * index, 2))
        return bool(version & _HIDDEN_VERSION)

    def _gnu_candidates(self, name: bytes) -> Iterator[int]:
        value = _gnu_hash(name)
        buckets = self._table + 16 + 8 * self._bloom_words
        (index,) = struct.unpack(
            "<I", self._elf.read(buckets + 4 * (value % self._bucket_count), 4)
        )
        if index < self._first_symbol:
            return
        chain = buckets + 4 * self._bucket_count
        for _ in range(MAX_CHAIN):
            offset = chain + 4 * (index - self._first_symbol)
            (entry,) = struct.unpack("<I", self._elf.read(offset, 4))
            if (entry ^ value) < 2:
                yield index
            if entry & 1:
                return
            index += 1
        raise RemoteDataError("a chain of .gnu.hash does not end")

    def _sysv_candidates(self, name: bytes) -> Iterator[int]:
        buckets = self._table + 8
        offset = buckets + 4 * (_sysv_hash(name) % self._bucket_count)
        chain = buckets + 4 * self._bucket_count
        (index,) = struct.unpack("<I", self._elf.read(offset, 4))
        for _ in range(min(self._chain_count, MAX_CHAIN)):
            if index == 0 or index >= self._chain_count:
                return
            yield index
            (index,) = struct.unpack("<I", self._elf.read(chain + 4 * index, 4))


def _gnu_hash(name: bytes) -> int:
    value = 5381
    for byte in name:
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value


def _sysv_hash(name: bytes) -> int:
    value = 0
    for byte in name:
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ (high >> 24)) & 0x0FFFFFFF
    return value


# Symbol tables without a hash


def symbol_table(elf: ElfFile, kind: int) -> tuple[Section, Section] | None:
    """(symbol table, its string table) of section type ``kind``, None if the file has none.

    RemoteDataError when their sizes are absurd; what would lie beyond the end of the file is seen
    when it is read.
    """
    for section in elf.sections:
        if section.type != kind:
            continue
        if section.entry_size != SYMBOL_SIZE or section.link >= len(elf.sections):
            raise RemoteDataError(f"a symbol table with entries of {section.entry_size} bytes")
        strings = elf.sections[section.link]
        if section.size > MAX_SYMBOL_TABLE or strings.size > MAX_STRING_TABLE:
            raise RemoteDataError(f"a symbol table of {section.size} bytes")
        return section, strings
    return None


def _scan_table(elf: ElfFile, kind: int, names: set[str]) -> dict[str, FunctionSymbol]:
    """One pass over the strings for the names, one over the symbols for those strings."""
    tables = symbol_table(elf, kind)
    if tables is None:
        return {}
    symbols, strings = tables
    if symbols.size + strings.size > MAX_SCANNED:
        raise RemoteDataError(f"a symbol table of {symbols.size + strings.size} bytes")
    by_offset = _string_offsets(elf, strings, names)
    found: dict[str, FunctionSymbol] = {}
    size = symbols.size // SYMBOL_SIZE * SYMBOL_SIZE
    step = _SCAN_STEP // SYMBOL_SIZE * SYMBOL_SIZE
    for data in chunks(elf.source, symbols.offset, size, step) if by_offset else ():
        for position, offset in enumerate(array("I", data)[:: SYMBOL_SIZE // 4]):
            if offset not in by_offset:
                continue
            entry = _SYMBOL.unpack_from(data, position * SYMBOL_SIZE)
            _, info, _, section, vaddr, length = entry
            name = by_offset[offset]
            if section == 0 or info & 15 != STT_FUNC:
                continue
            if name not in found or info >> 4 == STB_GLOBAL:
                found[name] = FunctionSymbol(name, vaddr, length)
    return found


def _string_offsets(elf: ElfFile, strings: Section, names: set[str]) -> dict[int, str]:
    """Offset -> name of every place in a string table where one of the names stands.

    A name may be stored as the end of a longer one, so what precedes it does not matter.
    """
    encoded = {name.encode() + b"\0": name for name in names}
    overlap = max(map(len, encoded), default=0)
    offsets: dict[int, str] = {}
    for start in range(0, strings.size, _SCAN_STEP):
        data = elf.read(strings.offset + start, min(_SCAN_STEP + overlap, strings.size - start))
        for text, name in encoded.items():
            position = data.find(text)
            while position >= 0:
                offsets[start + position] = name
                if len(offsets) > MAX_PLACES:
                    raise RemoteDataError("a string table repeats the names of calls")
                position = data.find(text, position + 1)
    return offsets
