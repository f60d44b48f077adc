"""Structure layouts from BTF, so that bpf/events.h stays the one definition of them.

Format: Documentation/bpf/btf.rst of the kernel. Only what the compiled object contains is read:
integers, arrays, structures, typedefs, enumerations.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_MAGIC = 0xEB9F
_INT, _PTR, _ARRAY, _STRUCT, _UNION, _ENUM, _FWD, _TYPEDEF = 1, 2, 3, 4, 5, 6, 7, 8
_VOLATILE, _CONST, _RESTRICT, _FUNC, _FUNC_PROTO, _VAR, _DATASEC, _FLOAT = range(9, 17)
_DECL_TAG, _TYPE_TAG, _ENUM64 = 17, 18, 19
_FORMATS = {1: "B", 2: "H", 4: "I", 8: "Q"}


@dataclass(frozen=True, slots=True)
class Field:
    """``count`` elements of ``size`` bytes at ``offset`` of a structure."""

    offset: int
    size: int
    count: int
    signed: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """A structure: its size in bytes and its fields by name."""

    size: int
    fields: Mapping[str, Field]

    def unpacker(self, *names: str) -> struct.Struct:
        """A Struct that unpacks the named fields in ascending order of offset, skipping others."""
        text, position = "<", 0
        for name in names:
            field = self.fields[name]
            if field.offset < position:
                raise ValueError(f"field {name} is out of order")
            text += f"{field.offset - position}x" if field.offset > position else ""
            code = _FORMATS[field.size]
            text += f"{field.count}{code.lower() if field.signed else code}"
            position = field.offset + field.size * field.count
        return struct.Struct(text)

    def pack(self, values: Mapping[str, int]) -> bytes:
        """The structure with scalar fields set, others zero. KeyError on unknown names."""
        out = bytearray(self.size)
        for name, value in values.items():
            field = self.fields[name]
            out[field.offset : field.offset + field.size] = value.to_bytes(
                field.size, "little", signed=value < 0
            )
        return bytes(out)


@dataclass(frozen=True, slots=True)
class _Type:
    name: str
    kind: int
    size_or_type: int
    extra: tuple[tuple[int, ...], ...]


class Btf:
    """The types of one BTF blob."""

    def __init__(self, data: bytes) -> None:
        magic, _version, _flags, header = struct.unpack_from("<HBBI", data, 0)
        if magic != _MAGIC:
            raise ValueError("not BTF")
        type_off, type_len, str_off, str_len = struct.unpack_from("<IIII", data, 8)
        self._strings = data[header + str_off : header + str_off + str_len]
        section = data[header + type_off : header + type_off + type_len]
        self._types = [_Type("", 0, 0, ()), *self._parse(section)]

    def _string(self, offset: int) -> str:
        return self._strings[offset : self._strings.index(b"\0", offset)].decode()

    def _parse(self, data: bytes) -> Iterator[_Type]:
        position = 0
        while position < len(data):
            name, info, size_or_type = struct.unpack_from("<III", data, position)
            position += 12
            kind, vlen = (info >> 24) & 0x1F, info & 0xFFFF
            entry = {
                _INT: "<I",
                _ARRAY: "<III",
                _STRUCT: "<III",
                _UNION: "<III",
                _ENUM: "<II",
                _FUNC_PROTO: "<II",
                _VAR: "<I",
                _DATASEC: "<III",
                _DECL_TAG: "<I",
                _ENUM64: "<III",
            }.get(kind)
            repeat = 1 if kind in (_INT, _ARRAY, _VAR, _DECL_TAG) else vlen
            extra: tuple[tuple[int, ...], ...] = ()
            if entry:
                size = struct.calcsize(entry)
                extra = tuple(
                    struct.unpack_from(entry, data, position + i * size) for i in range(repeat)
                )
                position += size * repeat
            yield _Type(self._string(name), kind, size_or_type, extra)

    def _scalar(self, index: int) -> tuple[int, int, bool]:
        """(element size, element count, signed) of a type that is a number or array of numbers."""
        count = 1
        while True:
            found = self._types[index]
            if found.kind in (_TYPEDEF, _VOLATILE, _CONST, _RESTRICT, _TYPE_TAG):
                index = found.size_or_type
            elif found.kind == _ARRAY:
                index, _, length = found.extra[0]
                count *= length
            elif found.kind == _PTR:
                return 8, count, False
            elif found.kind == _INT:
                return found.size_or_type, count, bool(found.extra[0][0] >> 24 & 1)
            elif found.kind in (_STRUCT, _UNION):
                return 1, count * found.size_or_type, False
            else:
                return found.size_or_type, count, False

    def _flatten(
        self, struct_type: _Type, base: int = 0, prefix: str = ""
    ) -> Iterator[tuple[str, Field]]:
        for name, member, bits in struct_type.extra:
            label, offset = prefix + self._string(name), base + (bits & 0xFFFFFF) // 8
            inner = self._types[member]
            if inner.kind == _STRUCT:
                yield from self._flatten(inner, offset, label + ".")
            size, count, signed = self._scalar(member)
            yield label, Field(offset, size, count, signed)

    def layout(self, name: str) -> Layout:
        """The layout of ``struct name``; members of inner structures are ``outer.inner``."""
        for found in self._types:
            if found.kind == _STRUCT and found.name == name:
                return Layout(found.size_or_type, dict(self._flatten(found)))
        raise KeyError(name)

    def enum(self, name: str) -> dict[str, int]:
        """Enumerator name → value of ``enum name``."""
        for found in self._types:
            if found.kind == _ENUM and found.name == name:
                return {self._string(item): value for item, value in found.extra}
        raise KeyError(name)
