"""The few BPF instructions that are put together here (Documentation/bpf/standardization/
instruction-set.rst of the kernel)."""

from __future__ import annotations

import struct
from collections.abc import Container, Iterator, Mapping, Sequence

R0, R1, R2, R3, R6, R7, R10 = 0, 1, 2, 3, 6, 7, 10

SIZE = 8
_LOAD_64 = 0x18
_PSEUDO_MAP_FD = 1
_PSEUDO_CALL = 1
_CALL = 0x85

MAP_LOOKUP, TAIL_CALL, GET_CURRENT_TASK, PROBE_READ_KERNEL = 1, 12, 35, 113
"""Numbers of helpers (enum bpf_func_id)."""


def _one(code: int, target: int = 0, source: int = 0, offset: int = 0, value: int = 0) -> bytes:
    return struct.pack("<BBhi", code, source << 4 | target, offset, value)


def move(target: int, source: int) -> bytes:
    """Register to register."""
    return _one(0xBF, target, source)


def move_value(target: int, value: int) -> bytes:
    """A number of 32 bits, with its sign, to a register."""
    return _one(0xB7, target, value=value)


def add_value(target: int, value: int) -> bytes:
    """Add a number to a register."""
    return _one(0x07, target, value=value)


def load_value(target: int, value: int) -> bytes:
    """A number of 64 bits to a register; two instructions."""
    low, high = value & 0xFFFFFFFF, value >> 32
    first = struct.pack("<BBhI", _LOAD_64, target, 0, low)
    return first + struct.pack("<BBhI", 0, 0, 0, high)


def load_map(target: int, fd: int) -> bytes:
    """A map to a register; two instructions."""
    return _one(_LOAD_64, target, _PSEUDO_MAP_FD, value=fd) + _one(0)


def load(target: int, source: int, offset: int) -> bytes:
    """The 64 bits at the address in ``source`` plus ``offset``."""
    return _one(0x79, target, source, offset)


def store(target: int, offset: int, source: int) -> bytes:
    """64 bits to the address in ``target`` plus ``offset``."""
    return _one(0x7B, target, source, offset)


def store_value32(target: int, offset: int, value: int) -> bytes:
    """A number of 32 bits to the address in ``target`` plus ``offset``."""
    return _one(0x62, target, 0, offset, value)


def skip_unless_zero(register: int, count: int) -> bytes:
    """Go on ``count`` instructions later when the register is not zero."""
    return _one(0x55, register, offset=count)


def call(helper: int) -> bytes:
    """Call a helper with the registers 1 to 5."""
    return _one(_CALL, value=helper)


def leave() -> bytes:
    """Return register 0."""
    return _one(0x95)


def _positions(program: bytes | bytearray) -> Iterator[tuple[int, int, int, int]]:
    """(position in bytes, code, source register, value) of each instruction."""
    position = 0
    while position < len(program):
        code, registers, _, value = struct.unpack_from("<BBhi", program, position)
        yield position, code, registers >> 4, value
        position += 2 * SIZE if code == _LOAD_64 else SIZE


def with_maps(program: bytes, fds: Mapping[int, int]) -> bytes:
    """The program with the numbers that stand for maps replaced by their descriptors."""
    out = bytearray(program)
    for position, code, source, value in _positions(program):
        if code == _LOAD_64 and source == _PSEUDO_MAP_FD:
            struct.pack_into("<i", out, position + 4, fds[value])
    return bytes(out)


def called(program: bytes, numbers: Container[int]) -> list[int]:
    """Which of the numbers stand in the place of helpers that are called."""
    return [
        value
        for _, code, source, value in _positions(program)
        if code == _CALL and source == 0 and value in numbers
    ]


def joined(parts: Sequence[bytes], places: Mapping[int, int]) -> bytes:
    """One program of its functions, one after the other; ``places``: number that stands in a call →
    which of the parts is called."""
    starts = [0]
    for part in parts:
        starts.append(starts[-1] + len(part))
    out = bytearray(b"".join(parts))
    for position, code, source, value in _positions(out):
        if code == _CALL and source == 0 and value in places:
            distance = (starts[places[value]] - position) // SIZE - 1
            struct.pack_into("<BBhi", out, position, _CALL, _PSEUDO_CALL << 4, 0, distance)
    return bytes(out)
