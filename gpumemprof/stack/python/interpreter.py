"""Finding the CPython interpreter in a process, and where it keeps its thread states.

Nothing of the process is run: its files and memory are read. The interpreter is a shared
libpython or is linked into the executable; either way it exports ``_PyRuntime``.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpumemprof.errors import RemoteDataError
from gpumemprof.process.elf import ElfFile
from gpumemprof.process.elf_symbols import find_exported
from gpumemprof.process.file_key import FileKey
from gpumemprof.process.maps import Mapping, Maps
from gpumemprof.stack.python import symbols
from gpumemprof.stack.python.layouts import Layout
from gpumemprof.stack.python.lru import Lru
from gpumemprof.stack.python.mapped import load_bias, opened
from gpumemprof.stack.python.memory import Memory, ProcessMemory, read_exactly, read_u64
from gpumemprof.stack.python.python_file import EVAL_FUNCTION, PythonFile, describe
from gpumemprof.stack.python.target import PythonTarget, make_target
from gpumemprof.stack.python.threads import find_libc, find_loader
from gpumemprof.stack.python.tls import Loader, TlsForm, offset_from_fs

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

    def __init__(self, *, allow_fuse: bool = True) -> None:
        """``allow_fuse``: see ``open_mapped``."""
        self._allow_fuse = allow_fuse
        self._files: Lru[FileKey, tuple[PythonFile | None]] = Lru(256)  # None: another program

    def find(self, pid: int, maps: Maps) -> Interpreter | None:
        """The interpreter of a process, None if it has none (yet).

        Raises RemoteDataError when there is one that cannot be used: a version not known
        here, or data that contradict its version's layout; ProcessGone when the process ended.
        """
        for mapping in _candidates(maps):
            with contextlib.ExitStack() as stack:
                try:
                    elf = stack.enter_context(opened(pid, mapping, allow_fuse=self._allow_fuse))
                except RemoteDataError:
                    continue  # not ELF, or gone: another mapping may hold the interpreter
                file = self._describe(elf, mapping)
                if file is None:
                    continue
                bias = load_bias(elf, mapping)
            with ProcessMemory(pid) as memory:
                loader = self._loader(file, pid, maps)
                tls = _tls_offset(file, bias, loader, memory)
                libc = find_libc(pid, maps, allow_fuse=self._allow_fuse)
                target = make_target(file.layout, file.runtime + bias, libc, tls)
                target = _checked(target, file.layout, memory)
            return _interpreter(file, bias, target, mapping.path)
        return None

    def _loader(self, file: PythonFile, pid: int, maps: Maps) -> Loader:
        """What the dynamic linker tells, where it is needed."""
        if file.gil_state is None or file.gil_state.form is not TlsForm.MODULE:
            return Loader()
        return find_loader(pid, maps, allow_fuse=self._allow_fuse)

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


def _tls_offset(file: PythonFile, bias: int, loader: Loader, memory: Memory) -> int:
    variable = file.gil_state
    if variable is None:
        return 0
    return offset_from_fs(variable, bias, loader, memory)


def _interpreter(file: PythonFile, bias: int, target: PythonTarget, module: str) -> Interpreter:
    layout = file.layout
    return Interpreter(
        version=layout.version,
        free_threaded=layout.free_threaded,
        layout=layout,
        target=target,
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
    thread = read_u64(memory, interpreter + layout.interp_threads) if interpreter else 0
    if not thread:
        return target
    if read_u64(memory, thread + layout.tstate_thread_id) >> 47:
        raise RemoteDataError(
            f"the memory of this Python {layout.version} is not laid out as its version's is"
        )
    if target.tss_key_addr:
        words = read_exactly(memory, target.tss_key_addr, 8)
        initialized = int.from_bytes(words[:4], "little")
        key = int.from_bytes(words[4:], "little")
        # The first thread may be made before the key, but runs nothing before it.
        runs = read_u64(memory, thread + layout.tstate_frame) != 0
        if initialized not in (0, 1) or key >= _MAX_KEYS or (runs and not initialized):
            return target.without_key()
    return target
