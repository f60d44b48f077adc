"""Symbols that a stripped file keeps elsewhere.

Three places, as GDB's manual ("Debugging Information in Separate Files", "Debugging information in
a special section") describes them: a file named by build id, a file named by ``.gnu_debuglink``,
and a compressed symbol table in ``.gnu_debugdata``.
"""

from __future__ import annotations

import lzma
import os
import posixpath
import zlib
from pathlib import Path

from gpumemprof.errors import GpumemprofError, RemoteDataError
from gpumemprof.process.elf import SHT_SYMTAB, ElfFile
from gpumemprof.process.elf_source import chunks
from gpumemprof.process.mapped_file import PROC, open_in_root

DEBUG_DIRECTORY = "/usr/lib/debug"
MAX_CRC_BYTES = 256 << 20
"""A file that only a checksum can vouch for is read whole; beyond this size it is not used."""
MAX_COMPRESSED = 16 << 20
MAX_DECOMPRESSED = 16 << 20
_XZ_MEMORY = 32 << 20


def find_debug_files(
    elf: ElfFile, path: str, pid: int, proc: Path = PROC, *, allow_fuse: bool = True
) -> tuple[ElfFile, ...]:
    """Files with further symbols for ``elf``, which the process sees at ``path``; often none.

    Looked for in the process's own root, then in ours: by build id, or by name and checksum. A
    file with ``.symtab`` needs none. Nothing that is missing or damaged is an error.
    """
    try:
        if has_symbol_table(elf):
            return ()
        separate = _separate_file(elf, path, pid, proc, allow_fuse)
        if separate is not None:
            return (separate,)
        embedded = _embedded_file(elf)
        return (embedded,) if embedded is not None else ()
    except GpumemprofError:
        return ()


def _separate_file(
    elf: ElfFile, path: str, pid: int, proc: Path, allow_fuse: bool
) -> ElfFile | None:
    build_id = elf.build_id
    if build_id:
        place = f"{DEBUG_DIRECTORY}/.build-id/{build_id[:2]}/{build_id[2:]}.debug"
        for root in dict.fromkeys((pid, os.getpid())):
            found = _opened(root, place, proc, allow_fuse)
            if found is not None and found.build_id == build_id:
                return found
    link = _debug_link(elf)
    if link is None:
        return None
    name, checksum = link
    directory = posixpath.dirname(path)
    for place in (
        f"{directory}/{name}",
        f"{directory}/.debug/{name}",
        f"{DEBUG_DIRECTORY}{directory}/{name}",
    ):
        found = _opened(pid, place, proc, allow_fuse)
        if found is None:
            continue
        # Equal build ids prove as much as the checksum, without reading the file.
        if (build_id and found.build_id == build_id) or _crc32(found) == checksum:
            return found
    return None


def _opened(pid: int, path: str, proc: Path, allow_fuse: bool) -> ElfFile | None:
    """The file if it can be opened and holds a symbol table."""
    try:
        elf = ElfFile.open(open_in_root(pid, path, proc=proc, allow_fuse=allow_fuse))
        if has_symbol_table(elf):
            return elf
    except GpumemprofError:
        pass
    return None


def _debug_link(elf: ElfFile) -> tuple[str, int] | None:
    """(file name, CRC-32): the section holds the name, zeros up to 4 bytes, and the checksum."""
    data = elf.section_data(".gnu_debuglink", 4096)
    if data is None or len(data) < 8:
        return None
    name = os.fsdecode(data.split(b"\0")[0])
    if not name or "/" in name or name in (".", ".."):
        return None
    position = (len(os.fsencode(name)) + 4) & ~3
    return name, int.from_bytes(data[position : position + 4], "little")


def _crc32(elf: ElfFile) -> int | None:
    if elf.source.size > MAX_CRC_BYTES:
        return None
    checksum = 0
    for data in chunks(elf.source, 0, elf.source.size, 1 << 20):
        checksum = zlib.crc32(data, checksum)
    return checksum


def _embedded_file(elf: ElfFile) -> ElfFile | None:
    """The symbol table that some distributions leave in a stripped file, xz-compressed."""
    data = elf.section_data(".gnu_debugdata", MAX_COMPRESSED)
    if not data:
        return None
    decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
    try:
        content = decompressor.decompress(data, MAX_DECOMPRESSED)
    except (lzma.LZMAError, MemoryError) as error:
        raise RemoteDataError(f".gnu_debugdata cannot be decompressed: {error}") from error
    if not decompressor.eof:
        raise RemoteDataError(".gnu_debugdata is cut, or holds too much")
    return ElfFile.from_bytes(content)


def has_symbol_table(elf: ElfFile) -> bool:
    """Whether the file was not stripped of ``.symtab``."""
    try:
        return any(section.type == SHT_SYMTAB for section in elf.sections)
    except RemoteDataError:
        return False
