"""Line tables are read as each interpreter reads its own, for all of its standard library."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Sequence

import pytest
from python_layouts_interpreters import INTERPRETERS, Interpreter

from gpumemprof.stack.python.layouts import layout_for
from gpumemprof.stack.python.linetable import line_at, line_ranges

# Runs in the interpreter under test: for each code object of each module of its library, the
# line of every instruction, by the interpreter's own words, as runs of (offset, line).
ORACLE = r"""
import dis, glob, json, os, sys, types, warnings
warnings.simplefilter("ignore")

def codes(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)

def lines(code):
    if hasattr(code, "co_lines"):
        return [(start, end, line) for start, end, line in code.co_lines() if end > start]
    starts = list(dis.findlinestarts(code))
    ends = [start for start, _ in starts[1:]] + [len(code.co_code)]
    return [(start, end, line) for (start, line), end in zip(starts, ends)]

library = os.path.dirname(os.__file__)
for path in sorted(glob.glob(library + "/*.py") + glob.glob(library + "/*/*.py")):
    if "/lib2to3/" in path or "/test" in path or "site-packages" in path:
        continue
    try:
        with open(path, "rb") as source:
            module = compile(source.read(), path, "exec")
    except (SyntaxError, ValueError, UnicodeDecodeError):
        continue
    for code in codes(module):
        table = code.co_linetable if hasattr(code, "co_linetable") else code.co_lnotab
        json.dump([code.co_firstlineno, table.hex(), lines(code)], sys.stdout)
        print()
"""


@pytest.mark.parametrize("interpreter", INTERPRETERS, ids=lambda i: i.id)
def test_every_line_of_the_standard_library_is_the_interpreters_own(
    interpreter: Interpreter,
) -> None:
    layout = layout_for(interpreter.version)
    assert layout is not None
    oracle = subprocess.Popen(
        [*interpreter.command, "-c", ORACLE], stdout=subprocess.PIPE, text=True
    )
    assert oracle.stdout is not None
    compared = 0
    for text in oracle.stdout:
        first_line, table, expected = json.loads(text)
        data = bytes.fromhex(table)
        found = by_instruction(line_ranges(data, layout.line_format, first_line), expected[-1][1])
        assert found == by_instruction(expected, expected[-1][1])
        start, end, line = expected[compared % len(expected)]
        assert line_at(data, layout.line_format, first_line, start) == line
        assert line_at(data, layout.line_format, first_line, end - 2) == line
        compared += len(found)
    assert oracle.wait() == 0
    assert compared > 100_000


def by_instruction(ranges: Iterable[Sequence[int | None]], size: int) -> list[int | None]:
    lines: list[int | None] = []
    for start, end, line in ranges:
        assert start is not None and end is not None
        lines += [line] * ((min(end, size) - start) // 2)
    return lines
