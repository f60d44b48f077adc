"""What an ELF file says of the CPython interpreter in it."""

from __future__ import annotations

from dataclasses import dataclass

from gpumemprof.errors import RemoteDataError
from gpumemprof.process.elf import PT_LOAD, ElfFile
from gpumemprof.stack.python import symbols
from gpumemprof.stack.python.debug_offsets import MAX_SIZE, DebugOffsets, decode, layout_from
from gpumemprof.stack.python.layouts import ABSENT, Layout, layout_for
from gpumemprof.stack.python.parts import split_off_parts
from gpumemprof.stack.python.tls import TlsVariable, variable_of
from gpumemprof.stack.python.version import find_version

EVAL_FUNCTION = "_PyEval_EvalFrameDefault"
_DATA = ("_PyRuntime", "PyCode_Type", "_Py_NoneStruct", "Py_Version")
_GETTER = "PyGILState_GetThisThreadState"


@dataclass(frozen=True, slots=True)
class PythonFile:
    """What a file that holds an interpreter says, in its own addresses (vaddr)."""

    layout: Layout
    runtime: int
    code_type: int
    """``PyCode_Type``, 0 if it has no symbol."""
    none: int
    """``_Py_NoneStruct``, 0 if it has no symbol."""
    eval_ranges: tuple[tuple[int, int], ...]
    """(start, end) of the interpreter loop, its split-off parts included."""
    gil_state: TlsVariable | None
    """Where each thread keeps its thread state: from 3.15 on (before, in a TSS value)."""


def describe(elf: ElfFile, path: str = "") -> PythonFile:
    """Read an interpreter's file. Raises RemoteDataError for one that cannot be used."""
    found = symbols.find(elf, (*_DATA, EVAL_FUNCTION, _GETTER), prefix=EVAL_FUNCTION)
    section = elf.section(".PyRuntime")
    if "_PyRuntime" in found:
        runtime = found["_PyRuntime"].vaddr
    elif section is not None and section.size:
        runtime = section.vaddr
    else:
        raise RemoteDataError(f"{path} holds a Python interpreter without _PyRuntime")
    layout = _layout(elf, runtime, path, found.get("Py_Version"))
    thread_local = layout.runtime_tss_key == ABSENT
    getter = found.get(_GETTER)
    return PythonFile(
        layout=layout,
        runtime=runtime,
        code_type=found["PyCode_Type"].vaddr if "PyCode_Type" in found else 0,
        none=found["_Py_NoneStruct"].vaddr if "_Py_NoneStruct" in found else 0,
        eval_ranges=_eval_ranges(elf, found),
        gil_state=variable_of(elf, getter.vaddr) if thread_local and getter else None,
    )


def _eval_ranges(elf: ElfFile, found: dict[str, symbols.Symbol]) -> tuple[tuple[int, int], ...]:
    ranges = {
        (symbol.vaddr, symbol.vaddr + symbol.size)
        for name, symbol in found.items()
        if symbol.size and (name == EVAL_FUNCTION or name.startswith(EVAL_FUNCTION + "."))
    }
    main = found.get(EVAL_FUNCTION)
    if main is not None:
        ranges.update(split_off_parts(elf, main.vaddr, main.vaddr + main.size))
    return tuple(sorted(ranges))


def _layout(elf: ElfFile, runtime: int, path: str, version_symbol: symbols.Symbol | None) -> Layout:
    published = _published(elf, runtime)
    if published is not None:
        return layout_from(published)
    version = find_version(elf, path, version_symbol)
    layout = layout_for(version)
    if layout is None:
        raise RemoteDataError(f"Python {version[0]}.{version[1]} is not supported")
    if version >= (3, 13):
        raise RemoteDataError(f"{path} does not publish its offsets, as Python {version} does")
    return layout


def _published(elf: ElfFile, runtime: int) -> DebugOffsets | None:
    for segment in elf.segments:
        available = segment.vaddr + segment.file_size - runtime
        if segment.type == PT_LOAD and segment.vaddr <= runtime and available > 0:
            return decode(elf.read_vaddr(runtime, min(available, MAX_SIZE)))
    return None
