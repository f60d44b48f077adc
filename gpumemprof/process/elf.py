"""Read 64-bit little-endian ELF files in place: libtorch_cpu.so alone has 450 MB.

Layouts: System V ABI, chapters 4 and 5. Every count and length comes from the file and is bounded
before it is used; what does not fit raises RemoteDataError.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from gpumemprof.errors import RemoteDataError
from gpumemprof.process.elf_source import BytesSource, FileSource, Source, c_string
from gpumemprof.process.file_key import FileKey, real_file_key

EM_X86_64 = 62
EM_AARCH64 = 183
ET_REL, ET_EXEC, ET_DYN, ET_CORE = 1, 2, 3, 4
PT_LOAD, PT_DYNAMIC, PT_INTERP, PT_NOTE = 1, 2, 3, 4
PT_GNU_EH_FRAME = 0x6474E550
PF_X = 1
SHT_SYMTAB, SHT_STRTAB, SHT_NOTE, SHT_NOBITS, SHT_DYNSYM = 2, 3, 7, 8, 11
SHF_EXECINSTR, SHF_COMPRESSED = 4, 0x800
NT_GNU_BUILD_ID = 3
DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SONAME = 4, 5, 6, 10, 14
DT_GNU_HASH, DT_VERSYM = 0x6FFFFEF5, 0x6FFFFFF0

MAX_SEGMENTS = 4096
MAX_SECTIONS = 65_536
MAX_SECTION_NAMES = 4 << 20
MAX_NOTES = 64 << 10
MAX_DYNAMIC = 64 << 10
MAX_PATH = 4096

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_DYNAMIC = struct.Struct("<qQ")


class Segment(NamedTuple):
    """A program header. ``vaddr``: virtual address in the file's own terms."""

    type: int
    flags: int
    offset: int
    vaddr: int
    file_size: int
    memory_size: int


class Section(NamedTuple):
    """A section header."""

    name: str
    type: int
    flags: int
    vaddr: int
    offset: int
    size: int
    link: int
    entry_size: int


class ElfFile:
    """One ELF file. Closed by ``close`` or when it is collected.

    Addresses named ``vaddr`` are virtual addresses as written in the file; what a process adds to
    them when it maps the file is no business of this class.
    """

    def __init__(self, source: Source, key: FileKey | None = None) -> None:
        """Raises RemoteDataError when ``source`` is not such a file."""
        self.source = source
        self.key = key
        header = _HEADER.unpack(source.read(0, _HEADER.size))
        ident = header[0]
        if ident[:4] != b"\x7fELF":
            raise RemoteDataError("not an ELF file")
        if ident[4] != 2 or ident[5] != 1:
            raise RemoteDataError("not a 64-bit little-endian ELF file")
        self.type: int = header[1]
        self.machine: int = header[2]
        self.entry: int = header[4]
        """Virtual address of ``_start``, 0 for most libraries."""
        self._section_table: int = header[6]
        self._section_count: int = header[12]
        self._section_names: int = header[13]
        if header[12] and header[11] != _SECTION.size:
            raise RemoteDataError(f"section headers of {header[11]} bytes")
        self.segments = self._read_segments(header[5], header[10], header[9])
        self._code = tuple(s for s in self.segments if s.type == PT_LOAD and s.flags & PF_X)

    @classmethod
    def open(cls, file: int | str | os.PathLike[str]) -> ElfFile:
        """Open by path, or by a descriptor, which is taken over (closed on errors as well).

        Raises RemoteDataError, also when the path cannot be opened.
        """
        if not isinstance(file, int):
            try:
                file = os.open(Path(file), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except OSError as error:
                raise RemoteDataError(f"{file} cannot be opened: {error.strerror}") from error
        source = FileSource(file)
        try:
            return cls(source, real_file_key(file))
        except BaseException:
            source.close()
            raise

    @classmethod
    def from_bytes(cls, data: bytes, key: FileKey | None = None) -> ElfFile:
        """An ELF file that is in memory already."""
        return cls(BytesSource(data), key)

    def close(self) -> None:
        """Close the file; reading raises RemoteDataError from then on."""
        self.source.close()

    def read(self, offset: int, size: int) -> bytes:
        """Exactly ``size`` bytes at a file offset."""
        return self.source.read(offset, size)

    # Segments and addresses

    def _read_segments(self, table: int, count: int, entry_size: int) -> tuple[Segment, ...]:
        if count == 0:
            return ()
        if entry_size != _SEGMENT.size or count > MAX_SEGMENTS:
            raise RemoteDataError(f"{count} program headers of {entry_size} bytes")
        data = self.read(table, count * _SEGMENT.size)
        return tuple(
            Segment(kind, flags, offset, vaddr, file_size, memory_size)
            for kind, flags, offset, vaddr, _, file_size, memory_size, _ in _SEGMENT.iter_unpack(
                data
            )
        )

    def offset_of(self, vaddr: int) -> int:
        """File offset of the byte that is loaded at ``vaddr``; RemoteDataError if none is."""
        for segment in self.segments:
            if segment.type == PT_LOAD and 0 <= vaddr - segment.vaddr < segment.file_size:
                return vaddr - segment.vaddr + segment.offset
        raise RemoteDataError(f"no byte of the file is loaded at {vaddr:#x}")

    def code_vaddr(self, offset: int) -> int | None:
        """Virtual address of the code at a file offset, None when no code is loaded from there.

        Only executable segments are asked: the last page of one segment and the first page of the
        next are often the same page of the file.
        """
        for segment in self._code:
            if 0 <= offset - segment.offset < segment.file_size:
                return offset - segment.offset + segment.vaddr
        return None

    def read_vaddr(self, vaddr: int, size: int) -> bytes:
        """Exactly ``size`` bytes of what is loaded at ``vaddr``."""
        return self.read(self.offset_of(vaddr), size)

    def segment(self, kind: int) -> Segment | None:
        """The first program header of this type."""
        return next((s for s in self.segments if s.type == kind), None)

    # Sections

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """Section headers, none when they are stripped; names that cannot be read are empty."""
        count, names_index = self._section_count, self._section_names
        if self._section_table == 0:
            return ()
        first = _SECTION.unpack(self.read(self._section_table, _SECTION.size))
        if count == 0:  # 65,280 sections and more: the count is in the first header
            count = first[5]
        if names_index == 0xFFFF:
            names_index = first[6]
        if count > MAX_SECTIONS:
            raise RemoteDataError(f"{count} sections")
        raw = list(_SECTION.iter_unpack(self.read(self._section_table, count * _SECTION.size)))
        names = b""
        if names_index < len(raw):
            _, kind, _, _, offset, size, *_ = raw[names_index]
            if kind == SHT_STRTAB and size <= MAX_SECTION_NAMES:
                names = self.read(offset, size)
        return tuple(
            Section(_name_at(names, name), kind, flags, vaddr, offset, size, link, entry_size)
            for name, kind, flags, vaddr, offset, size, link, _, _, entry_size in raw
        )

    @cached_property
    def _sections_by_name(self) -> dict[str, Section]:
        return {s.name: s for s in reversed(self.sections)}

    def section(self, name: str) -> Section | None:
        """The first section of this name, or None."""
        return self._sections_by_name.get(name)

    def section_data(self, name: str, limit: int) -> bytes | None:
        """The bytes of a section as stored, None if there is no such section in the file.

        RemoteDataError when larger than ``limit``.
        """
        section = self.section(name)
        if section is None or section.type == SHT_NOBITS:
            return None
        if section.size > limit:
            raise RemoteDataError(f"section {name} has {section.size} bytes")
        return self.read(section.offset, section.size)

    # What the file says about itself

    def notes(self) -> Iterator[tuple[bytes, int, bytes]]:
        """(owner without its NUL, type, content) of each note that is loaded or in a section."""
        regions = [(s.offset, s.file_size) for s in self.segments if s.type == PT_NOTE]
        if not regions:
            regions = [(s.offset, s.size) for s in self.sections if s.type == SHT_NOTE]
        for offset, size in regions[:64]:
            if size > MAX_NOTES:
                continue
            yield from _notes(self.read(offset, size))

    @cached_property
    def build_id(self) -> str:
        """The GNU build id in hexadecimal, "" if the file has none."""
        for owner, kind, content in self.notes():
            if owner == b"GNU" and kind == NT_GNU_BUILD_ID and 2 <= len(content) <= 64:
                return content.hex()
        return ""

    @cached_property
    def interpreter(self) -> str:
        """The dynamic loader's path (PT_INTERP), "" for libraries and static programs."""
        segment = self.segment(PT_INTERP)
        if segment is None or segment.file_size > MAX_PATH:
            return ""
        return os.fsdecode(self.read(segment.offset, segment.file_size).split(b"\0")[0])

    @cached_property
    def is_go(self) -> bool:
        """Whether the Go linker made it: a return probe on a Go function corrupts Go's stack."""
        if self.section(".go.buildinfo") or self.section(".note.go.buildid"):
            return True
        return any(owner == b"Go" for owner, _, _ in self.notes())

    @cached_property
    def dynamic(self) -> dict[int, int]:
        """PT_DYNAMIC as tag -> value; the first value of a tag (DT_NEEDED has several) stays."""
        segment = self.segment(PT_DYNAMIC)
        if segment is None:
            return {}
        size = min(segment.file_size, MAX_DYNAMIC) // _DYNAMIC.size * _DYNAMIC.size
        entries: dict[int, int] = {}
        for tag, value in _DYNAMIC.iter_unpack(self.read(segment.offset, size)):
            if tag == 0:
                break
            entries.setdefault(tag, value)
        return entries

    @cached_property
    def soname(self) -> str:
        """DT_SONAME, "" if there is none."""
        tags = self.dynamic
        if DT_SONAME not in tags or DT_STRTAB not in tags:
            return ""
        offset = self.offset_of(tags[DT_STRTAB]) + tags[DT_SONAME]
        return os.fsdecode(c_string(self.source, offset, MAX_PATH))


def _name_at(names: bytes, offset: int) -> str:
    end = names.find(b"\0", offset, offset + 256)
    return names[offset:end].decode("utf-8", "replace") if end >= 0 else ""


def _notes(data: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    """Notes are aligned to 4 bytes; .note.gnu.property is padded to 8, which its size covers."""
    position = 0
    while position + 12 <= len(data):
        name_size, content_size, kind = struct.unpack_from("<III", data, position)
        name_end = position + 12 + name_size
        content_start = (name_end + 3) & ~3
        content_end = content_start + content_size
        if content_end > len(data):
            return
        yield data[position + 12 : name_end].rstrip(b"\0"), kind, data[content_start:content_end]
        position = (content_end + 3) & ~3
