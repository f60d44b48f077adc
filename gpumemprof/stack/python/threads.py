"""Where a C library keeps the values of ``pthread_getspecific``, relative to fs base."""

from __future__ import annotations

import enum
import posixpath
import re
import struct
from contextlib import suppress
from typing import NamedTuple

from gpumemprof.errors import RemoteDataError
from gpumemprof.process.elf import ElfFile
from gpumemprof.process.maps import Mapping, Maps
from gpumemprof.stack.python import symbols
from gpumemprof.stack.python.mapped import load_bias, opened
from gpumemprof.stack.python.tls import Loader


class LibcKind(enum.IntEnum):
    """As in ``struct python_target``."""

    GLIBC = 0
    MUSL = 1


class Libc(NamedTuple):
    """``pthread_specific``: from fs base; glibc: to ``specific_1stblock``, an array of 32
    {sequence, value}, which the array of pointers to such blocks follows (block = key / 32);
    musl: to the pointer to the array of values."""

    kind: LibcKind
    pthread_specific: int


GLIBC_SPECIFIC = 0x310
"""``specific_1stblock`` of x86-64's ``struct pthread``: the same in glibc 2.17 to 2.42."""
MUSL_TSD = 0x80
"""``tsd`` of x86-64's ``struct pthread`` in musl 1.2."""

_FIRST_BLOCK = 32 * 16  # PTHREAD_KEY_2NDLEVEL_SIZE entries of struct pthread_key_data
_PTHREAD_SPECIFIC = "_thread_db_pthread_specific"
_LINK_MAP_TLS_OFFSET = "_thread_db_link_map_l_tls_offset"
_R_DEBUG = "_r_debug"
_FIELD = struct.Struct("<3I")
_MAX_STRUCT = 1 << 16
_MUSL = re.compile(r"(ld-musl-|libc\.musl-|libc\.so$)")  # glibc's is libc.so.6
_LIBC = re.compile(
    _MUSL.pattern + r"|(libc\.so\.6|libc-2\.\d+\.so|libpthread(\.so\.0|-2\.\d+\.so))$"
)
_LOADER = re.compile(r"ld-(linux-x86-64\.so\.2|2\.\d+\.so)$")
_MOV_RAX_RAX = b"\x48\x8b\x80"  # mov disp32(%rax),%rax


def find_libc(pid: int, maps: Maps, *, allow_fuse: bool = True) -> Libc:
    """The C library of a process, from the files it maps.

    glibc from 2.34 on exports a description of its ``struct pthread`` for debuggers, and libpthread
    before had it as local symbols; musl's offset is read from the code of its
    ``pthread_getspecific``. What cannot be read has the offset of all known releases.
    """
    kind = LibcKind.GLIBC
    for mapping in _named(maps, _LIBC):
        musl = _MUSL.match(posixpath.basename(mapping.path)) is not None
        if musl:
            kind = LibcKind.MUSL
        try:
            with opened(pid, mapping, allow_fuse=allow_fuse) as elf:
                offset = _musl_offset(elf) if musl else _glibc_offset(elf)
        except RemoteDataError:
            continue
        if offset is not None:
            return Libc(kind, offset)
    return Libc(kind, MUSL_TSD if kind is LibcKind.MUSL else GLIBC_SPECIFIC)


def find_loader(pid: int, maps: Maps, *, allow_fuse: bool = True) -> Loader:
    """glibc's dynamic linker in a process; what is not found is 0."""
    debug = tls_offset = 0
    for mapping in _named(maps, _LOADER):
        with (
            suppress(RemoteDataError),
            opened(pid, mapping, allow_fuse=allow_fuse) as elf,
        ):
            symbol = symbols.find(elf, (_R_DEBUG,)).get(_R_DEBUG)
            if symbol is not None:
                debug = load_bias(elf, mapping) + symbol.vaddr
    for mapping in _named(maps, _LIBC):
        with (
            suppress(RemoteDataError),
            opened(pid, mapping, allow_fuse=allow_fuse) as elf,
        ):
            field = _described(elf, _LINK_MAP_TLS_OFFSET)
            if field is not None and field.bits == 64 and field.offset < _MAX_STRUCT:
                tls_offset = field.offset
    return Loader(debug, tls_offset)


def _named(maps: Maps, names: re.Pattern[str]) -> list[Mapping]:
    """One code mapping of each file whose name fits."""
    found: dict[tuple[int, int], Mapping] = {}
    for mapping in maps.executable():
        if names.match(posixpath.basename(mapping.path)):
            found.setdefault((mapping.device, mapping.inode), mapping)
    return list(found.values())


class _Field(NamedTuple):
    """A member of one of glibc's structures, as it describes it to debuggers."""

    bits: int
    elements: int
    offset: int


def _described(elf: ElfFile, name: str) -> _Field | None:
    symbol = symbols.find(elf, (name,)).get(name)
    if symbol is None:
        return None
    return _Field(*_FIELD.unpack(elf.read_vaddr(symbol.vaddr, _FIELD.size)))


def _glibc_offset(elf: ElfFile) -> int | None:
    field = _described(elf, _PTHREAD_SPECIFIC)
    # The field described is the array of 32 pointers, right behind the first block.
    if field is None or field.bits * field.elements != 32 * 64:
        return None
    if not _FIRST_BLOCK <= field.offset < _MAX_STRUCT:
        return None
    return field.offset - _FIRST_BLOCK


def _musl_offset(elf: ElfFile) -> int | None:
    found = symbols.find(elf, ("pthread_getspecific", "__pthread_getspecific", "tss_get"))
    for symbol in found.values():
        code = elf.read_vaddr(symbol.vaddr, 32)
        at = code.find(_MOV_RAX_RAX)
        if 0 <= at <= len(code) - 7:
            offset = int.from_bytes(code[at + 3 : at + 7], "little")
            if 0 < offset < _MAX_STRUCT:
                return offset
    return None
