"""The parts that a compiler split off a function, found without symbols.

With profile-guided optimisation the interpreter loop is cut in two, and the part in
``.text.unlikely`` may be the larger one (Debian's 3.13 and 3.14: 80 of 82 KB; every call goes
through it). Its only name, ``_PyEval_EvalFrameDefault.cold``, is local, so it is gone from a
stripped file. But it has an entry of its own in ``.eh_frame``, and it is the only code outside
a function that jumps into the middle of it, and that the function jumps into the middle of.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator
from itertools import islice

from gpumemprof.errors import RemoteDataError
from gpumemprof.process.elf import ElfFile
from gpumemprof.stack.cfi import CallFrameInfo

MAX_FUNCTION = 1 << 20
"""Bytes; the interpreter loop has 35,000 to 80,000."""
MAX_JUMPS = 20_000
"""A hostile file may consist of nothing but jumps; the loop has some thousands."""
_JUMP = re.compile(rb"(?=(\x0f[\x80-\x8f]|\xe9)(.{4}))", re.DOTALL)  # jcc rel32, jmp rel32
_MIN_JUMPS = 2  # one jump may be chance: bytes inside other instructions look like jumps
_MAX_CANDIDATES = 8


def split_off_parts(elf: ElfFile, start: int, end: int) -> list[tuple[int, int]]:
    """Ranges [start, end) of code, in the file's addresses, that belong to a function's range.

    x86-64. Empty if there are none, or no call-frame information to find them by.
    """
    try:
        cfi = CallFrameInfo(elf)
        towards = Counter(
            part
            for target in islice(_jumps(elf, start, end), MAX_JUMPS)
            if not start <= target < end
            and (part := _range_at(cfi, target)) is not None
            and part[0] != target  # a jump to the start of a function is a call in tail position
        )
        found = []
        for part, count in towards.most_common(_MAX_CANDIDATES):
            if count < _MIN_JUMPS:
                break
            back = sum(start < target < end for target in _jumps(elf, *part))
            if back >= _MIN_JUMPS:
                found.append(part)
        return sorted(found)
    except RemoteDataError:
        return []


def _range_at(cfi: CallFrameInfo, vaddr: int) -> tuple[int, int] | None:
    found = cfi.fde_at(vaddr)
    return None if found is None else (found[0].start, found[0].end)


def _jumps(elf: ElfFile, start: int, end: int) -> Iterator[int]:
    """Targets of everything in a range that looks like a jump with a 32-bit distance."""
    if not 0 < end - start <= MAX_FUNCTION:
        return
    code = elf.read_vaddr(start, end - start)
    for match in _JUMP.finditer(code):
        (distance,) = struct.unpack("<i", match[2])
        yield start + match.end(2) + distance
