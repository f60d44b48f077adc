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
from gpumemprof.stack.python.layouts import Layout
from gpumemprof.stack.python.lru import Lru
from gpumemprof.stack.python.memory import Memory, ProcessMemory, read_exactly, read_u64
from gpumemprof.stack.python.python_file import EVAL_FUNCTION, PythonFile, describe
from gpumemprof.stack.python.target import PythonTarget, make_target
from gpumemprof.stack.python.threads import Libc, find_libc

_PAGE = 4096
_MAX_CANDIDATES = 16
_LOOKS_LIKE_PYTHON = re.compile(r"(lib)?python", re.IGNORECASE)
_MAX_KEYS = 1024  # PTHREAD_KEYS_MAX of glibc; musl has 128


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
        """Whether code at ``address`` is the interpreter loop.

        Of a caller give the address before the return address.
        """
        return any(start <= address < end for start, end in self.eval_ranges)


class InterpreterFinder:
    """Finds interpreters; remembers what their files say, as processes share files."""

    def __init__(self) -> None:
        self._files: Lru[FileKey, tuple[PythonFile | None]] = Lru(256)  # None: another program

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
        if elf.key is None:
            return describe(elf, mapping.path) if _is_interpreter(elf, mapping) else None
        known = self._files.get(elf.key)
        if known is None:
            found = describe(elf, mapping.path) if _is_interpreter(elf, mapping) else None
            known = (found,)
            self._files.put(elf.key, known)
        return known[0]


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
