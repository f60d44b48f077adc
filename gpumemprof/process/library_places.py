"""Where CUDA libraries are on a machine, and how they are known by their file names."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from gpumemprof.probe.calls import Library

_NAMES: tuple[tuple[re.Pattern[str], Library], ...] = (
    (re.compile(r"libcuda\.so(\.[\d.]+)?$"), Library.DRIVER),
    # wheels carry copies with a hash in the name: libcudart-9335f6a2.so.12
    (re.compile(r"libcudart([-.][\w.-]*)?\.so(\.[\d.]+)?$"), Library.RUNTIME),
    (re.compile(r"(ld-linux[\w.-]*|ld-[\d.]+|ld-musl-\w+)\.so(\.\d+)?$"), Library.LOADER),
)

# The driver itself (Ubuntu and AKS; Azure Linux and RHEL), a mount point of device plugins, GKE
_DRIVER_PLACES = (
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "/usr/lib/aarch64-linux-gnu/libcuda.so.1",
    "/usr/lib64/libcuda.so.1",
    "/usr/lib/libcuda.so.1",
    "/usr/local/nvidia/lib64/libcuda.so.1",
    "/usr/local/nvidia/lib/libcuda.so.1",
    "/home/kubernetes/bin/nvidia/lib64/libcuda.so.1",
)
_DRIVER_CONTAINER = "/run/nvidia/driver"
"""Where the GPU operator's driver container shows its root to the node."""
_SONAMES = ("libcuda.so.1", "libcudart.so.11.0", "libcudart.so.12", "libcudart.so.13")
_LD_CACHE_MAGIC = b"glibc-ld.so.cache1.1"
_LD_CACHE_64_BIT = frozenset({0x03, 0x0A})
"""Second byte of the flags of an x86-64 or aarch64 library (glibc ldconfig.h); the 32-bit ones
beside it are not probed."""
MAX_LD_CACHE = 16 << 20


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
    ``root``, which is trusted, then the driver's usual places. Of another root, such as the node's
    seen from a container: ``LibraryProber.probe_root``.
    """

    def cache(path: str) -> bytes:
        try:
            with (root / path.lstrip("/")).open("rb") as file:
                return file.read(MAX_LD_CACHE)
        except OSError:
            return b""

    candidates = [
        Path(part) / name for part in library_path.split(":") if part for name in _SONAMES
    ]
    candidates += [root / path.lstrip("/") for path in places(cache)]
    found: dict[tuple[int, int], Path] = {}
    for candidate in candidates:
        try:
            status = candidate.stat()
        except OSError:
            continue
        found.setdefault((status.st_dev, status.st_ino), candidate)
    return list(found.values())


def places(cache: Callable[[str], bytes]) -> Iterator[str]:
    """Where the CUDA libraries of a machine may be. ``cache``: reads a linker's cache by path."""
    for root in ("", _DRIVER_CONTAINER):
        listed = cache(f"{root}/etc/ld.so.cache")
        for name in _SONAMES:
            for path in ld_cache_paths(listed, name):
                yield root + path
        for path in _DRIVER_PLACES:
            yield root + path
