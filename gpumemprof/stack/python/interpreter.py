"""Finding the CPython interpreter in a process, and where it keeps its thread states.

Nothing of the process is run: its files and memory are read. The interpreter is a shared
libpython or is linked into the executable; either way it exports ``_PyRuntime``.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpumemprof.errors import RemoteDataError
from gpumemprof.process.elf import PF_X, PT_LOAD, ElfFile
from gpumemprof.process.elf_symbols import find_exported
from gpumemprof.process.file_key import FileKey
from gpumemprof.process.mapped_file import open_mapped
from gpumemprof.process.maps import Mapping, Maps
from gpumemprof.stack.python import symbols
from gpumemprof.stack.python.debug_offsets import MAX_SIZE, DebugOffsets, decode, layout_from
from gpumemprof.stack.python.layouts import Layout, layout_for
from gpumemprof.stack.python.lru import Lru
from gpumemprof.stack.python.memory import Memory, ProcessMemory, read_exactly, read_u64
from gpumemprof.stack.python.target import PythonTarget, make_target
from gpumemprof.stack.python.threads import Libc, find_libc
from gpumemprof.stack.python.version import find_version

EVAL_FUNCTION = "_PyEval_EvalFrameDefault"
_PAGE = 4096
_MAX_CANDIDATES = 16
_LOOKS_LIKE_PYTHON = re.compile(r"(lib)?python", re.IGNORECASE)
_DATA = ("_PyRuntime", "PyCode_Type", "_Py_NoneStruct", "Py_Version")
_MAX_KEYS = 1024  # PTHREAD_KEYS_MAX of glibc; musl has 128


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


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The interpreter of one process; addresses are of the process."""

    version: tuple[int, int]
    free_threaded: bool
    layout: Layout = field(repr=False)
    target: PythonTarget = field(repr=False)
    module: str
    """Path of its file as the process sees it."""
    code_type: int
    none: int
    eval_ranges: tuple[tuple[int, int], ...]

    def evaluates(self, address: int) -> bool:
        """Whether code at ``address`` is the interpreter loop."""
        return any(start <= address < end for start, end in self.eval_ranges)


class InterpreterFinder:
    """Finds interpreters; remembers what their files say, as processes share files."""

    def __init__(self) -> None:
        self._files: Lru[FileKey, PythonFile] = Lru(64)

    def find(self, pid: int, maps: Maps) -> Interpreter | None:
        """The interpreter of a process, None if it has none (yet).

        Raises RemoteDataError when there is one that cannot be used: a version not known
        here, or data that contradict its version's layout; ProcessGone when the process ended.
        """
        for mapping in _candidates(maps):
            try:
                elf = ElfFile.open(open_mapped(pid, mapping))
            except RemoteDataError:
                continue  # not ELF, or gone: another mapping may hold the interpreter
            try:
                file = self._describe(elf, mapping)
                if file is None:
                    continue
                bias = load_bias(elf, mapping)
            finally:
                elf.close()
            libc = find_libc(pid, maps)
            with ProcessMemory(pid) as memory:
                return _locate(file, bias, libc, memory, mapping.path)
        return None

    def _describe(self, elf: ElfFile, mapping: Mapping) -> PythonFile | None:
        if elf.key is not None and (known := self._files.get(elf.key)) is not None:
            return known
        if not _is_interpreter(elf, mapping):
            return None
        file = describe(elf, mapping.path)
        if elf.key is not None:
            self._files.put(elf.key, file)
        return file


def _candidates(maps: Maps) -> Iterator[Mapping]:
    """Code mappings that may be an interpreter: libpython, the executable, anything so named."""
    seen: set[tuple[int, int]] = set()
    first: list[Mapping] = []
    named: list[Mapping] = []
    for mapping in maps.executable():
        key = (mapping.device, mapping.inode)
        if not mapping.file_backed or key in seen:
            continue
        seen.add(key)
        name = posixpath.basename(mapping.path)
        if _LOOKS_LIKE_PYTHON.match(name):
            (first if name.startswith("lib") else named).append(mapping)
        elif not first and not named and ".so" not in name:
            named.append(mapping)  # the executable, mapped below its libraries
    yield from (first + named)[:_MAX_CANDIDATES]


def _is_interpreter(elf: ElfFile, mapping: Mapping) -> bool:
    if find_exported(elf, (EVAL_FUNCTION,)):
        return True
    name = posixpath.basename(mapping.path)
    # An executable that does not export its symbols may still have them in .symtab.
    return bool(_LOOKS_LIKE_PYTHON.match(name)) and EVAL_FUNCTION in symbols.find(
        elf, (EVAL_FUNCTION,)
    )


def describe(elf: ElfFile, path: str = "") -> PythonFile:
    """Read an interpreter's file. Raises RemoteDataError for one that cannot be used."""
    found = symbols.find(
        elf, (*_DATA, EVAL_FUNCTION, "PyGILState_GetThisThreadState"), prefix=EVAL_FUNCTION
    )
    section = elf.section(".PyRuntime")
    if "_PyRuntime" in found:
        runtime = found["_PyRuntime"].vaddr
    elif section is not None and section.size:
        runtime = section.vaddr
    else:
        raise RemoteDataError(f"{path} holds a Python interpreter without _PyRuntime")
    layout = _layout(elf, runtime, path, found.get("Py_Version"))
    getter = found.get("PyGILState_GetThisThreadState")
    return PythonFile(
        layout=layout,
        runtime=runtime,
        code_type=found["PyCode_Type"].vaddr if "PyCode_Type" in found else 0,
        none=found["_Py_NoneStruct"].vaddr if "_Py_NoneStruct" in found else 0,
        eval_ranges=tuple(
            (symbol.vaddr, symbol.vaddr + symbol.size)
            for name, symbol in sorted(found.items())
            if symbol.size and (name == EVAL_FUNCTION or name.startswith(EVAL_FUNCTION + "."))
        ),
        gilstate_tls=_tls_offset(elf, getter) if layout.version >= (3, 15) and getter else 0,
    )


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


_MOV_RAX_FS = b"\x64\x48\x8b\x04\x25"  # mov %fs:disp32,%rax
_GETTER_BYTES = 32


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


def load_bias(elf: ElfFile, mapping: Mapping) -> int:
    """What the process adds to the file's addresses, from one of its code mappings."""
    for segment in elf.segments:
        if segment.type != PT_LOAD or not segment.flags & PF_X:
            continue
        if (
            segment.offset - segment.offset % _PAGE
            <= mapping.offset
            < (segment.offset + segment.file_size)
        ):
            return mapping.start - mapping.offset + segment.offset - segment.vaddr
    raise RemoteDataError(f"{mapping.path} has no code at offset {mapping.offset:#x}")


def _locate(file: PythonFile, bias: int, libc: Libc, memory: Memory, module: str) -> Interpreter:
    layout = file.layout
    target = make_target(layout, file.runtime + bias, libc, file.gilstate_tls)
    return Interpreter(
        version=layout.version,
        free_threaded=layout.free_threaded,
        layout=layout,
        target=_checked(target, layout, memory),
        module=module,
        code_type=file.code_type + bias if file.code_type else 0,
        none=file.none + bias if file.none else 0,
        eval_ranges=tuple((start + bias, end + bias) for start, end in file.eval_ranges),
    )


def _checked(target: PythonTarget, layout: Layout, memory: Memory) -> PythonTarget:
    """Compare with the process's memory: patch releases may move what the table says.

    Before ``Py_Initialize`` all is zero, which contradicts nothing. A key that cannot be one is
    left out: the kernel then searches the list of threads.
    """
    interpreter = read_u64(memory, target.interp_head_addr)
    if interpreter == 0:
        return target
    thread = read_u64(memory, interpreter + layout.interp_threads)
    if thread and read_u64(memory, thread + layout.tstate_thread_id) >> 47:
        raise RemoteDataError(
            f"the memory of this Python {layout.version} is not laid out as its version's is"
        )
    if target.tss_key_addr:
        words = read_exactly(memory, target.tss_key_addr, 8)
        initialized = int.from_bytes(words[:4], "little")
        key = int.from_bytes(words[4:], "little")
        if initialized != 1 or key >= _MAX_KEYS:
            return target.without_key()
    return target
