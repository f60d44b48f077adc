"""Reading code objects out of another process: names, file, lines.

The object may have been freed, and its address given to another, between the event and the
read. So the kernel sends a fingerprint of the object with each frame, and what is read here
must have the same.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from gpumemprof.errors import RemoteDataError
from gpumemprof.stack.python.layouts import ABSENT, Layout, Position
from gpumemprof.stack.python.linetable import line_at
from gpumemprof.stack.python.memory import Memory, read_exactly, read_u64

MAX_TEXT = 4096
"""Bytes of a name or file name that are kept; what is longer is cut and ends in an ellipsis."""
MAX_TEXT_LENGTH = 1 << 40
"""Characters; a length beyond it is damage, not a long name."""
MAX_TEXTS = 4096
"""Different texts of one process of which one object is kept."""
MAX_TABLE = 4 << 20
"""Bytes of a line table; a longer one is not read and its lines are unknown."""
MAX_BYTECODE = 256 << 20
MAX_THREAD_COPIES = 1 << 20

_FIRST_READ = 256  # most names, with their headers, come with one read
_ENCODINGS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}
_CODE_UNIT = 2
_MASK64 = (1 << 64) - 1


class CodeReusedError(RemoteDataError):
    """Another object stands where the kernel saw the code object."""


class NotCodeError(RemoteDataError):
    """The frame runs something that is not a code object, such as None."""


def fingerprint(data: bytes) -> int:
    """What the kernel computes over the same bytes (a multiple of 8), 32 bits."""
    value = 0xCBF29CE484222325
    for (word,) in struct.iter_unpack("<Q", data):
        value = (value ^ word) * 0x9E3779B97F4A7C15 & _MASK64
    return (value >> 32) ^ (value & 0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class Code:
    """What is kept of a code object. ``name`` is qualified from 3.11 on; before, plain."""

    address: int
    name: str
    file: str
    first_line: int
    table: bytes | None
    """The line table, None if it could not be read."""
    bytecode_size: int
    """Bytes; 0 before 3.11, where no pointers into it are resolved."""
    thread_copies: int
    """Address of the array of the threads' own copies of the bytecode, 0 if there is none."""


class CodeReader:
    """Reads code objects of one process."""

    def __init__(self, memory: Memory, layout: Layout, code_type: int = 0) -> None:
        """``code_type``: address of ``PyCode_Type`` in the process, 0 if not known."""
        self._memory = memory
        self._layout = layout
        self._code_type = code_type
        self._texts: dict[str, str] = {}

    def read(self, address: int, expected_fingerprint: int) -> Code:
        """The code object at ``address``.

        ``expected_fingerprint``: 0 if the kernel could not read one. Raises NotCodeError,
        CodeReusedError, or RemoteDataError for memory that cannot be read or is damaged.
        """
        layout = self._layout
        if address % 8:
            raise RemoteDataError(f"code object at an odd address: {address:#x}")
        header = read_exactly(self._memory, address, layout.code_header_size)
        start = layout.fingerprint_offset
        seen = fingerprint(header[start : start + layout.fingerprint_length])
        if expected_fingerprint and seen != expected_fingerprint:
            raise CodeReusedError(f"the code object at {address:#x} was replaced")
        if self._code_type and _pointer(header, layout.object_type) != self._code_type:
            raise NotCodeError(f"no code object at {address:#x}")
        (first_line,) = struct.unpack_from("<i", header, layout.code_firstlineno)
        name_field = layout.code_name if layout.code_qualname == ABSENT else layout.code_qualname
        copies = 0 if layout.code_tlbc == ABSENT else _pointer(header, layout.code_tlbc)
        return Code(
            address=address,
            name=self._text(_pointer(header, name_field)),
            file=self._text(_pointer(header, layout.code_filename)),
            first_line=max(first_line, 0),
            table=self._table(_pointer(header, layout.code_linetable)),
            bytecode_size=self._bytecode_size(header),
            thread_copies=copies,
        )

    def line(self, code: Code, instruction: int, tlbc_index: int = 0) -> int:
        """The executing line, 0 if it is unknown or the instruction has none.

        ``instruction``: as the frame holds it. ``tlbc_index``: which copy of the bytecode.
        """
        if code.table is None:
            return 0
        offset = self._offset(code, instruction, tlbc_index)
        if offset is None:
            return 0
        line = line_at(code.table, self._layout.line_format, code.first_line, offset)
        return line or 0

    def _offset(self, code: Code, instruction: int, tlbc_index: int) -> int | None:
        position = self._layout.position
        if position is not Position.POINTER:
            (index,) = struct.unpack("<i", struct.pack("<I", instruction & 0xFFFFFFFF))
            return int(index) * (_CODE_UNIT if position is Position.UNIT_INDEX else 1)
        offset = instruction - (code.address + self._layout.code_bytecode)
        if not self._within(code, offset) and code.thread_copies and tlbc_index:
            offset = instruction - self._thread_copy(code, tlbc_index)
        return offset if self._within(code, offset) else None

    def _within(self, code: Code, offset: int) -> bool:
        """A frame that has not begun stands one code unit before its bytecode (3.11, 3.12)."""
        return -_CODE_UNIT <= offset < code.bytecode_size

    def _thread_copy(self, code: Code, index: int) -> int:
        """Start of one thread's bytecode: struct {Py_ssize_t size; char *entries[]}."""
        try:
            if index < read_u64(self._memory, code.thread_copies) <= MAX_THREAD_COPIES:
                return read_u64(self._memory, code.thread_copies + 8 + 8 * index)
        except RemoteDataError:
            pass  # the frame keeps its name; only the line is unknown
        return 0

    def _bytecode_size(self, header: bytes) -> int:
        if self._layout.position is not Position.POINTER:
            return 0
        units = _pointer(header, self._layout.variable_size)
        if units * _CODE_UNIT > MAX_BYTECODE:
            raise RemoteDataError(f"a code object of {units} instructions")
        return units * _CODE_UNIT

    def _table(self, address: int) -> bytes | None:
        layout = self._layout
        try:
            size = read_u64(self._memory, address + layout.bytes_size)
            if size > MAX_TABLE:
                return None
            return read_exactly(self._memory, address + layout.bytes_data, size) if size else b""
        except RemoteDataError:
            return None

    def _text(self, address: int) -> str:
        """A str object, cut to MAX_TEXT bytes."""
        layout = self._layout
        start = self._memory.read_some(address, _FIRST_READ) if address else b""
        if len(start) < layout.str_ascii_data:
            raise RemoteDataError(f"a string at {address:#x} cannot be read")
        length = _pointer(start, layout.str_length)
        (state,) = struct.unpack_from("<I", start, layout.str_state)
        state >>= layout.str_kind_shift
        kind, compact, ascii_only = state & 7, state >> 3 & 1, state >> 4 & 1
        encoding = _ENCODINGS.get(kind)
        if encoding is None or (ascii_only and kind != 1) or length > MAX_TEXT_LENGTH:
            raise RemoteDataError(f"no string at {address:#x}")
        size = min(length * kind, MAX_TEXT)
        offset = layout.str_ascii_data if ascii_only else layout.str_compact_data
        if not compact:  # a subclass of str, or one made by old C code: the data lie elsewhere
            data_at = read_u64(self._memory, address + layout.str_compact_data)
            data = read_exactly(self._memory, data_at, size) if size else b""
        elif offset + size <= len(start):
            data = start[offset : offset + size]
        else:
            data = read_exactly(self._memory, address + offset, size)
        text = data.decode(encoding, "replace")
        text = text + "…" if size < length * kind else text
        # One object for each text. Not sys.intern: in CPython 3.12 what it holds stays for ever.
        if len(self._texts) >= MAX_TEXTS:
            self._texts.clear()
        return self._texts.setdefault(text, text)


def _pointer(data: bytes, offset: int) -> int:
    (value,) = struct.unpack_from("<Q", data, offset)
    return int(value)
