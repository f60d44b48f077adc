"""Data and function symbols of a file by name; process/elf_symbols.py finds functions only."""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import NamedTuple

from gpumemprof.errors import RemoteDataError
from gpumemprof.process.elf import SHT_DYNSYM, SHT_SYMTAB, ElfFile
from gpumemprof.process.elf_symbols import symbol_table

MAX_TABLE_BYTES = 16 << 20
"""Larger than the tables of any interpreter (a debug build with LTO has 1.5 MB); those of a program
that embeds one may be larger, but what it exports is not."""
MAX_NAME = 256
_SYMBOL = struct.Struct("<IBBHQQ")
_UNDEFINED = 0
_STT_OBJECT, _STT_FUNC = 1, 2


class Symbol(NamedTuple):
    """``vaddr``: in the file's own terms. ``size``: bytes, 0 if not told."""

    name: str
    vaddr: int
    size: int


def find(elf: ElfFile, names: Collection[str], prefix: str = "") -> dict[str, Symbol]:
    """The named symbols that the file defines, exported ones first.

    ``prefix``: functions whose names begin so are found too (the parts that a compiler splits off
    have no exported names). Raises RemoteDataError for damaged tables.
    """
    found: dict[str, Symbol] = {}
    for kind in (SHT_DYNSYM, SHT_SYMTAB):
        for symbol in _scan(elf, kind, {name.encode() for name in names}, prefix.encode()):
            found.setdefault(symbol.name, symbol)
    return found


def _scan(elf: ElfFile, kind: int, names: set[bytes], prefix: bytes) -> list[Symbol]:
    tables = symbol_table(elf, kind)
    if tables is None:
        return []
    symbols, strings = tables
    if symbols.size + strings.size > MAX_TABLE_BYTES:
        if kind == SHT_SYMTAB:
            return []
        raise RemoteDataError(f"a symbol table of {symbols.size + strings.size} bytes")
    text = elf.read(strings.offset, strings.size)
    data = elf.read(symbols.offset, symbols.size // _SYMBOL.size * _SYMBOL.size)
    first_bytes = {name[:1] for name in names} | {prefix[:1]}
    found = []
    for name_at, info, _, section, vaddr, size in _SYMBOL.iter_unpack(data):
        if section == _UNDEFINED or info & 0xF not in (_STT_OBJECT, _STT_FUNC):
            continue
        if text[name_at : name_at + 1] not in first_bytes:
            continue
        end = text.find(b"\0", name_at, name_at + MAX_NAME)
        if end < 0:
            continue
        name = text[name_at:end]
        wanted = name in names or (prefix and info & 0xF == _STT_FUNC and name.startswith(prefix))
        if wanted:
            found.append(Symbol(name.decode("ascii", "replace"), vaddr, size))
    return found
