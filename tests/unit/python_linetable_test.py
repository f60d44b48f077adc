"""The line that was running, from each format of line table, however damaged."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumemprof.stack.python import linetable
from gpumemprof.stack.python.layouts import LineFormat
from gpumemprof.stack.python.linetable import line_at

LNOTAB, LINETABLE, LOCATIONS = LineFormat.LNOTAB, LineFormat.LINETABLE, LineFormat.LOCATIONS

# (format, table, first line, offset in bytes, line)
CASES = [
    # the example of Objects/lnotab_notes.txt: 0→1, 6→2, 50→7, 350→207 (steps of 255), 361→208
    (LNOTAB, bytes([0, 1, 6, 1, 44, 5, 255, 0, 45, 127, 0, 73, 11, 1]), 0, 0, 1),
    (LNOTAB, bytes([0, 1, 6, 1, 44, 5, 255, 0, 45, 127, 0, 73, 11, 1]), 0, 5, 1),
    (LNOTAB, bytes([0, 1, 6, 1, 44, 5, 255, 0, 45, 127, 0, 73, 11, 1]), 0, 50, 7),
    (LNOTAB, bytes([0, 1, 6, 1, 44, 5, 255, 0, 45, 127, 0, 73, 11, 1]), 0, 349, 7),
    (LNOTAB, bytes([0, 1, 6, 1, 44, 5, 255, 0, 45, 127, 0, 73, 11, 1]), 0, 350, 207),
    (LNOTAB, bytes([0, 1, 6, 1, 44, 5, 255, 0, 45, 127, 0, 73, 11, 1]), 0, 400, 208),
    # a loop jumps back: signed lines
    (LNOTAB, bytes([2, 3, 4, 0xFE]), 10, 6, 11),
    # no table: all of it is the first line
    (LNOTAB, b"", 42, 8, 42),
    # PEP 626: a range without a line, then back
    (LINETABLE, bytes([4, 0, 2, 0x80, 6, 1]), 5, 2, 5),
    (LINETABLE, bytes([4, 0, 2, 0x80, 6, 1]), 5, 4, None),
    (LINETABLE, bytes([4, 0, 2, 0x80, 6, 1]), 5, 6, 6),
    (LINETABLE, bytes([4, 0, 2, 0x80, 6, 1]), 5, 12, None),
    (LINETABLE, bytes([254, 0, 10, 0, 2, 0xFF]), 5, 264, 4),
    # PEP 657: short form (same line), one line on, no columns, long form, no location
    (LOCATIONS, bytes([0x80, 0x05]), 7, 0, 7),
    (LOCATIONS, bytes([0x80 | 10 << 3 | 1, 4, 9, 0x80 | 11 << 3, 4, 9]), 7, 2, 7),
    (LOCATIONS, bytes([0x80 | 10 << 3 | 1, 4, 9, 0x80 | 11 << 3, 4, 9]), 7, 4, 8),
    (LOCATIONS, bytes([0x80 | 13 << 3, 2 << 1 | 1]), 7, 0, 5),
    (LOCATIONS, bytes([0x80 | 13 << 3, 0x40 | 0x10, 0x08]), 7, 0, 7 + (0x210 >> 1)),
    (LOCATIONS, bytes([0x80 | 14 << 3, 6, 1, 5, 6]), 7, 0, 10),
    (LOCATIONS, bytes([0x80 | 15 << 3, 0x80 | 12 << 3, 1, 2]), 7, 0, None),
    (LOCATIONS, bytes([0x80 | 15 << 3, 0x80 | 12 << 3, 1, 2]), 7, 2, 9),
    (LOCATIONS, b"", 7, 0, None),
]


@pytest.mark.parametrize(("form", "table", "first", "offset", "line"), CASES)
def test_an_instruction_is_on_the_line_its_table_says(
    form: LineFormat, table: bytes, first: int, offset: int, line: int | None
) -> None:
    assert line_at(table, form, first, offset) == line


@pytest.mark.parametrize("form", list(LineFormat))
def test_a_frame_that_has_not_begun_is_on_its_first_line(form: LineFormat) -> None:
    assert line_at(b"", form, 12, -2) == 12


@given(
    form=st.sampled_from(LineFormat),
    table=st.binary(max_size=2000),
    first=st.integers(-(2**31), 2**31 - 1),
    offset=st.integers(-2, 2**33),
)
def test_a_damaged_table_gives_a_possible_line_or_none(
    form: LineFormat, table: bytes, first: int, offset: int
) -> None:
    line = line_at(table, form, first, offset)
    assert line is None or 0 <= line <= linetable.MAX_LINE


def _code_objects(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code_objects(constant)


def test_every_instruction_of_a_real_module_has_the_line_the_interpreter_says() -> None:
    """The other formats are compared with their own interpreters in tests/integration."""
    module = compile(Path(dis.__file__).read_text(encoding="utf-8"), dis.__file__, "exec")
    checked = 0
    for code in _code_objects(module):
        if not hasattr(code, "co_qualname"):
            pytest.skip("this interpreter is older than 3.11")
        for start, end, line in code.co_lines():
            for offset in range(start, end, 2):
                assert line_at(code.co_linetable, LOCATIONS, code.co_firstlineno, offset) == line
                checked += 1
    assert checked > 1000
