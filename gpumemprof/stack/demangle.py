"""Turn linker names of C++ and Rust into names a reader knows, cut to what matters."""

from __future__ import annotations

import ctypes
import functools
import re

from gpumemprof.stack import itanium, rust_names
from gpumemprof.stack.demangled_text import shortened

MAX_MANGLED = 16 << 10
CACHE = 16_384
_MAX_RUNTIME = 1024
"""Characters that libstdc++ takes: it refuses longer names."""
_SAFE_REFERENCES = 8
_CLONE = re.compile(r"(\.(part|isra|constprop|cold|lto_priv|llvm|warm|hot)(\.\w+)?)+$")
"""Parts and copies of a function that compilers make."""


@functools.lru_cache(maxsize=CACHE)
def demangle(name: str, *, short: bool = True) -> str:
    """The readable form of a linker symbol; ``name`` itself where there is none.

    ``short``: without arguments, return type and template arguments, as
    ``at::native::empty_cuda``. Never raises, and never takes long, whatever the name holds.
    """
    if len(name) > MAX_MANGLED:
        return name
    plain = name.partition("@")[0]  # symbol versions: malloc@@GLIBC_2.2.5
    if short:
        plain = _CLONE.sub("", plain)
    if plain.startswith("_R"):
        text = _rust_v0(plain, short)
    elif rust_names.is_legacy(plain):
        text = _rust_legacy(plain)
    elif plain.startswith("_Z"):
        text = _cpp(plain, short)
    else:
        text = plain
    return text or name


def _rust_v0(name: str, short: bool) -> str:
    try:
        return rust_names.read_v0(name, short=short)
    except rust_names.NotRustError:
        return name


def _rust_legacy(name: str) -> str:
    try:
        return rust_names.read_legacy(name)
    except rust_names.NotRustError:
        return name


def _cpp(name: str, short: bool) -> str:
    try:
        read = itanium.read(name)
    except itanium.NotReadableError:
        # Without knowing what its back references add up to, only a name with few is expanded.
        if len(re.findall(r"[ST][0-9A-Z]*_", name)) > _SAFE_REFERENCES:
            return name
        full = runtime_demangle(name)
        if full is None:
            return name
        return shortened(full) if short else full
    if short:
        return read.short
    full = runtime_demangle(name) if read.cost <= itanium.MAX_COST else None
    return read.short if full is None else full


def runtime_demangle(name: str) -> str | None:
    """The full text by the C++ runtime, None where it has none to give or is not there."""
    runtime = _runtime()
    if runtime is None or len(name) > _MAX_RUNTIME or not name.isascii():
        return None
    status = ctypes.c_int()
    address = runtime.__cxa_demangle(name.encode(), None, None, ctypes.byref(status))
    if not address:
        return None
    try:
        return ctypes.string_at(address).decode("utf-8", "replace")
    finally:
        _c_library().free(address)


@functools.cache
def _runtime() -> ctypes.CDLL | None:
    """The C++ runtime library, None where there is none."""
    for library in ("libstdc++.so.6", "libc++abi.so.1"):
        try:
            runtime = ctypes.CDLL(library)
            demangler = runtime.__cxa_demangle
        except (OSError, AttributeError):
            continue
        demangler.restype = ctypes.c_void_p
        demangler.argtypes = [
            ctypes.c_char_p,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.POINTER(ctypes.c_int),
        ]
        return runtime
    return None


@functools.cache
def _c_library() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.free.argtypes = [ctypes.c_void_p]
    libc.free.restype = None
    return libc
