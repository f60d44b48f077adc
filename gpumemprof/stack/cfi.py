"""Find the call-frame information of an address in an ELF file.

``.eh_frame`` is found through the program header PT_GNU_EH_FRAME, whose binary search table leads
to the entry of an address in a few reads (Linux Standard Base, "Exception Frames"). Without a
table the section is read once from end to end.
"""

from __future__ import annotations

import bisect
import struct
from array import array
from collections.abc import Iterator

from gpumemprof.errors import RemoteDataError
from gpumemprof.process.elf import PT_GNU_EH_FRAME, PT_LOAD, SHT_NOBITS, ElfFile
from gpumemprof.stack.cfi_rows import Cie, Fde, Row, row_at
from gpumemprof.stack.dwarf import DW_EH_PE_OMIT, Cursor

MAX_ENTRY = 128 << 10
"""Bytes of one CIE or FDE."""
MAX_LINEAR = 4 << 20
"""Bytes of an ``.eh_frame`` that is read from end to end, about 100,000 entries. Larger ones come
with a search table."""
MAX_TABLE_ENTRIES = 16_000_000
MAX_CIES = 256
MAX_CIE = 4096
"""Bytes of a CIE, which is kept; real ones have a few dozen."""
_TABLE_ENCODING = 0x3B  # relative to the header, signed 4 bytes: the only one that is sorted
_TABLE_ENTRY = struct.Struct("<ii")
_TABLE_CHUNK = 512
_ABSOLUTE = 0x00


class CallFrameInfo:
    """The call-frame information of one file."""

    def __init__(self, elf: ElfFile) -> None:
        """Raises RemoteDataError if the file has none, or damaged headers."""
        self._elf = elf
        self._cies: dict[int, Cie] = {}
        self._linear: tuple[array[int], array[int]] | None = None
        self._table = self._table_count = self._header_vaddr = 0
        self._entries_vaddr = 0
        header = elf.segment(PT_GNU_EH_FRAME)
        if header is not None and header.file_size >= 4:
            self._read_header(header.offset, header.vaddr, header.file_size)
        if self._table_count == 0:
            self._linear = self._scan()

    def fde_at(self, vaddr: int) -> tuple[Fde, int] | None:
        """The entry that covers a virtual address and the address of its instructions, or None."""
        entry = self._search_table(vaddr) if self._table_count else self._search_linear(vaddr)
        if entry is None:
            return None
        parsed = self._read_fde(entry)
        if parsed is None or not parsed[0].start <= vaddr < parsed[0].end:
            return None
        return parsed

    def row_at(self, vaddr: int) -> tuple[Row, Cie] | None:
        """The row that holds at a virtual address, None where there is no information.

        Raises RemoteDataError where it is damaged.
        """
        found = self.fde_at(vaddr)
        if found is None:
            return None
        fde, instructions_vaddr = found
        return row_at(fde, vaddr, instructions_vaddr), fde.cie

    def fdes(self) -> Iterator[tuple[Fde, int]]:
        """Every entry, in the order of the section, with the address of its instructions."""
        for vaddr, _, is_cie in self._walk():
            if not is_cie:
                parsed = self._read_fde(vaddr)
                if parsed is not None:
                    yield parsed

    # The search table

    def _read_header(self, offset: int, vaddr: int, size: int) -> None:
        cursor = Cursor(self._elf.read(offset, min(size, 64)))
        version, frame_encoding, count_encoding, table_encoding = cursor.take(4)
        if version != 1:
            raise RemoteDataError(f".eh_frame_hdr of version {version}")
        if frame_encoding != DW_EH_PE_OMIT:
            self._entries_vaddr = cursor.pointer(frame_encoding, vaddr + cursor.position, vaddr)
        if count_encoding == DW_EH_PE_OMIT or table_encoding != _TABLE_ENCODING:
            return
        count = cursor.pointer(count_encoding, vaddr + cursor.position, vaddr)
        # What the segment does not hold is not there, whatever the count says.
        count = min(count, (size - cursor.position) // _TABLE_ENTRY.size, MAX_TABLE_ENTRIES)
        self._header_vaddr = vaddr
        self._table = offset + cursor.position
        self._table_count = count

    def _search_table(self, vaddr: int) -> int | None:
        """Virtual address of the last entry that starts at or before ``vaddr``."""
        low, high = 0, self._table_count
        relative = vaddr - self._header_vaddr
        while high - low > _TABLE_CHUNK:
            middle = (low + high) // 2
            start, _ = _TABLE_ENTRY.unpack(
                self._elf.read(self._table + middle * _TABLE_ENTRY.size, _TABLE_ENTRY.size)
            )
            if start <= relative:
                low = middle
            else:
                high = middle
        size = (high - low) * _TABLE_ENTRY.size
        entries = array("i", self._elf.read(self._table + low * _TABLE_ENTRY.size, size))
        index = bisect.bisect_right(entries[0::2], relative) - 1
        if index < 0:
            return None
        return self._header_vaddr + entries[2 * index + 1]

    # Without a table

    def _frame_section(self) -> tuple[int, int, int]:
        """(virtual address, file offset, bytes) of ``.eh_frame``."""
        section = self._elf.section(".eh_frame")
        if section is not None and section.type != SHT_NOBITS and section.size:
            return section.vaddr, section.offset, section.size
        if not self._entries_vaddr:
            raise RemoteDataError("no call-frame information")
        # No section headers: up to the end of the segment; the section ends with a zero length.
        for segment in self._elf.segments:
            inside = self._entries_vaddr - segment.vaddr
            if segment.type == PT_LOAD and 0 <= inside < segment.file_size:
                return self._entries_vaddr, segment.offset + inside, segment.file_size - inside
        raise RemoteDataError("no call-frame information")

    def _walk(self) -> Iterator[tuple[int, int, bool]]:
        """(virtual address, bytes without the length field, whether a CIE) of each entry."""
        vaddr, offset, size = self._frame_section()
        held = size if self._table_count else min(size, MAX_LINEAR)
        position = 0
        data = self._elf.read(offset, held)
        while position + 8 <= held:
            length, pointer = struct.unpack_from("<II", data, position)
            if length == 0:
                return
            if position + 4 + length > held < size:
                raise RemoteDataError("call-frame information is large and has no search table")
            if length == 0xFFFFFFFF or length < 4 or position + 4 + length > size:
                raise RemoteDataError("a damaged entry of .eh_frame")
            yield vaddr + position, length, pointer == 0
            position += 4 + length

    def _scan(self) -> tuple[array[int], array[int]]:
        found: list[tuple[int, int]] = []
        for vaddr, _, is_cie in self._walk():
            if is_cie:
                continue
            parsed = self._read_fde(vaddr)
            if parsed is not None and parsed[0].start < parsed[0].end:
                found.append((parsed[0].start, vaddr))
        found.sort()
        return array("Q", (start for start, _ in found)), array("Q", (at for _, at in found))

    def _search_linear(self, vaddr: int) -> int | None:
        assert self._linear is not None
        starts, entries = self._linear
        index = bisect.bisect_right(starts, vaddr) - 1
        return entries[index] if index >= 0 else None

    # Entries

    def _entry(self, vaddr: int) -> tuple[bytes, int] | None:
        """(content after the length field, its virtual address), None at the terminator."""
        head = self._elf.read_vaddr(vaddr, 4)
        length = int.from_bytes(head, "little")
        start = vaddr + 4
        if length == 0xFFFFFFFF:
            length = int.from_bytes(self._elf.read_vaddr(start, 8), "little")
            start += 8
        if length == 0:
            return None
        if length < 4 or length > MAX_ENTRY:
            raise RemoteDataError(f"an entry of .eh_frame has {length} bytes")
        return self._elf.read_vaddr(start, length), start

    def _read_fde(self, vaddr: int) -> tuple[Fde, int] | None:
        entry = self._entry(vaddr)
        if entry is None:
            return None
        data, start = entry
        cursor = Cursor(data)
        distance = cursor.number(4)
        if distance == 0:
            raise RemoteDataError("a CIE stands where an FDE should")
        cie = self._read_cie(start - distance)
        code = cursor.pointer(cie.pointer_encoding, start + cursor.position, self._header_vaddr)
        length = cursor.pointer(cie.pointer_encoding & 0x0F, 0)
        if cie.augmented:
            cursor.take(cursor.uleb())
        instructions_vaddr = start + cursor.position
        return Fde(cie, code, code + length, data[cursor.position :]), instructions_vaddr

    def _read_cie(self, vaddr: int) -> Cie:
        cie = self._cies.get(vaddr)
        if cie is None:
            entry = self._entry(vaddr)
            if entry is None:
                raise RemoteDataError("no CIE where an FDE points to one")
            if len(entry[0]) > MAX_CIE:
                raise RemoteDataError(f"a CIE of {len(entry[0])} bytes")
            cie = parse_cie(entry[0])
            if len(self._cies) >= MAX_CIES:
                self._cies.clear()
            self._cies[vaddr] = cie
        return cie


def parse_cie(data: bytes) -> Cie:
    """A CIE from its bytes after the length field."""
    cursor = Cursor(data)
    if cursor.number(4) != 0:
        raise RemoteDataError("an FDE stands where a CIE should")
    version = cursor.u8()
    if version not in (1, 3):
        raise RemoteDataError(f"a CIE of version {version}")
    augmentation = cursor.string()
    code_alignment = cursor.uleb()
    data_alignment = cursor.sleb()
    return_register = cursor.u8() if version == 1 else cursor.uleb()
    pointer_encoding, lsda_encoding = _ABSOLUTE, DW_EH_PE_OMIT
    signal_frame = False
    augmented = augmentation.startswith(b"z")
    if augmented:
        size = cursor.uleb()
        end = cursor.position + size
        fields = Cursor(cursor.take(size))
        for letter in augmentation[1:].decode("latin-1"):
            if letter == "R":
                pointer_encoding = fields.u8()
            elif letter == "L":
                lsda_encoding = fields.u8()
            elif letter == "P":
                fields.skip_pointer(fields.u8())
            elif letter == "S":
                signal_frame = True
            elif letter != "B":  # B: arm64 return addresses are signed with the B key
                # What follows is unknown, but 'z' told where it ends.
                break
        cursor.position = end
    elif augmentation:
        raise RemoteDataError(f"CIE augmentation {augmentation[:16]!r}")
    return Cie(
        code_alignment,
        data_alignment,
        return_register,
        pointer_encoding,
        lsda_encoding,
        augmented,
        signal_frame,
        data[cursor.position :],
    )
