"""Numbers as DWARF and ``.eh_frame`` write them: LEB128 and encoded pointers.

DWARF 5, section 7.6; Linux Standard Base, "DWARF Extensions" (pointer encodings).
"""

from __future__ import annotations

from gpumemprof.errors import RemoteDataError

MAX_LEB128 = 10
"""Bytes of a 64-bit LEB128 number."""

DW_EH_PE_OMIT = 0xFF
_PCREL, _DATAREL, _INDIRECT = 0x10, 0x30, 0x80
# low nibble -> (bytes, signed); None: LEB128
_FORMATS: dict[int, tuple[int, bool]] = {
    0x0: (8, False), 0x2: (2, False), 0x3: (4, False), 0x4: (8, False),
    0xA: (2, True), 0xB: (4, True), 0xC: (8, True),
}  # fmt: skip
_MASK = (1 << 64) - 1


class Cursor:
    """Reads numbers one after the other from bytes; RemoteDataError where they end."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: bytes, position: int = 0, end: int | None = None) -> None:
        self.data = data
        self.position = position
        self.end = len(data) if end is None else min(end, len(data))

    @property
    def more(self) -> bool:
        """Whether bytes are left."""
        return self.position < self.end

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        start = self.position
        if count < 0 or start + count > self.end:
            raise RemoteDataError("call-frame information ends early")
        self.position = start + count
        return self.data[start : start + count]

    def u8(self) -> int:
        """The next byte."""
        if self.position >= self.end:
            raise RemoteDataError("call-frame information ends early")
        value = self.data[self.position]
        self.position += 1
        return value

    def number(self, size: int, *, signed: bool = False) -> int:
        """A little-endian number of ``size`` bytes."""
        return int.from_bytes(self.take(size), "little", signed=signed)

    def uleb(self) -> int:
        """An unsigned LEB128 number."""
        value = 0
        for shift in range(0, 7 * MAX_LEB128, 7):
            byte = self.u8()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & _MASK
        raise RemoteDataError("a LEB128 number has more than 64 bits")

    def sleb(self) -> int:
        """A signed LEB128 number."""
        value = 0
        for shift in range(0, 7 * MAX_LEB128, 7):
            byte = self.u8()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if byte & 0x40:
                    value -= 1 << (shift + 7)
                return (value + (1 << 63) & _MASK) - (1 << 63)
        raise RemoteDataError("a LEB128 number has more than 64 bits")

    def string(self) -> bytes:
        """NUL-terminated bytes."""
        end = self.data.find(b"\0", self.position, self.end)
        if end < 0:
            raise RemoteDataError("call-frame information ends early")
        value = self.data[self.position : end]
        self.position = end + 1
        return value

    def pointer(self, encoding: int, here: int, data_base: int = 0) -> int:
        """A pointer in a DW_EH_PE_* encoding.

        ``here``: virtual address of the pointer itself; ``data_base``: of ``.eh_frame_hdr``, for
        pointers relative to it. Indirect pointers and those relative to text or a function are
        not used by any linker for code and are refused.
        """
        form = encoding & 0x0F
        if form == 0x1:
            value = self.uleb()
        elif form == 0x9:
            value = self.sleb()
        elif form in _FORMATS:
            size, signed = _FORMATS[form]
            value = self.number(size, signed=signed)
        else:
            raise RemoteDataError(f"pointer encoding {encoding:#x}")
        relative = encoding & 0x70
        if encoding & _INDIRECT or relative not in (0, _PCREL, _DATAREL):
            raise RemoteDataError(f"pointer encoding {encoding:#x}")
        if relative == _PCREL:
            value += here
        elif relative == _DATAREL:
            value += data_base
        return value & _MASK

    def skip_pointer(self, encoding: int) -> None:
        """Step over a pointer whose value does not matter (the personality routine)."""
        form = encoding & 0x0F
        if encoding == DW_EH_PE_OMIT:
            return
        if form in (0x1, 0x9):
            self.sleb()
        elif form in _FORMATS:
            self.take(_FORMATS[form][0])
        else:
            raise RemoteDataError(f"pointer encoding {encoding:#x}")
