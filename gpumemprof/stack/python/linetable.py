"""From a code object's line table to the line that was running. Pure functions over bytes.

Formats: ``Objects/lnotab_notes.txt`` (to 3.9), PEP 626 (3.10), ``Objects/locations.md`` (3.11+).
Offsets are in bytes from the start of the bytecode. A table from another process may be damaged:
whatever the bytes, the functions end within one pass and give a line or None.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpumemprof.stack.python.layouts import LineFormat

MAX_LINE = 2**31 - 1

_NO_END = 1 << 62
_NO_LINE = -128  # PEP 626: these instructions belong to no line
_CODE_NO_LOCATION = 15
_CODE_LONG = 14
_CODE_NO_COLUMNS = 13
_CODE_ONE_LINE = (10, 11, 12)


def line_at(table: bytes, form: LineFormat, first_line: int, offset: int) -> int | None:
    """The line of the instruction at ``offset``, or None where there is none.

    A negative offset means a frame that has not begun: its line is the first one.
    """
    if offset < 0:
        return _plausible(first_line)
    for start, end, line in line_ranges(table, form, first_line):
        if start <= offset < end:
            return _plausible(line)
    return None


def line_ranges(
    table: bytes, form: LineFormat, first_line: int
) -> Iterator[tuple[int, int, int | None]]:
    """(start, end, line or None) of each range of bytecode, in order, ``end`` exclusive.

    Ranges may be empty; of an lnotab the last one has no end but a number beyond any.
    """
    return _RANGES[form](table, first_line)


def _plausible(line: int | None) -> int | None:
    return line if line is not None and 0 <= line <= MAX_LINE else None


def _signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


def _lnotab(table: bytes, first_line: int) -> Iterator[tuple[int, int, int | None]]:
    line, start = first_line, 0
    for index in range(0, len(table) - 1, 2):
        end = start + table[index]
        yield start, end, line
        line += _signed(table[index + 1])
        start = end
    yield start, _NO_END, line


def _linetable(table: bytes, first_line: int) -> Iterator[tuple[int, int, int | None]]:
    line, start = first_line, 0
    for index in range(0, len(table) - 1, 2):
        end = start + table[index]
        delta = _signed(table[index + 1])
        if delta != _NO_LINE:
            line += delta
        yield start, end, None if delta == _NO_LINE else line
        start = end


def _locations(table: bytes, first_line: int) -> Iterator[tuple[int, int, int | None]]:
    line, start, index = first_line, 0, 0
    while index < len(table):
        head = table[index]
        code = head >> 3 & 0xF
        end = start + 2 * ((head & 7) + 1)
        if code == _CODE_NO_LOCATION:
            yield start, end, None
        else:
            if code in (_CODE_LONG, _CODE_NO_COLUMNS):
                line += _signed_varint(table, index + 1)
            elif code in _CODE_ONE_LINE:
                line += code - _CODE_ONE_LINE[0]
            yield start, end, line
        start = end
        index += 1
        # Only the first byte of an entry has its high bit set.
        while index < len(table) and not table[index] & 0x80:
            index += 1


def _signed_varint(table: bytes, index: int) -> int:
    value = shift = 0
    while index < len(table) and shift < 36:  # a C int has at most six groups of six bits
        byte = table[index]
        value |= (byte & 0x3F) << shift
        if not byte & 0x40:
            break
        shift += 6
        index += 1
    return -(value >> 1) if value & 1 else value >> 1


_RANGES = {
    LineFormat.LNOTAB: _lnotab,
    LineFormat.LINETABLE: _linetable,
    LineFormat.LOCATIONS: _locations,
}
