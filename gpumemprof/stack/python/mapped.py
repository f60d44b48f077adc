"""The file behind a mapping of a process, and where the process has it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from gpumemprof.errors import RemoteDataError
from gpumemprof.process.elf import PF_X, PT_LOAD, ElfFile
from gpumemprof.process.mapped_file import open_mapped
from gpumemprof.process.maps import Mapping

_PAGE = 4096


@contextlib.contextmanager
def opened(pid: int, mapping: Mapping, *, allow_fuse: bool = True) -> Iterator[ElfFile]:
    """The ELF file that is mapped. Raises RemoteDataError, ProcessGone."""
    elf = ElfFile.open(open_mapped(pid, mapping, allow_fuse=allow_fuse))
    try:
        yield elf
    finally:
        elf.close()


def load_bias(elf: ElfFile, mapping: Mapping) -> int:
    """What the process adds to the file's addresses, from one of its code mappings."""
    for segment in elf.segments:
        if segment.type != PT_LOAD or not segment.flags & PF_X:
            continue
        first = segment.offset - segment.offset % _PAGE
        if first <= mapping.offset < segment.offset + segment.file_size:
            return mapping.start - mapping.offset + segment.offset - segment.vaddr
    raise RemoteDataError(f"{mapping.path} has no code at offset {mapping.offset:#x}")
