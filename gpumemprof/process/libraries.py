"""Which files to probe: the CUDA libraries that processes map, each real file once."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpumemprof.errors import ProcessGone, RemoteDataError
from gpumemprof.probe.attach import Closable, Target, error_name
from gpumemprof.probe.calls import CALLS, ROWS, Library, calls_of
from gpumemprof.process.elf import ElfFile
from gpumemprof.process.elf_symbols import file_offsets
from gpumemprof.process.file_key import FileKey, real_file_key
from gpumemprof.process.mapped_file import open_mapped
from gpumemprof.process.maps import Mapping, Maps

log = logging.getLogger(__name__)

Attach = Callable[[str, Sequence[Target]], Closable]

_NAMES: tuple[tuple[re.Pattern[str], Library], ...] = (
    (re.compile(r"libcuda\.so(\.[\d.]+)?$"), Library.DRIVER),
    # wheels carry copies with a hash in the name: libcudart-9335f6a2.so.12
    (re.compile(r"libcudart([-.][\w.-]*)?\.so(\.[\d.]+)?$"), Library.RUNTIME),
    (re.compile(r"(ld-linux[\w.-]*|ld-[\d.]+|ld-musl-\w+)\.so(\.\d+)?$"), Library.LOADER),
)
_MAX_FILES = 1 << 15
"""Files are numbered by 16 bits of the attach cookie."""

_DRIVER_PLACES = (
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "/usr/lib/aarch64-linux-gnu/libcuda.so.1",
    "/usr/lib64/libcuda.so.1",
    "/usr/local/nvidia/lib64/libcuda.so.1",
    "/run/nvidia/driver/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "/home/kubernetes/bin/nvidia/lib64/libcuda.so.1",
)
_SONAMES = ("libcuda.so.1", "libcudart.so.11.0", "libcudart.so.12", "libcudart.so.13")
_LD_CACHE_MAGIC = b"glibc-ld.so.cache1.1"
_LD_CACHE_64_BIT = frozenset({0x03, 0x0A})
"""Second byte of the flags of an x86-64 or aarch64 library (glibc ldconfig.h); the 32-bit ones
beside it are not probed."""
_MAX_LD_CACHE = 16 << 20
_MAX_SEEN = 1 << 16
_MAX_PROBLEMS = 1000


def classify(path: str) -> Library | None:
    """Which hooked library a mapped path is by its file name, if any.

    >>> classify("/opt/env/lib/libcudart-9335f6a2.so.12").value
    'libcudart'
    >>> classify("/usr/lib/libcudart_static.a") is None
    True
    """
    name = path.rsplit("/", 1)[-1]
    for pattern, library in _NAMES:
        if pattern.match(name):
            return library
    return None


def ld_cache_paths(cache: bytes, name: str) -> list[str]:
    """Paths that the dynamic linker's cache lists for a soname (format: glibc dl-cache.h), of
    64-bit libraries."""
    start = cache.find(_LD_CACHE_MAGIC)
    if start < 0:
        return []
    try:
        (count,) = struct.unpack_from("<I", cache, start + len(_LD_CACHE_MAGIC))
        found = []
        for i in range(min(count, len(cache) // 24)):
            flags, key, value = struct.unpack_from("<III", cache, start + 48 + i * 24)
            if flags >> 8 & 0xFF not in _LD_CACHE_64_BIT:
                continue
            if cache.startswith(name.encode() + b"\0", start + key):
                end = cache.index(b"\0", start + value)
                found.append(os.fsdecode(cache[start + value : end]))
    except (struct.error, ValueError):
        return []
    return found


def installed_libraries(library_path: str = "", root: Path = Path("/")) -> list[Path]:
    """CUDA libraries of this machine, to be probed before any process maps them.

    ``library_path``: an LD_LIBRARY_PATH to look through first; then the linker's cache of
    ``root`` (the agent passes the host's), then the driver's usual places.
    """
    candidates = [
        Path(part) / name for part in library_path.split(":") if part for name in _SONAMES
    ]
    try:
        with (root / "etc/ld.so.cache").open("rb") as file:
            cache = file.read(_MAX_LD_CACHE)
    except OSError:
        cache = b""
    cached = [path for name in _SONAMES for path in ld_cache_paths(cache, name)]
    candidates += [root / path.lstrip("/") for path in (*cached, *_DRIVER_PLACES)]
    found: dict[tuple[int, int], Path] = {}
    for candidate in candidates:
        try:
            status = candidate.stat()
        except OSError:
            continue
        found.setdefault((status.st_dev, status.st_ino), candidate)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class ProbedFile:
    """A file with probes on it. ``calls``: names of the hooked calls it exports."""

    path: str
    library: Library
    calls: tuple[str, ...]
    link: Closable


class LibraryProber:
    """Attaches to the hooked libraries that processes map, each real file once."""

    def __init__(self, attach: Attach, first_file: int = 1) -> None:
        """``first_file``: number of the first file, by which the kernel tells attachments apart."""
        self._attach = attach
        self._first_file = first_file
        self._by_key: dict[FileKey, ProbedFile] = {}
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
        for mapping in maps.executable():
            library = classify(mapping.path) if mapping.file_backed else None
            if library is None:
                continue
            has_cuda = has_cuda or library is not Library.LOADER
            if _seen_as(mapping) not in self._seen:
                self._probe_mapped(pid, mapping, library)
        return has_cuda

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
        found = None
        try:
            found = self._probe_fd(open_mapped(pid, mapping), mapping.path, library)
        except ProcessGone:
            return  # the next process that maps it will show it
        except RemoteDataError as error:
            self._problem(mapping.path, str(error))
        self._seen[_seen_as(mapping)] = found

    def probe_path(self, path: Path) -> None:
        """Probe a file of this machine before any process maps it."""
        library = classify(str(path))
        if library is None:
            self._problem(str(path), "its name is none of a hooked library")
            return
        try:
            # Not blocking: a pipe may stand in the place of a library.
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError as error:
            self._problem(str(path), error_name(error))
            return
        try:
            self._probe_fd(fd, str(path), library)
        except RemoteDataError as error:
            self._problem(str(path), str(error))

    def _probe_fd(self, fd: int, path: str, library: Library) -> ProbedFile:
        """Takes ``fd`` over."""
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise RemoteDataError("it is not a regular file")
            key = real_file_key(fd)
            if key in self._by_key:
                return self._by_key[key]
            if len(self._by_key) >= _MAX_FILES:
                raise RemoteDataError("too many different library files")
            with contextlib.closing(ElfFile.open(os.dup(fd))) as elf:
                offsets = file_offsets(elf, calls_of(library))
            if not offsets:
                raise RemoteDataError("it exports none of the hooked calls")
            # Through the descriptor: the very file that was read, whatever its path is now.
            link = self._attach(f"/proc/self/fd/{fd}", self._targets(offsets))
        except OSError as error:
            raise RemoteDataError(f"attaching failed: {error_name(error)}") from None
        finally:
            os.close(fd)
        probed = self._by_key[key] = ProbedFile(path, library, tuple(offsets), link)
        self.problems.pop(path, None)
        log.debug("probing %d calls of %r", len(offsets), path)
        return probed

    def _targets(self, offsets: dict[str, int]) -> list[Target]:
        file = self._first_file + len(self._by_key)
        targets: dict[int, Target] = {}
        for row, name in sorted((ROWS[name], name) for name in offsets):
            # Several names of one function are one place: the first row of the table speaks for
            # all, and the others would be told as nested calls anyway.
            call, offset = CALLS[row], offsets[name]
            targets.setdefault(offset, Target(offset, call.cookie(row, file), call.needs_return))
        return list(targets.values())

    def _problem(self, path: str, why: str) -> None:
        if path not in self.problems and len(self.problems) < _MAX_PROBLEMS:
            self.problems[path] = why
            text = f"{path}: {why}"
            # a program chooses its paths, and this may go to a terminal
            log.warning("cannot probe %s", text if text.isprintable() else repr(text))

    def close(self) -> None:
        """Detach from everything."""
        for probed in self._by_key.values():
            probed.link.close()
        self._by_key.clear()
        self._seen.clear()


def _seen_as(mapping: Mapping) -> tuple[int, int, str]:
    return mapping.device, mapping.inode, mapping.path


def missing_calls(probed: Iterable[ProbedFile]) -> dict[str, int]:
    """Library → how many of the table's calls none of its probed files exports."""
    exported = {name for file in probed for name in file.calls}
    return {
        library.value: sum(name not in exported for name in calls_of(library))
        for library in Library
    }
