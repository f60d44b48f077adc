"""What tests of probing libraries share: linker caches, a kernel that notes what is attached, and
processes that map a library."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from fakes_cuda import FAKES

from gpumemprof.probe.attach import Target
from gpumemprof.process import maps as process_maps
from gpumemprof.process.maps import Maps

RUNTIME = FAKES / "libcudart.so.12"
DRIVER = FAKES / "libcuda.so.1"
X86_64, I386 = 0x0303, 0x0003
_MOST = 16 << 20


def cache(*entries: tuple[str, int, str], before: bytes = b"") -> bytes:
    """A cache as ldconfig writes it, of (soname, flags, path)."""
    strings, table = b"", b""
    start = 48 + 24 * len(entries)
    for name, flags, path in entries:
        key = start + len(strings)
        strings += name.encode() + b"\0"
        value = start + len(strings)
        strings += os.fsencode(path) + b"\0"
        table += struct.pack("<iIIIQ", flags, key, value, 0, 0)
    header = struct.pack("<20sIIB3xI12x", b"glibc-ld.so.cache1.1", len(entries), len(strings), 2, 0)
    return before + header + table + strings


class Kernel:
    """Where probes are attached."""

    def __init__(self) -> None:
        self.attached: list[tuple[bytes, Sequence[Target]]] = []
        """The first bytes of each file, and where it was probed."""
        self.closed = 0
        self.error = 0

    def attach(self, path: str, targets: Sequence[Target]) -> Kernel:
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        with Path(path).open("rb") as file:
            self.attached.append((file.read(_MOST), targets))
        return self

    def close(self) -> None:
        self.closed += 1


class Mapping:
    """A process that maps a library, until it is ended."""

    def __init__(self, library: Path) -> None:
        script = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print(flush=True); input()"
        environment = {**os.environ, "LD_LIBRARY_PATH": str(FAKES)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", script, str(library)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
        )  # fmt: skip
        assert self._process.stdout
        self._process.stdout.readline()
        self.pid = self._process.pid
        self.maps: Maps = process_maps.read(self.pid)

    def end(self) -> None:
        self._process.communicate(b"\n")
