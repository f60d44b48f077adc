"""Structure layouts from BTF, so that bpf/events.h stays the one definition of them.

Format: Documentation/bpf/btf.rst of the kernel. Types are decoded when they are asked for: a
kernel's own BTF has 100,000 of them.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

KERNEL_BTF = Path("/sys/kernel/btf/vmlinux")

_MAGIC = 0xEB9F
_INT, _PTR, _ARRAY, _STRUCT, _UNION, _ENUM, _FWD, _TYPEDEF = 1, 2, 3, 4, 5, 6, 7, 8
_VOLATILE, _CONST, _RESTRICT, _FUNC, _FUNC_PROTO, _VAR, _DATASEC, _FLOAT = range(9, 17)
_DECL_TAG, _TYPE_TAG, _ENUM64 = 17, 18, 19
_FORMATS = {1: "B", 2: "H", 4: "I", 8: "Q"}
_NAMES_OF_TYPES = (_TYPEDEF, _VOLATILE, _CONST, _RESTRICT, _TYPE_TAG)
_ENTRIES = {
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
}
"""Kind → what follows the header of a type, once or once for each member."""
_ONCE = (_INT, _ARRAY, _VAR, _DECL_TAG)
_GLOBAL = 1
"""Linkage of a function."""
_MAX_DEPTH = 32
"""Of types in types, and of names of types."""


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
    """The types of one BTF blob. Raises ValueError for what is not BTF."""

    def __init__(self, data: bytes) -> None:
        try:
            magic, _version, _flags, header = struct.unpack_from("<HBBI", data, 0)
            if magic != _MAGIC:
                raise ValueError("not BTF")
            type_off, type_len, str_off, str_len = struct.unpack_from("<IIII", data, 8)
            if max(type_off + type_len, str_off + str_len) > len(data) - header:
                raise ValueError("BTF that ends early")
            self._raw, self._types_at = data, header + type_off
            self._strings = data[header + str_off : header + str_off + str_len]
            self._data = data[header + type_off : header + type_off + type_len]
            self._positions = self._index()
        except struct.error:
            raise ValueError("BTF that ends early") from None

    def _index(self) -> array[int]:
        """Where each type begins, by its number less one."""
        sizes = {kind: struct.calcsize(entry) for kind, entry in _ENTRIES.items()}
        once = [sizes[kind] if kind in _ONCE else 0 for kind in range(32)]
        each = [0 if kind in _ONCE else sizes.get(kind, 0) for kind in range(32)]
        found = array("I")
        data, position, end = self._data, 0, len(self._data)
        info_of = struct.Struct("<I").unpack_from
        while position < end:
            found.append(position)
            (info,) = info_of(data, position + 4)
            kind = info >> 24 & 0x1F
            position += 12 + once[kind] + (info & 0xFFFF) * each[kind]
        return found

    def _string(self, offset: int) -> str:
        return self._strings[offset : self._strings.index(b"\0", offset)].decode()

    def _type(self, number: int) -> _Type:
        if number == 0:
            return _Type("", 0, 0, ())
        position = self._positions[number - 1]
        name, info, size_or_type = struct.unpack_from("<III", self._data, position)
        kind, members = info >> 24 & 0x1F, info & 0xFFFF
        entry = _ENTRIES.get(kind)
        extra: tuple[tuple[int, ...], ...] = ()
        if entry:
            size = struct.calcsize(entry)
            extra = tuple(
                struct.unpack_from(entry, self._data, position + 12 + i * size)
                for i in range(1 if kind in _ONCE else members)
            )
        return _Type(self._string(name), kind, size_or_type, extra)

    def _number(self, kind: int, name: str) -> int:
        """Of the first type of a kind with a name. KeyError if there is none."""
        wanted = name.encode() + b"\0"
        header_of = struct.Struct("<II").unpack_from
        for number, position in enumerate(self._positions, 1):
            at, info = header_of(self._data, position)
            if info >> 24 & 0x1F == kind and self._strings.startswith(wanted, at):
                return number
        raise KeyError(name)

    def _named(self, kind: int, name: str) -> _Type:
        return self._type(self._number(kind, name))

    def _resolved(self, number: int) -> _Type:
        """A type without typedefs and qualifiers."""
        for _ in range(_MAX_DEPTH):
            found = self._type(number)
            if found.kind not in _NAMES_OF_TYPES:
                return found
            number = found.size_or_type
        raise ValueError("BTF with a name that names itself")

    def _scalar(self, number: int) -> tuple[int, int, bool]:
        """(element size, element count, signed) of a type that is a number or array of numbers."""
        count = 1
        found = self._resolved(number)
        while found.kind == _ARRAY:
            inner, _, length = found.extra[0]
            count *= length
            found = self._resolved(inner)
        if found.kind == _PTR:
            return 8, count, False
        if found.kind == _INT:
            return found.size_or_type, count, bool(found.extra[0][0] >> 24 & 1)
        if found.kind in (_STRUCT, _UNION):
            return 1, count * found.size_or_type, False
        return found.size_or_type, count, False

    def _flatten(
        self, outer: _Type, base: int = 0, prefix: str = "", depth: int = 0
    ) -> Iterator[tuple[str, Field]]:
        if depth > _MAX_DEPTH:
            raise ValueError("BTF with a structure in itself")
        for name, member, bits in outer.extra:
            label, offset = prefix + self._string(name), base + (bits & 0xFFFFFF) // 8
            inner = self._type(member)
            if inner.kind in (_STRUCT, _UNION):
                # members of one without a name are members of the outer one
                below = label + "." if name else prefix
                yield from self._flatten(inner, offset, below, depth + 1)
            if name:
                size, count, signed = self._scalar(member)
                yield label, Field(offset, size, count, signed)

    def layout(self, name: str) -> Layout:
        """The layout of ``struct name``; members of inner structures are ``outer.inner``."""
        found = self._named(_STRUCT, name)
        return Layout(found.size_or_type, dict(self._flatten(found)))

    def offset(self, structure: str, field: str) -> int:
        """Where a field of a structure begins, in bytes. KeyError if there is none."""

        def search(outer: _Type, base: int, depth: int) -> int | None:
            for name, member, bits in outer.extra:
                offset = base + (bits & 0xFFFFFF) // 8
                if self._string(name) == field:
                    return offset
                if not name and depth < _MAX_DEPTH:
                    found = search(self._type(member), offset, depth + 1)
                    if found is not None:
                        return found
            return None

        offset = search(self._named(_STRUCT, structure), 0, 0)
        if offset is None:
            raise KeyError(f"{structure}.{field}")
        return offset

    def enum(self, name: str) -> dict[str, int]:
        """Enumerator name → value of ``enum name``."""
        found = self._named(_ENUM, name)
        return {self._string(item): value for item, value in found.extra}

    def maps(self, name: str) -> dict[str, dict[str, int]]:
        """Maps declared in ``struct name`` (bpf/maps.bpf.h): name → what is declared of it, such as
        ``type`` and ``max_entries``; of ``key`` and ``value`` their sizes, as ``key_size``."""
        found = {}
        for label, member, _ in self._named(_STRUCT, name).extra:
            declared: dict[str, int] = {}
            for item, pointer, _ in self._type(member).extra:
                what = self._string(item)
                target = self._resolved(pointer).size_or_type
                if what in ("key", "value"):
                    if self._resolved(target).kind in (_FWD, _PTR):
                        raise ValueError(f"the {what} of map {self._string(label)} has no size")
                    size, count, _ = self._scalar(target)
                    declared[f"{what}_size"] = size * count
                else:
                    declared[what] = self._type(target).extra[0][2]
            found[self._string(label)] = declared
        return found

    def function(self, name: str) -> int:
        """The number of a function's type, as the kernel wants it. KeyError if there is none."""
        return self._number(_FUNC, name)

    def with_global(self, functions: Iterable[str]) -> bytes:
        """The blob with functions marked as global: the kernel verifies them by themselves."""
        out = bytearray(self._raw)
        for name in functions:
            at = self._types_at + self._positions[self.function(name) - 1] + 4
            struct.pack_into("<I", out, at, _FUNC << 24 | _GLOBAL)
        return bytes(out)
