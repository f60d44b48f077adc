"""Joins what bcc compiled, function by function, to programs that the kernel takes."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from gpumemprof.probe import instructions
from gpumemprof.probe.btf import Btf
from gpumemprof.probe.loading import Types, load_types
from gpumemprof.probe.syscalls import Descriptor

_NUMBERS = "function"
"""The enumeration that tells them (bpf/python.bpf.h)."""


class Linker:
    """``functions``: name → instructions, of programs and of what they call. The functions of
    ``enum function`` are verified by themselves."""

    def __init__(self, functions: Mapping[str, bytes], btf: Btf) -> None:
        self._functions, self._btf = functions, btf
        self._names = {
            number: name.removeprefix("FUNCTION_").lower()
            for name, number in btf.enum(_NUMBERS).items()
        }

    def types(self) -> Descriptor:
        """The types, in the kernel. Raises ProbeError."""
        return load_types(self._btf.with_global(self._names.values()))

    def program(self, name: str, types: Descriptor) -> tuple[bytes, Types]:
        """A program with all that it calls, and what the kernel is told of its functions."""
        names, parts = [name], [self._functions[name]]
        places: dict[int, int] = {}
        for part in parts:  # grows meanwhile
            for number in instructions.called(part, self._names):
                if number not in places:
                    places[number] = len(parts)
                    names.append(self._names[number])
                    parts.append(self._functions[self._names[number]])
        about, start = b"", 0
        for function, part in zip(names, parts, strict=True):
            about += struct.pack("<II", start, self._btf.function(function))
            start += len(part) // instructions.SIZE
        return instructions.joined(parts, places), Types(types.fd, about)
