"""Which CPython a file holds, without running it."""

from __future__ import annotations

import posixpath
import re

from gpumemprof.errors import RemoteDataError
from gpumemprof.process.elf import ElfFile
from gpumemprof.stack.python.debug_offsets import version_of
from gpumemprof.stack.python.symbols import Symbol

MAX_TEXT_SECTION = 64 << 20
_STEP = 1 << 20
_OVERLAP = 32

_IN_NAME = re.compile(r"python(\d)\.(\d{1,2})(?!\d)")
_IN_DATA = re.compile(rb"\x003\.(\d{1,2})\.\d{1,2}(?:(?:a|b|rc)\d+)?\+?\x00")


def find_version(elf: ElfFile, path: str, version_symbol: Symbol | None) -> tuple[int, int]:
    """(major, minor) of the interpreter.

    From ``Py_Version`` (3.11 and later), the file's names, or ``PY_VERSION`` among its constants.
    Raises RemoteDataError if none tells.
    """
    if version_symbol is not None:
        value = int.from_bytes(elf.read_vaddr(version_symbol.vaddr, 4), "little")
        return version_of(value)
    for name in (elf.soname, posixpath.basename(path)):
        match = _IN_NAME.search(name)
        if match is not None:
            return int(match[1]), int(match[2])
    minors = _minors_in_data(elf)
    if len(minors) == 1:
        return 3, minors.pop()
    raise RemoteDataError(f"{path} holds a Python interpreter of a version that it does not tell")


def _minors_in_data(elf: ElfFile) -> set[int]:
    """Minor versions of all strings that are a version of Python 3 and nothing else."""
    section = elf.section(".rodata")
    if section is None or section.size > MAX_TEXT_SECTION:
        return set()
    minors: set[int] = set()
    for start in range(0, section.size, _STEP):
        size = min(_STEP + _OVERLAP, section.size - start)
        data = elf.read(section.offset + start, size)
        minors |= {int(match[1]) for match in _IN_DATA.finditer(data)}
    return minors
