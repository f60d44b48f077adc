"""The files that code came from: opened once, shared by the processes that map them."""

from __future__ import annotations

import os
from collections import OrderedDict
from functools import cached_property
from pathlib import Path

from gpumemprof.errors import GpumemprofError, ProcessGone, RemoteDataError
from gpumemprof.process.elf import ElfFile
from gpumemprof.process.elf_source import BytesSource
from gpumemprof.process.elf_symbols import find_exported
from gpumemprof.process.file_key import FileKey, content_key, real_file_key
from gpumemprof.process.mapped_file import PROC, open_mapped, read_memory
from gpumemprof.process.maps import Mapping
from gpumemprof.process.patience import NoAnswerError, Patience
from gpumemprof.process.trust import OWN, Trust
from gpumemprof.stack.architecture import X86_64, Architecture
from gpumemprof.stack.cfi import CallFrameInfo
from gpumemprof.stack.debug_files import find_debug_files
from gpumemprof.stack.perf_map import PerfMap
from gpumemprof.stack.steps import Step, UnwindEnd, compile_row

MAX_STEPS = 1 << 17
"""Weight of the steps remembered for all files, about 300 bytes each; beyond it all are
forgotten."""
MAX_EMBEDDED = 64 << 20
"""Bytes of symbol tables that were decompressed, of all files."""
MAX_FILES = 16_384
"""Code files of all processes that are known at a time."""
TOO_MANY = "[more code files than are opened]"
MAX_VDSO = 256 << 10
_START_SIZE = 64
"""Bytes of code of ``_start`` in every C library (glibc 38, musl 24)."""
_THREAD_ROOTS = ("clone", "__clone", "clone3", "__clone3")
_ARCHITECTURES: dict[int, Architecture] = {X86_64.machine: X86_64}


class RememberedSteps:
    """Steps by (id of a code file, address), of all files. Bounded: when it is full it is emptied,
    and what is needed is read again."""

    def __init__(self) -> None:
        self._steps: dict[tuple[int, int], Step] = {}
        self._weight = 0

    def get(self, key: tuple[int, int]) -> Step | None:
        """The step of a place, None if it is not remembered."""
        return self._steps.get(key)

    def put(self, key: tuple[int, int], step: Step) -> None:
        """Remember a step."""
        self._weight += step.weight
        if self._weight > MAX_STEPS:
            self._steps.clear()
            self._weight = step.weight
        self._steps[key] = step


class CodeFile:
    """A file that code was mapped from, or what stands in its place.

    ``id``: names it for ever; never used again for another file. ``path``: as the process that
    was seen first sees it. ``elf``: None if it cannot be read; ``problem`` says why then.
    ``perf_map``: names of code made at run time, for the file that stands for such code.
    """

    def __init__(
        self,
        number: int,
        path: str,
        elf: ElfFile | None,
        *,
        problem: str = "",
        debug: tuple[ElfFile, ...] = (),
        perf_map: PerfMap | None = None,
        patience: Patience | None = None,
        steps: RememberedSteps | None = None,
    ) -> None:
        self.id = number
        self.path = path
        self.elf = elf
        self.problem = problem
        self.debug = debug
        self.perf_map = perf_map
        self.users = 0
        self.patience = patience or Patience()
        self._steps = steps if steps is not None else RememberedSteps()

    @cached_property
    def _frames(self) -> CallFrameInfo | None:
        if self.elf is None:
            return None
        try:
            return CallFrameInfo(self.elf)
        except RemoteDataError:
            return None

    @cached_property
    def _roots(self) -> tuple[tuple[int, int], ...]:
        """Ranges of code that nothing calls, for C libraries that do not mark it as such."""
        elf = self.elf
        if elf is None:
            return ()
        ranges = []
        if elf.entry:
            ranges.append((elf.entry, elf.entry + _START_SIZE))
        try:
            for symbol in find_exported(elf, _THREAD_ROOTS).values():
                ranges.append((symbol.vaddr, symbol.vaddr + max(symbol.size, 1)))
        except RemoteDataError:
            pass
        return tuple(ranges)

    def step(self, vaddr: int, lookup: int) -> Step:
        """The step at a virtual address; ``lookup`` is where its row is looked up: the address
        itself, or one less when it is a return address (the call may be the last instruction of
        its function)."""
        key = self.id, lookup
        step = self._steps.get(key)
        if step is None:
            step = self._made(vaddr, lookup)
            self._steps.put(key, step)
        return step

    def _made(self, vaddr: int, lookup: int) -> Step:
        try:
            return self.patience(lambda: self._read_step(vaddr, lookup))
        except NoAnswerError as error:
            self.abandon(str(error))
            return Step.stop(UnwindEnd.FILE_UNREADABLE, self.problem)

    def abandon(self, problem: str) -> None:
        """The file does not answer: nothing is read from it any more."""
        self.patience.keep((self.elf, self.debug))
        self.elf, self.debug, self.problem = None, (), problem

    def _read_step(self, vaddr: int, lookup: int) -> Step:
        elf, frames = self.elf, self._frames
        if elf is None:
            return Step.stop(UnwindEnd.FILE_UNREADABLE, self.problem)
        architecture = _ARCHITECTURES.get(elf.machine)
        if architecture is None:
            return Step.stop(UnwindEnd.NO_CFI, f"machine {elf.machine} is not unwound")
        try:
            found = frames.row_at(lookup) if frames is not None else None
            if found is not None:
                return compile_row(found[0], found[1], vaddr, architecture)
            if any(start <= lookup < end for start, end in self._roots):
                return Step.stop(UnwindEnd.ROOT)
        except RemoteDataError as error:
            return Step.stop(UnwindEnd.BAD_CFI, f"{self.name}: {error}")
        return Step.stop(UnwindEnd.NO_CFI, self.name)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    def close(self) -> None:
        """Close what is open; its name remains."""
        for elf in (self.elf, *self.debug):
            if elf is not None:
                elf.close()
        if self.perf_map is not None:
            self.perf_map.close()


class FileCache:
    """All code files, by identity and by id. Not thread-safe.

    A file that an image uses stays open. Those no longer used stay open too, for the symbols of
    what ended, until more than ``limit`` are; then the ones unused for longest are closed and
    forgotten.
    """

    def __init__(
        self, limit: int = 256, *, trust: Trust = OWN, patience: Patience | None = None
    ) -> None:
        """``patience``: for reads of the files; without it, what ``trust`` says."""
        self._limit = limit
        self.trust = trust
        self.patience = patience or Patience(trust.patience)
        self._too_many = CodeFile(0, TOO_MANY, None, problem="too many code files")
        self._by_id: dict[int, CodeFile] = {}
        self._by_key: dict[FileKey, CodeFile] = {}
        self._unused: OrderedDict[int, FileKey | None] = OrderedDict()
        self._next_id = 1
        self._steps = RememberedSteps()
        self._embedded = 0
        self.closed = 0
        """Files closed because of the limit."""

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, number: int) -> CodeFile | None:
        """The file of an id, None when it was forgotten."""
        return self._by_id.get(number)

    def mapped(self, pid: int, mapping: Mapping, proc: Path = PROC) -> CodeFile:
        """The file behind a mapping; the caller releases it. Raises ProcessGone."""
        fuse = self.trust.allow_fuse

        def identify() -> tuple[int, FileKey]:
            fd = open_mapped(pid, mapping, proc=proc, allow_fuse=fuse)
            try:
                return fd, real_file_key(fd)
            except OSError as error:
                os.close(fd)
                raise RemoteDataError(str(error)) from error

        def read() -> tuple[ElfFile, tuple[ElfFile, ...]]:
            elf = ElfFile.open(fd)
            return elf, find_debug_files(elf, mapping.path, pid, proc, allow_fuse=fuse)

        try:
            fd, key = self.patience(identify)
        except RemoteDataError as error:
            return self._add(None, mapping.path, None, problem=str(error))
        known = self._by_key.get(key)
        if known is not None:
            os.close(fd)
            return self._used(known)
        try:
            elf, debug = self.patience(read)
        except RemoteDataError as error:
            return self._add(key, mapping.path, None, problem=str(error))
        if self._embedded + _in_memory(debug) > MAX_EMBEDDED:
            debug = ()
        self._embedded += _in_memory(debug)
        return self._add(key, mapping.path, elf, debug=debug)

    @property
    def full(self) -> bool:
        """Whether no further file is opened."""
        return len(self._by_id) >= MAX_FILES

    def too_many(self) -> CodeFile:
        """Stands for every file beyond the limits; not to be released."""
        return self._too_many

    def in_memory(self, pid: int, mapping: Mapping, proc: Path = PROC) -> CodeFile:
        """The vDSO, read from the process; the caller releases it. Raises ProcessGone."""
        try:
            size = min(mapping.end - mapping.start, MAX_VDSO)
            data = self.patience(lambda: read_memory(pid, mapping.start, size, proc=proc))
            key = content_key(data)
            known = self._by_key.get(key)
            if known is not None:
                return self._used(known)
            return self._add(key, mapping.path, ElfFile.from_bytes(data, key))
        except ProcessGone:
            raise
        except GpumemprofError as error:
            return self._add(None, mapping.path, None, problem=str(error))

    def run_time_code(self, perf_map: PerfMap) -> CodeFile:
        """A file that stands for the code one process made at run time; the caller releases it."""
        return self._add(None, "", None, problem="code made at run time", perf_map=perf_map)

    def _add(
        self,
        key: FileKey | None,
        path: str,
        elf: ElfFile | None,
        *,
        problem: str = "",
        debug: tuple[ElfFile, ...] = (),
        perf_map: PerfMap | None = None,
    ) -> CodeFile:
        file = CodeFile(
            self._next_id,
            path,
            elf,
            problem=problem,
            debug=debug,
            perf_map=perf_map,
            patience=self.patience,
            steps=self._steps,
        )
        self._next_id += 1
        self._by_id[file.id] = file
        if key is not None:
            self._by_key[key] = file
        self._unused[file.id] = key
        return self._used(file)

    def _used(self, file: CodeFile) -> CodeFile:
        file.users += 1
        self._unused.move_to_end(file.id)
        return file

    def release(self, file: CodeFile) -> None:
        """An image no longer uses the file."""
        file.users -= 1
        if file.id in self._unused:
            self._unused.move_to_end(file.id)
        self._shrink()

    def _shrink(self) -> None:
        excess = len(self._by_id) - self._limit
        if excess <= 0:
            return
        for number in [n for n in self._unused if self._by_id[n].users <= 0][:excess]:
            key = self._unused.pop(number)
            file = self._by_id.pop(number)
            if key is not None:
                self._by_key.pop(key, None)
            self._embedded -= _in_memory(file.debug)
            file.close()
            self.closed += 1


def _in_memory(files: tuple[ElfFile, ...]) -> int:
    return sum(elf.source.size for elf in files if isinstance(elf.source, BytesSource))
