"""Small ELF files, built byte by byte."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

TEXT_VADDR = 0x401000
TEXT_OFFSET = 0x1000
FUNC, NOTYPE, OBJECT, IFUNC = 2, 0, 1, 10
LOCAL, GLOBAL, WEAK = 0, 1, 2


class Symbol(NamedTuple):
    name: str
    vaddr: int
    size: int = 0
    type: int = FUNC
    binding: int = GLOBAL
    section: int = 1


def build(
    symbols: Sequence[Symbol] = (),
    *,
    text_size: int = 0x1000,
    build_id: bytes = b"",
    extra: Mapping[str, bytes] | None = None,
    strip: bool = False,
    program_headers: Sequence[tuple[int, int, int, int]] = (),
) -> bytes:
    """An executable with ``.text``, symbols in ``.symtab``, and ``extra`` sections by name.

    ``program_headers``: further (type, flags, file offset, bytes) besides that of the code.
    """
    strings, entries = bytearray(b"\0"), bytearray(24)
    for symbol in symbols:
        entries += struct.pack(
            "<IBBHQQ", len(strings), symbol.binding << 4 | symbol.type, 0, symbol.section,
            symbol.vaddr, symbol.size,
        )  # fmt: skip
        strings += symbol.name.encode() + b"\0"
    sections: list[tuple[str, int, int, int, bytes, int, int]] = []
    # name, type, flags, vaddr, data, link, entry size
    sections.append((".text", 1, 6, TEXT_VADDR, b"\x90" * text_size, 0, 0))
    if build_id:
        note = struct.pack("<III", 4, len(build_id), 3) + b"GNU\0" + build_id
        sections.append((".note.gnu.build-id", 7, 2, 0, note, 0, 0))
    for name, data in (extra or {}).items():
        sections.append((name, 1, 0, 0, data, 0, 0))
    if not strip:
        sections.append((".symtab", 2, 0, 0, bytes(entries), len(sections) + 2, 24))
        sections.append((".strtab", 3, 0, 0, bytes(strings), 0, 0))
    names = bytearray(b"\0")
    headers = [bytes(64)]
    offset, body = TEXT_OFFSET, bytearray()
    for name, kind, flags, vaddr, content, link, size in [
        *sections,
        (".shstrtab", 3, 0, 0, b"", 0, 0),
    ]:
        position = len(names)
        names += name.encode() + b"\0"
        data = bytes(names) if name == ".shstrtab" else content
        headers.append(
            struct.pack(
                "<IIQQQQIIQQ", position, kind, flags, vaddr, offset, len(data), link, 0, 8, size
            )
        )
        body += data
        offset += len(data)
    table = offset
    segments = [
        struct.pack("<IIQQQQQQ", 1, 5, TEXT_OFFSET, TEXT_VADDR, 0, text_size, text_size, 4096)
    ]
    segments += [
        struct.pack("<IIQQQQQQ", kind, flags, at, at, 0, size, size, 8)
        for kind, flags, at, size in program_headers
    ]
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01" + bytes(9), 2, 62, 1, TEXT_VADDR, 64, table, 0,
        64, 56, len(segments), 64, len(headers), len(headers) - 1,
    )  # fmt: skip
    start = (header + b"".join(segments)).ljust(TEXT_OFFSET, b"\0")
    return start + bytes(body) + b"".join(headers)
