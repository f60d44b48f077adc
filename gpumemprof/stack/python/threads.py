"""Where a C library keeps the values of ``pthread_getspecific``, relative to fs base."""

from __future__ import annotations

import enum
import posixpath
import re
import struct
from typing import NamedTuple

from gpumemprof.errors import RemoteDataError
from gpumemprof.process.elf import ElfFile
from gpumemprof.process.mapped_file import open_mapped
from gpumemprof.process.maps import Maps
from gpumemprof.stack.python import symbols


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
_DESCRIPTOR = "_thread_db_pthread_specific"
_DESCRIPTOR_FORMAT = struct.Struct("<3I")  # bits of an element, number of elements, offset
_MAX_STRUCT = 1 << 16
_MUSL = re.compile(r"(ld-musl-|libc\.musl-|libc\.so$)")  # glibc's is libc.so.6
_GLIBC = re.compile(r"(libc\.so\.6|libc-2\.\d+\.so|libpthread(\.so\.0|-2\.\d+\.so))$")
_MOV_RAX_RAX = b"\x48\x8b\x80"  # mov disp32(%rax),%rax


def find_libc(pid: int, maps: Maps) -> Libc:
    """The C library of a process, from the files it maps.

    glibc from 2.34 on exports a description of its ``struct pthread`` for debuggers, and libpthread
    before had it as local symbols; musl's offset is read from the code of its
    ``pthread_getspecific``. What cannot be read has the offset of all known releases.
    """
    kind = LibcKind.GLIBC
    seen: set[tuple[int, int]] = set()
    for mapping in maps.executable():
        name = posixpath.basename(mapping.path)
        musl = bool(_MUSL.match(name))
        key = (mapping.device, mapping.inode)
        if key in seen or not (musl or _GLIBC.match(name)):
            continue
        seen.add(key)
        if musl:
            kind = LibcKind.MUSL
        try:
            elf = ElfFile.open(open_mapped(pid, mapping))
        except RemoteDataError:
            continue
        try:
            offset = _musl_offset(elf) if musl else _glibc_offset(elf)
        except RemoteDataError:
            offset = None
        finally:
            elf.close()
        if offset is not None:
            return Libc(kind, offset)
    return Libc(kind, MUSL_TSD if kind is LibcKind.MUSL else GLIBC_SPECIFIC)


def _glibc_offset(elf: ElfFile) -> int | None:
    symbol = symbols.find(elf, (_DESCRIPTOR,)).get(_DESCRIPTOR)
    if symbol is None:
        return None
    bits, count, offset = _DESCRIPTOR_FORMAT.unpack(
        elf.read_vaddr(symbol.vaddr, _DESCRIPTOR_FORMAT.size)
    )
    # The field described is the array of 32 pointers, right behind the first block.
    if bits * count != 32 * 64 or not _FIRST_BLOCK <= offset < _MAX_STRUCT:
        return None
    return int(offset) - _FIRST_BLOCK


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
