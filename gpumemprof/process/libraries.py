"""Which files to probe: the CUDA libraries that processes map, each real file once."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpumemprof.errors import ProcessGone, RemoteDataError
from gpumemprof.probe.attach import Closable, Target, error_name
from gpumemprof.probe.calls import CALLS, ROWS, Library, calls_of
from gpumemprof.process.elf import ElfFile
from gpumemprof.process.elf_symbols import file_offsets
from gpumemprof.process.file_key import FileKey, real_file_key
from gpumemprof.process.library_places import (
    MAX_LD_CACHE,
    classify,
    installed_libraries,
    ld_cache_paths,
    places,
)
from gpumemprof.process.mapped_file import PROC, open_in_root, open_mapped
from gpumemprof.process.maps import Mapping, Maps
from gpumemprof.process.patience import Patience
from gpumemprof.process.trust import OWN, Trust

__all__ = [
    "LibraryProber",
    "ProbedFile",
    "classify",
    "installed_libraries",
    "ld_cache_paths",
    "missing_calls",
]

log = logging.getLogger(__name__)

Attach = Callable[[str, Sequence[Target]], Closable]

_MAX_NUMBER = (1 << 16) - 1
"""Files are numbered by 16 bits of the attach cookie."""
UNUSED_SECONDS = 300.0
"""How long a library that no process maps stays probed: its next user may come soon."""
UNUSED_DRIVER_SECONDS = 3600.0
"""The same, for a driver that was found in a process and not in its place."""

_MAX_SEEN = 1 << 16
_MAX_PROBLEMS = 1000


@dataclass(frozen=True, slots=True)
class ProbedFile:
    """A file with probes on it. ``calls``: names of the hooked calls it exports. ``number``: by
    which the kernel tells it from others. ``stays``: it was found in its place, and is probed
    whether or not a process maps it."""

    path: str
    library: Library
    calls: tuple[str, ...]
    link: Closable
    key: FileKey
    number: int
    stays: bool


class LibraryProber:
    """Attaches to the hooked libraries that processes map, each real file once."""

    def __init__(
        self,
        attach: Attach,
        first_file: int = 1,
        *,
        trust: Trust = OWN,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``first_file``: number of the first file, by which the kernel tells attachments apart."""
        self._attach = attach
        self._trust = trust
        self._patience = Patience(trust.patience)
        self._clock = clock
        self._first_file = first_file
        self._by_key: dict[FileKey, ProbedFile] = {}
        self._numbers: set[int] = set()
        self._last_number = first_file - 1
        self._last_used: dict[FileKey, float] = {}
        self._maps: dict[int, frozenset[FileKey]] = {}
        """Pid → the probed files it mapped when it was scanned."""
        self._seen: dict[tuple[int, int, str], ProbedFile | None] = {}
        """Mapped file → what became of it, None where it could not be probed."""
        self.problems: dict[str, str] = {}
        """Path → why it could not be probed. Each is a blind spot to be told."""

    @property
    def probed(self) -> list[ProbedFile]:
        """What has probes on it now."""
        return list(self._by_key.values())

    def scan(self, pid: int, maps: Maps) -> bool:
        """Probe what the process maps and is not probed yet; whether it maps a CUDA library."""
        has_cuda = False
        looked_at = 0
        mapped: set[FileKey] = set()
        for mapping in maps.executable():
            library = classify(mapping.path) if mapping.file_backed else None
            if library is None:
                continue
            has_cuda = has_cuda or library is not Library.LOADER
            looked_at += 1
            if looked_at > self._trust.libraries_per_process:
                self._problem(mapping.path, "its process maps too many such libraries")
                break
            if _seen_as(mapping) not in self._seen:
                self._probe_mapped(pid, mapping, library)
            found = self._seen.get(_seen_as(mapping))
            if found is not None:
                mapped.add(found.key)
                self._last_used[found.key] = self._clock()
        if mapped or pid in self._maps:
            self._maps[pid] = frozenset(mapped)
        return has_cuda

    def release_unused(self, running: Iterable[int]) -> int:
        """Detach from libraries that none of the ``running`` processes mapped when they were
        scanned, and none at all for ``UNUSED_SECONDS``; how many. The driver in its place stays.

        Files that could not be probed are tried again. To be called every minute or so; not in
        mode SINGLE, where detaching takes a tenth of a second for each call.
        """
        alive = set(running)
        for pid in self._maps.keys() - alive:
            del self._maps[pid]
        now = self._clock()
        for key in frozenset().union(*self._maps.values()):
            self._last_used[key] = now
        released = 0
        for key, probed in list(self._by_key.items()):
            driver = probed.library is Library.DRIVER
            patience = UNUSED_DRIVER_SECONDS if driver else UNUSED_SECONDS
            if not probed.stays and now - self._last_used.get(key, now) >= patience:
                self._detach(probed)
                released += 1
        # What is not attached is not held: its inode's number may be of another file by now.
        self._seen = {
            seen: file
            for seen, file in self._seen.items()
            if file is not None and file.key in self._by_key
        }
        return released

    def _detach(self, probed: ProbedFile) -> None:
        probed.link.close()
        del self._by_key[probed.key]
        self._last_used.pop(probed.key, None)
        self._numbers.discard(probed.number)
        log.debug("no process maps %r any more", probed.path)

    def probes_linker(self, maps: Maps) -> bool:
        """Whether the dynamic linker of a process that was scanned is probed."""
        return any(
            (file := self.file_of(mapping)) is not None and file.library is Library.LOADER
            for mapping in maps.executable()
        )

    def file_of(self, mapping: Mapping) -> ProbedFile | None:
        """The probed file behind a mapping that was scanned, whatever path it was probed by."""
        return self._seen.get(_seen_as(mapping))

    def _probe_mapped(self, pid: int, mapping: Mapping, library: Library) -> None:
        if len(self._seen) >= _MAX_SEEN:
            self._seen.clear()  # a program may show ever new files: look again at those that last

        def opened() -> int:
            return open_mapped(pid, mapping, allow_fuse=self._trust.allow_fuse)

        try:
            found = self._probe(opened, mapping.path, library)
        except ProcessGone:
            return  # the next process that maps it will show it
        self._seen[_seen_as(mapping)] = found

    def probe_path(self, path: Path) -> None:
        """Probe a file of this machine before any process maps it."""
        library = classify(str(path))
        if library is None:
            self._problem(str(path), "its name is none of a hooked library")
            return

        def opened() -> int:
            try:
                # Not blocking: a pipe may stand in the place of a library.
                return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
            except OSError as error:
                raise RemoteDataError(error_name(error)) from None

        self._probe(opened, str(path), library, stays=True)

    def probe_root(self, pid: int = 1, proc: Path = PROC) -> list[str]:
        """Probe the CUDA libraries that the root of a process has installed, before any process
        maps them; their paths. Of process 1, seen from a pod with the host's pids, that is the
        node: its linker's cache, the driver's usual places, and the GPU operator's driver.

        Links are followed inside that root. Raises ProcessGone.
        """

        def opened(path: str) -> int:
            return open_in_root(pid, path, proc=proc, allow_fuse=self._trust.allow_fuse)

        def cache(path: str) -> bytes:
            try:
                fd = self._patience(lambda: opened(path))
            except RemoteDataError:
                return b""
            with os.fdopen(fd, "rb") as file:
                return file.read(MAX_LD_CACHE)

        found = []
        for path in dict.fromkeys(places(cache)):
            library = classify(path)
            if library is None:
                continue
            try:
                fd = self._patience(functools.partial(opened, path))
            except RemoteDataError as error:
                log.debug("%s", error)  # most places are empty
                continue
            if self._probe(functools.partial(int, fd), path, library, stays=True) is not None:
                found.append(path)
        return found

    def _probe(
        self, opened: Callable[[], int], path: str, library: Library, *, stays: bool = False
    ) -> ProbedFile | None:
        """Probe the file that ``opened`` opens, if it is not probed; None, and a problem, if that
        cannot be. Raises ProcessGone."""
        try:
            number = self._number()
            # What may wait is done apart, and changes nothing here.
            found = self._patience(lambda: self._attached(opened(), path, library, number))
        except RemoteDataError as error:
            self._problem(path, str(error))
            return None
        known = self._by_key.get(found.key)
        if known is None:
            self._numbers.add(number)
            log.debug("probing %d calls of %r", len(found.calls), path)
        if known is None or stays:
            found = self._by_key[found.key] = replace(found, stays=stays)
        self._last_used[found.key] = self._clock()
        self.problems.pop(path, None)
        return found

    def _attached(self, fd: int, path: str, library: Library, number: int) -> ProbedFile:
        """Takes ``fd`` over."""
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise RemoteDataError("it is not a regular file")
            key = real_file_key(fd)
            known = self._by_key.get(key)
            if known is not None:
                return known
            if len(self._by_key) >= self._trust.libraries:
                raise RemoteDataError("too many different library files")
            with contextlib.closing(ElfFile.open(os.dup(fd))) as elf:
                offsets = file_offsets(elf, calls_of(library))
            if not offsets:
                raise RemoteDataError("it exports none of the hooked calls")
            # Through the descriptor: the very file that was read, whatever its path is now.
            link = self._attach(f"/proc/self/fd/{fd}", _targets(offsets, number))
        except OSError as error:
            raise RemoteDataError(f"attaching failed: {error_name(error)}") from None
        finally:
            os.close(fd)
        return ProbedFile(path, library, tuple(offsets), link, key, number, stays=False)

    def _number(self) -> int:
        """One that no probed file has; the ones used last come again last."""
        for _ in range(_MAX_NUMBER):
            self._last_number += 1
            if self._last_number > _MAX_NUMBER:
                self._last_number = self._first_file
            if self._last_number not in self._numbers:
                return self._last_number
        raise RemoteDataError("too many different library files")

    def _problem(self, path: str, why: str) -> None:
        if path not in self.problems:
            if len(self.problems) >= _MAX_PROBLEMS:
                del self.problems[next(iter(self.problems))]
            self.problems[path] = why
            text = f"{path}: {why}"
            # a program chooses its paths, and this may go to a terminal
            log.warning("cannot probe %s", text if text.isprintable() else repr(text))

    def close(self) -> None:
        """Detach from everything."""
        for probed in self._by_key.values():
            probed.link.close()
        self._by_key.clear()
        self._numbers.clear()
        self._last_used.clear()
        self._maps.clear()
        self._seen.clear()
        self._patience.close()


def _targets(offsets: dict[str, int], file: int) -> list[Target]:
    targets: dict[int, Target] = {}
    for row, name in sorted((ROWS[name], name) for name in offsets):
        # Several names of one function are one place: the first row of the table speaks for
        # all, and the others would be told as nested calls anyway.
        call, offset = CALLS[row], offsets[name]
        targets.setdefault(offset, Target(offset, call.cookie(row, file), call.needs_return))
    return list(targets.values())


def _seen_as(mapping: Mapping) -> tuple[int, int, str]:
    return mapping.device, mapping.inode, mapping.path


def missing_calls(probed: Iterable[ProbedFile]) -> dict[str, int]:
    """Library → how many of the table's calls none of its probed files exports."""
    exported = {name for file in probed for name in file.calls}
    return {
        library.value: sum(name not in exported for name in calls_of(library))
        for library in Library
    }
