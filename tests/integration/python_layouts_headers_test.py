"""The table of layouts is what every interpreter's own headers, and its own file, say."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from python_layouts_interpreters import INTERPRETERS, WITH_HEADERS, Interpreter

from gpumemprof.process.elf import ElfFile
from gpumemprof.stack.python.debug_offsets import decode, layout_from
from gpumemprof.stack.python.layouts import ABSENT, OFFSETS, layout_for
from gpumemprof.stack.python.python_file import describe

SOURCE = Path(__file__).with_name("python_layouts_offsets.c")
FREE_THREADED = [interpreter for interpreter in WITH_HEADERS if interpreter.version >= (3, 13)]


def offsets_by_compiler(interpreter: Interpreter, tmp_path: Path, *flags: str) -> dict[str, int]:
    assert interpreter.include is not None
    program = tmp_path / "offsets"
    include = interpreter.include
    paths = [f"-I{include}", f"-I{include}/internal", f"-I{include.parent}"]
    subprocess.run(["cc", *flags, *paths, SOURCE, "-o", program], check=True)
    printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in map(str.split, printed.splitlines())}


def assert_table_says(
    compiled: dict[str, int], version: tuple[int, int], free_threaded: bool
) -> None:
    layout = layout_for(version, free_threaded)
    assert layout is not None
    assert {name: getattr(layout, name) for name in OFFSETS} == {
        name: compiled.get(name, ABSENT) for name in OFFSETS
    }
    assert layout.variable_size == compiled.get("variable_size", layout.variable_size)


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
@pytest.mark.skipif(not WITH_HEADERS, reason="no interpreter with internal headers")
@pytest.mark.parametrize("interpreter", WITH_HEADERS, ids=lambda i: i.id)
def test_the_table_is_what_the_headers_say(interpreter: Interpreter, tmp_path: Path) -> None:
    compiled = offsets_by_compiler(interpreter, tmp_path)
    assert_table_says(compiled, interpreter.version, free_threaded=False)


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
@pytest.mark.skipif(not FREE_THREADED, reason="no headers of 3.13 or later")
@pytest.mark.parametrize("interpreter", FREE_THREADED, ids=lambda i: i.id)
def test_the_table_is_what_the_headers_say_of_free_threaded_builds(
    interpreter: Interpreter, tmp_path: Path
) -> None:
    compiled = offsets_by_compiler(interpreter, tmp_path, "-DPy_GIL_DISABLED=1")
    assert_table_says(compiled, interpreter.version, free_threaded=True)


@pytest.mark.parametrize("interpreter", INTERPRETERS, ids=lambda i: i.id)
def test_an_interpreter_is_described_by_its_file_alone(interpreter: Interpreter) -> None:
    elf = ElfFile.open(interpreter.library)
    file = describe(elf, str(interpreter.library))
    assert file.layout == layout_for(interpreter.version)
    assert file.code_type and file.none and file.eval_ranges
    # Where the interpreter publishes its offsets, they and the table are the same.
    published = (
        decode(elf.read_vaddr(file.runtime, 1400)) if file.layout.version >= (3, 13) else None
    )
    assert (published is None) == (interpreter.version < (3, 13))
    if published is not None:
        assert layout_from(published) == file.layout
