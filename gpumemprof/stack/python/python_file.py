"""What an ELF file says of the CPython interpreter in it."""

from __future__ import annotations

from dataclasses import dataclass

from gpumemprof.errors import RemoteDataError
from gpumemprof.process.elf import PT_LOAD, ElfFile
from gpumemprof.stack.python import symbols
from gpumemprof.stack.python.debug_offsets import MAX_SIZE, DebugOffsets, decode, layout_from
from gpumemprof.stack.python.layouts import Layout, layout_for
from gpumemprof.stack.python.parts import split_off_parts
from gpumemprof.stack.python.version import find_version

EVAL_FUNCTION = "_PyEval_EvalFrameDefault"
_DATA = ("_PyRuntime", "PyCode_Type", "_Py_NoneStruct", "Py_Version")
_GETTER = "PyGILState_GetThisThreadState"
_MOV_RAX_FS = b"\x64\x48\x8b\x04\x25"  # mov %fs:disp32,%rax
_GETTER_BYTES = 32


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
    gilstate_tls: int
    """From fs base to the GIL state's TLS variable (3.15, linked into the executable), else 0."""


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
    getter = found.get(_GETTER)
    return PythonFile(
        layout=layout,
        runtime=runtime,
        code_type=found["PyCode_Type"].vaddr if "PyCode_Type" in found else 0,
        none=found["_Py_NoneStruct"].vaddr if "_Py_NoneStruct" in found else 0,
        eval_ranges=_eval_ranges(elf, found),
        gilstate_tls=_tls_offset(elf, getter) if layout.version >= (3, 15) and getter else 0,
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


def _tls_offset(elf: ElfFile, getter: symbols.Symbol) -> int:
    """From fs base to the variable that ``PyGILState_GetThisThreadState`` returns, 0 if the
    code is not a plain load: in a shared library the place differs from process to process."""
    try:
        code = elf.read_vaddr(getter.vaddr, _GETTER_BYTES)
    except RemoteDataError:
        return 0
    at = code.find(_MOV_RAX_FS)
    displacement = code[at + len(_MOV_RAX_FS) : at + len(_MOV_RAX_FS) + 4]
    if at < 0 or len(displacement) != 4:
        return 0
    return int.from_bytes(displacement, "little", signed=True)
