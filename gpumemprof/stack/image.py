"""The code a process runs: which file, and which place in it, an address belongs to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gpumemprof.errors import ProcessGone
from gpumemprof.process import maps as process_maps
from gpumemprof.process.elf import ElfFile
from gpumemprof.process.mapped_file import PROC
from gpumemprof.process.maps import MAX_CODE_MAPPINGS, Mapping, Maps
from gpumemprof.process.patience import NoAnswerError
from gpumemprof.stack.code_files import CodeFile, FileCache
from gpumemprof.stack.perf_map import PerfMap
from gpumemprof.stack.steps import Step, UnwindEnd

MAX_REMEMBERED = 16_384
"""Addresses of one process whose place, and whose step, is remembered."""
VDSO = "[vdso]"
_ROOT = Step.stop(UnwindEnd.ROOT)


class ProcessImage:
    """The code mappings of one process, and the files behind them.

    A file is opened when the first address in it is asked for, and stays open after the process
    ended until ``close``, so that its symbols can be looked up later. Of the mappings only the
    executable ones are kept.
    """

    def __init__(
        self,
        pid: int,
        files: FileCache,
        *,
        proc: Path = PROC,
        maps: Maps | None = None,
        on_miss: Callable[[ProcessImage], object] | None = None,
    ) -> None:
        """``maps``: a snapshot taken already, else it is read now (ProcessGone, RemoteDataError).

        ``on_miss``: called when an address is in no known code mapping, since libraries are
        loaded at any time; it may call ``refresh``, and is to limit how often it does.
        """
        self.pid = pid
        self.generation = 0
        """Grows when a code mapping went away or changed: what was concluded before is void."""
        self.on_miss = on_miss
        self._proc = proc
        self._files = files
        self._maps = _code(process_maps.read_code(pid, proc) if maps is None else maps)
        self._by_mapping: dict[Mapping, CodeFile] = {}
        self._run_time_code: CodeFile | None = None
        self._steps: dict[int, Step] = {0: _ROOT}
        self._places: dict[int, tuple[int, int] | None] = {}

    @property
    def maps(self) -> Maps:
        """The executable mappings."""
        return self._maps

    @property
    def steps(self) -> dict[int, Step]:
        """Steps by return address as far as they are known. Cleared, never replaced."""
        return self._steps

    def refresh(self, maps: Maps | None = None) -> bool:
        """Read the mappings again, or take ``maps``; whether code was added, moved or removed.

        Raises ProcessGone and RemoteDataError; what was known stays then.
        """
        new = _code(process_maps.read_code(self.pid, self._proc) if maps is None else maps)
        old = self._maps
        if new == old:
            return False
        self._maps = new
        gone = set(old.mappings) - set(new.mappings)
        if gone:
            self.generation += 1
            self._forget()
            for mapping in gone:
                file = self._by_mapping.pop(mapping, None)
                if file is not None:
                    self._files.release(file)
        # What was no code before may be code now.
        self._places = {pc: place for pc, place in self._places.items() if place is not None}
        return True

    def _forget(self) -> None:
        self._steps.clear()
        self._steps[0] = _ROOT
        self._places.clear()

    def locate(self, pc: int) -> tuple[int, int] | None:
        """(id of the code file, virtual address in the file) of an address, None if it is no code.

        Code made at run time has one file for each process, and the process's addresses in it.
        The pair outlives the process; ``FileCache.get`` has the file.
        """
        try:
            return self._places[pc]
        except KeyError:
            pass
        found = self._find(pc)
        place = None
        if found is not None:
            file, vaddr = found
            place = (file.id, vaddr if vaddr is not None else pc)
        if len(self._places) >= MAX_REMEMBERED:
            self._places.clear()
        self._places[pc] = place
        return place

    def step(self, pc: int, *, after_call: bool = True) -> Step:
        """The step that leads from ``pc`` to its caller.

        ``after_call``: ``pc`` is a return address, not an address where a signal struck.
        """
        lookup = pc - 1 if after_call else pc
        found = self._find(lookup)
        if found is None:
            return Step.stop(UnwindEnd.NO_MAPPING, f"{pc:#x}")
        file, vaddr = found
        if vaddr is None:
            if file.perf_map is not None:
                step = Step.stop(UnwindEnd.JIT_CODE)
            else:
                step = Step.stop(UnwindEnd.FILE_UNREADABLE, file.problem)
        else:
            step = file.step(vaddr + (pc - lookup), vaddr)
        if after_call and step.weight == 1:
            if len(self._steps) >= MAX_REMEMBERED:
                self._steps.clear()
                self._steps[0] = _ROOT
            self._steps[pc] = step
        return step

    def _find(self, pc: int) -> tuple[CodeFile, int | None] | None:
        """(file, virtual address in it); the address is None if the file has no such code."""
        mapping = self._maps.find(pc)
        if mapping is None and self.on_miss is not None:
            self.on_miss(self)
            mapping = self._maps.find(pc)
        if mapping is None:
            return None
        file = self._by_mapping.get(mapping)
        if file is None:
            files = self._files
            if files.full or len(self._by_mapping) >= files.trust.files_per_process:
                return files.too_many(), None
            file = self._opened(mapping)
            if file is None:
                return None
            self._by_mapping[mapping] = file
        elf: ElfFile | None = file.elf
        if elf is None:
            return file, None
        return file, elf.code_vaddr(pc - mapping.start + mapping.offset)

    def _opened(self, mapping: Mapping) -> CodeFile | None:
        try:
            if mapping.path == VDSO:
                return self._files.in_memory(self.pid, mapping, self._proc)
            if mapping.file_backed:
                file = self._files.mapped(self.pid, mapping, self._proc)
                if file.elf is not None or not _is_nameless(mapping):
                    return file
                self._files.release(file)
        except ProcessGone:
            return None
        if self._run_time_code is None:
            perf_map = self._perf_map()
            self._run_time_code = self._files.run_time_code(perf_map)
        self._run_time_code.users += 1
        return self._run_time_code

    def _perf_map(self) -> PerfMap:
        fuse = self._files.trust.allow_fuse
        try:
            return self._files.patience(
                lambda: PerfMap.of_process(self.pid, self._proc, allow_fuse=fuse)
            )
        except NoAnswerError:
            return PerfMap(None)

    def close(self) -> None:
        """Let the files go; locations that were given out stay valid as long as the cache keeps
        the files."""
        for file in self._by_mapping.values():
            self._files.release(file)
        self._by_mapping.clear()
        if self._run_time_code is not None:
            self._files.release(self._run_time_code)
            self._run_time_code = None
        self._forget()
        self._maps = Maps(())


def _code(maps: Maps) -> Maps:
    return Maps(maps.executable()[:MAX_CODE_MAPPINGS])


def _is_nameless(mapping: Mapping) -> bool:
    """Whether the file is memory under a made-up name, as JIT compilers use it."""
    return mapping.path.startswith(("/memfd:", "/dev/zero", "/SYSV", "/dev/shm/"))  # noqa: S108
