"""Where a thread keeps the GIL state of CPython 3.15: a thread-local variable without a symbol.

``PyGILState_GetThisThreadState`` does nothing but return it, so its code tells the place, in one
of three forms (ELF Handling For Thread-Local Storage, x86-64): relative to fs base, in an
executable; through a word that the dynamic linker fills with that distance; or through a call of
``__tls_get_addr``, in a shared library. In the last case the distance is still one for all
threads if the library was loaded at start, and the dynamic linker's own list of libraries tells it.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from gpumemprof.errors import RemoteDataError
from gpumemprof.process.elf import ElfFile
from gpumemprof.stack.python.memory import Memory, read_u64

MAX_LIBRARIES = 4096
MAX_STATIC_TLS = 1 << 20
"""Bytes below fs base; glibc reserves a few thousand."""
_CODE_BYTES = 48
_LOCAL = b"\x64\x48\x8b\x04\x25"  # mov %fs:disp32,%rax
_FROM_WORD = b"\x48\x8b\x05"  # mov disp32(%rip),%rax
_THEN_LOCAL = b"\x64\x48\x8b\x00"  # mov %fs:(%rax),%rax
_PAIR = b"\x48\x8d\x3d"  # lea disp32(%rip),%rdi
_MEMBER = b"\x48\x8b\x80"  # mov disp32(%rax),%rax
_FIRST_MEMBER = b"\x48\x8b\x00"  # mov (%rax),%rax

# struct r_debug and struct link_map of <link.h>
_R_MAP = 8
_L_ADDR, _L_NEXT = 0, 24


class TlsForm(enum.Enum):
    """How code finds a thread-local variable."""

    OFFSET = "offset"
    WORD = "word"
    MODULE = "module"


class TlsVariable(NamedTuple):
    """``place``: OFFSET: from fs base; WORD: file address of the word that holds that; MODULE: file
    address of the pair {module, offset}. ``addend``: added to what is found."""

    form: TlsForm
    place: int
    addend: int = 0


class Loader(NamedTuple):
    """The dynamic linker in a process. ``debug``: address of its ``_r_debug``, 0 if not found;
    ``tls_offset``: of ``l_tls_offset`` in its ``struct link_map``, 0 if it does not tell."""

    debug: int = 0
    tls_offset: int = 0


def variable_of(elf: ElfFile, getter: int) -> TlsVariable | None:
    """The thread-local variable that the function at ``getter`` returns, None if not understood."""
    try:
        code = elf.read_vaddr(getter, _CODE_BYTES)
    except RemoteDataError:
        return None
    at = code.find(_LOCAL)
    if at >= 0:
        offset = _signed(code, at + len(_LOCAL))
        return None if offset is None else TlsVariable(TlsForm.OFFSET, offset)
    at = code.find(_FROM_WORD)
    if at >= 0 and code[at + 7 : at + 11] == _THEN_LOCAL:
        return _relative(TlsForm.WORD, code, at, getter)
    at = code.find(_PAIR)
    member = code.find(_MEMBER, at)
    if at >= 0 and member > at:
        return _relative(TlsForm.MODULE, code, at, getter, _signed(code, member + 3) or 0)
    if at >= 0 and code.find(_FIRST_MEMBER, at) > at:
        return _relative(TlsForm.MODULE, code, at, getter)
    return None


def _relative(form: TlsForm, code: bytes, at: int, start: int, addend: int = 0) -> TlsVariable:
    """From an instruction of seven bytes whose operand is relative to the next instruction."""
    return TlsVariable(form, start + at + 7 + (_signed(code, at + 3) or 0), addend)


def _signed(code: bytes, at: int) -> int | None:
    data = code[at : at + 4]
    return int.from_bytes(data, "little", signed=True) if len(data) == 4 else None


def offset_from_fs(variable: TlsVariable, bias: int, loader: Loader, memory: Memory) -> int:
    """From fs base to the variable, in every thread of a process; 0 if that is not one number.

    ``bias``: what the process adds to addresses of the file.
    """
    try:
        if variable.form is TlsForm.OFFSET:
            offset = variable.place
        elif variable.form is TlsForm.WORD:
            offset = _as_signed(read_u64(memory, bias + variable.place))
        else:
            block = _static_block(bias, loader, memory)
            within = read_u64(memory, bias + variable.place + 8) + variable.addend
            offset = -block + within if block and 0 <= within < block else 0
    except RemoteDataError:
        return 0
    return offset if -MAX_STATIC_TLS <= offset < 0 else 0


def _static_block(bias: int, loader: Loader, memory: Memory) -> int:
    """How far below fs base a library's thread-local variables begin; 0 if they are not there."""
    if not loader.debug or not loader.tls_offset:
        return 0
    entry = read_u64(memory, loader.debug + _R_MAP)
    for _ in range(MAX_LIBRARIES):
        if not entry:
            return 0
        if read_u64(memory, entry + _L_ADDR) == bias:
            block = read_u64(memory, entry + loader.tls_offset)
            return block if block <= MAX_STATIC_TLS else 0  # -1: allocated for each thread
        entry = read_u64(memory, entry + _L_NEXT)
    return 0


def _as_signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
