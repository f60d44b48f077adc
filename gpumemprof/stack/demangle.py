"""Turn linker names of C++ and Rust into names a reader knows, cut to what matters."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import re

from gpumemprof.stack.demangled_text import shortened

MAX_MANGLED = 16 << 10
_MAX_RUNTIME = 1024
"""Characters that libstdc++ takes (it refuses longer names since its version of 2018)."""
CACHE = 16_384
_CLONE = re.compile(r"(\.(part|isra|constprop|cold|lto_priv|llvm|warm|hot)(\.\d+)?)+$")
"""Parts and copies of a function that compilers make."""
_RUST_LEGACY_HASH = re.compile(r"17h[0-9a-f]{16}E(\.|$)")


@functools.lru_cache(maxsize=CACHE)
def demangle(name: str, *, short: bool = True) -> str:
    """The readable form of a linker symbol; ``name`` itself where there is none.

    ``short``: without arguments, return type and template arguments, as
    ``at::native::empty_cuda``. Never raises for what the name holds.
    """
    if len(name) > MAX_MANGLED:
        return name
    base, _, version = name.partition("@")  # symbol versions: malloc@@GLIBC_2.2.5
    if version:
        name = base
    if short:
        name = _CLONE.sub("", name)
    if name.startswith("_R") or (name.startswith("_ZN") and _RUST_LEGACY_HASH.search(name)):
        text = _rust(name)
        if text is not None:
            return text
    if name.startswith("_Z"):
        text = _cpp(name)
        if text is not None:
            return shortened(text) if short else text
    return name


def _rust(name: str) -> str | None:
    # The package is optional at run time: without it Rust names stay as they are.
    try:
        from rust_demangler import demangle as rust_demangle
    except ImportError:
        return None
    try:
        text = rust_demangle(name)
    except Exception:  # it raises many kinds for what it does not know
        return None
    return re.sub(r"::h[0-9a-f]{16}$", "", str(text))


def _cpp(name: str) -> str | None:
    runtime = _runtime()
    if runtime is None or len(name) > _MAX_RUNTIME:
        return None
    status = ctypes.c_int()
    address = runtime.__cxa_demangle(name.encode(), None, None, ctypes.byref(status))
    if not address:
        return None
    try:
        return ctypes.string_at(address).decode("utf-8", "replace")
    finally:
        _free(address)


@functools.cache
def _runtime() -> ctypes.CDLL | None:
    """The C++ runtime library, None where there is none."""
    for library in ("libstdc++.so.6", "libc++abi.so.1"):
        try:
            runtime = ctypes.CDLL(library)
            runtime.__cxa_demangle.restype = ctypes.c_void_p
            runtime.__cxa_demangle.argtypes = [
                ctypes.c_char_p,
                ctypes.c_void_p,
                ctypes.c_void_p,
                ctypes.POINTER(ctypes.c_int),
            ]
        except (OSError, AttributeError):
            continue
        return runtime
    return None


def _free(address: int) -> None:
    libc = ctypes.CDLL(None)
    libc.free.argtypes = [ctypes.c_void_p]
    libc.free.restype = None
    libc.free(address)
