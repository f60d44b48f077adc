"""Builds the memory of a Python process, byte by byte, for any version's layout."""

from __future__ import annotations

import struct

from gpumemprof.stack.python.layouts import ABSENT, LAYOUTS, Layout, LineFormat

CODE_TYPE = 0x7F00_0000_1000
NONE = 0x7F00_0000_2000

ALL_LAYOUTS = tuple(LAYOUTS.values())


def layout_id(layout: Layout) -> str:
    return ".".join(map(str, layout.version)) + ("t" if layout.free_threaded else "")


class Image:
    """Objects laid out one after the other, from ``base`` up; a Memory to read them from."""

    def __init__(self, layout: Layout, base: int = 0x7F12_3456_0000) -> None:
        self.layout = layout
        self.base = base
        self.data = bytearray(64)  # nothing is at the base itself
        self.reads = 0

    def read_some(self, address: int, size: int) -> bytes:
        self.reads += 1
        start = address - self.base
        return bytes(self.data[start : start + size]) if start >= 0 else b""

    def write(self, address: int, data: bytes) -> None:
        start = address - self.base
        self.data[start : start + len(data)] = data

    def place(self, data: bytes) -> int:
        self.data += bytes(-len(self.data) % 16)
        address = self.base + len(self.data)
        self.data += data
        return address

    def text(self, value: str) -> int:
        layout = self.layout
        widest = max(map(ord, value), default=0)
        kind, encoding = (
            (1, "latin-1")
            if widest < 0x100
            else (2, "utf-16-le")
            if widest < 0x10000
            else (4, "utf-32-le")
        )
        ascii_only = widest < 0x80
        header = bytearray(layout.str_ascii_data if ascii_only else layout.str_compact_data)
        struct.pack_into("<Q", header, layout.str_length, len(value))
        state = (kind | 1 << 3 | ascii_only << 4) << layout.str_kind_shift | 1
        struct.pack_into("<I", header, layout.str_state, state)
        return self.place(bytes(header) + value.encode(encoding, "surrogatepass") + bytes(kind))

    def bytes_object(self, value: bytes) -> int:
        header = bytearray(self.layout.bytes_data)
        struct.pack_into("<Q", header, self.layout.bytes_size, len(value))
        return self.place(bytes(header) + value + b"\0")

    def code(
        self,
        name: str = "Model.forward",
        file: str = "/srv/model.py",
        first_line: int = 10,
        table: bytes | None = None,
        units: int = 4,
    ) -> int:
        """A code object whose instruction n is on line first_line + n, unless ``table`` says."""
        layout = self.layout
        if table is None:
            table = one_line_each(layout.line_format, units)
        size = max(
            layout.code_header_size, 0 if layout.code_bytecode == ABSENT else layout.code_bytecode
        )
        header = bytearray(size + 2 * units)
        pointers = {
            layout.object_type: CODE_TYPE,
            layout.code_filename: self.text(file),
            layout.code_name: self.text(name.rpartition(".")[2]),
            layout.code_linetable: self.bytes_object(table),
        }
        if layout.code_qualname != ABSENT:
            pointers[layout.code_qualname] = self.text(name)
            pointers[layout.variable_size] = units
        for offset, value in pointers.items():
            struct.pack_into("<Q", header, offset, value)
        struct.pack_into("<i", header, layout.code_firstlineno, first_line)
        return self.place(bytes(header))

    def fingerprint_bytes(self, address: int) -> bytes:
        layout = self.layout
        return self.read_some(address + layout.fingerprint_offset, layout.fingerprint_length)

    def instruction(self, code: int, unit: int) -> int:
        """What a frame holds while it runs code unit ``unit``."""
        if self.layout.version >= (3, 11):
            return code + self.layout.code_bytecode + 2 * unit
        return unit if self.layout.version == (3, 10) else 2 * unit


def one_line_each(form: LineFormat, units: int) -> bytes:
    """A table that puts each code unit one line below the one before."""
    if form is LineFormat.LOCATIONS:
        # Code 13: a line difference without columns.
        return b"".join(bytes([0x80 | 13 << 3, 2 if unit else 0]) for unit in range(units))
    if form is LineFormat.LINETABLE:
        return b"".join(bytes([2, 1 if unit else 0]) for unit in range(units))
    return bytes([2, 1]) * (units - 1)
