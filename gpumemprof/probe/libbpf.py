"""The loader on libbpf: open an object, choose its programs, size its maps, load it.

Works with libbpf 0.5 (Ubuntu 22.04) to 1.x: only functions that all of them have are used, and
return values are read both ways (error pointers before 1.0, NULL and errno since).
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from gpumemprof.errors import ProbeError
from gpumemprof.probe import programs
from gpumemprof.probe.btf import KERNEL_BTF, Btf
from gpumemprof.probe.kernel_side import KernelSide, MapInfo, MapSettings
from gpumemprof.probe.programs import Kind

OBJECT_PATH = Path(__file__).with_name("gpumemprof.bpf.o")
"""What `make build` compiles."""
_PRINT_DEBUG = 2
_MAX_LOG = 400
"""Lines of libbpf's and the verifier's log that are kept for the error message."""

_PRINT_FN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)

_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "bpf_object__open_mem": (
        ctypes.c_void_p,
        [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p],
    ),
    "bpf_object__load": (ctypes.c_int, [ctypes.c_void_p]),
    "bpf_object__close": (None, [ctypes.c_void_p]),
    "bpf_object__find_program_by_name": (ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]),
    "bpf_object__find_map_by_name": (ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]),
    "bpf_object__btf": (ctypes.c_void_p, [ctypes.c_void_p]),
    "bpf_program__set_type": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int]),
    "bpf_program__set_autoload": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_bool]),
    "bpf_program__set_expected_attach_type": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int]),
    "bpf_program__fd": (ctypes.c_int, [ctypes.c_void_p]),
    "bpf_map__fd": (ctypes.c_int, [ctypes.c_void_p]),
    "bpf_map__set_max_entries": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint32]),
    "bpf_map__set_map_flags": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint32]),
    "bpf_map__max_entries": (ctypes.c_uint32, [ctypes.c_void_p]),
    "bpf_map__key_size": (ctypes.c_uint32, [ctypes.c_void_p]),
    "bpf_map__value_size": (ctypes.c_uint32, [ctypes.c_void_p]),
    "libbpf_get_error": (ctypes.c_long, [ctypes.c_void_p]),
    "libbpf_major_version": (ctypes.c_uint32, []),
    "libbpf_minor_version": (ctypes.c_uint32, []),
}


def _open_library(path: str | None) -> ctypes.CDLL:
    names = [path] if path else ["libbpf.so.1", "libbpf.so.0", ctypes.util.find_library("bpf")]
    for name in names:
        if not name:
            continue
        try:
            return ctypes.CDLL(name, use_errno=True)
        except OSError:
            continue
    raise ProbeError("libbpf is not installed (Debian: libbpf1, Ubuntu 22.04: libbpf0)")


class Libbpf:
    """The library itself. ``GPUMEMPROF_LIBBPF`` names another file than the system's."""

    def __init__(self, path: str | None = None) -> None:
        self.lib = _open_library(path or os.environ.get("GPUMEMPROF_LIBBPF"))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(self.lib, name, None)
            if function is not None:  # the version functions came with 0.6
                function.restype, function.argtypes = result, arguments
        raw = getattr(self.lib, "btf__raw_data", None) or self.lib.btf__get_raw_data
        raw.restype = ctypes.c_void_p
        raw.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint32)]
        self.raw_btf: Callable[[int, object], int | None] = raw
        self.log: list[str] = []
        self._libc = ctypes.CDLL(None)
        self._printer = _PRINT_FN(self._print)
        self.lib.libbpf_set_print(self._printer)

    @property
    def version(self) -> str:
        """For example "1.1"; "0.5 or older" where the library does not say."""
        if not hasattr(self.lib, "libbpf_major_version"):
            return "0.5 or older"
        return f"{self.lib.libbpf_major_version()}.{self.lib.libbpf_minor_version()}"

    @property
    def name(self) -> str:
        """For example "libbpf 1.1"."""
        return f"libbpf {self.version}"

    def prepare(self) -> None:
        """As Loader."""
        if not KERNEL_BTF.exists():
            raise ProbeError(f"this kernel has no BTF ({KERNEL_BTF}) to fit the programs to")

    def load(self, programs: Mapping[str, Kind], maps: Mapping[str, MapSettings]) -> KernelSide:
        """Load programs of the compiled object (as Loader)."""
        loaded = Object(self, OBJECT_PATH)
        try:
            loaded.load(programs, maps)
        except BaseException:
            loaded.close()
            raise
        return loaded

    def _print(self, level: int, template: bytes, arguments: int | None) -> int:
        if level >= _PRINT_DEBUG:
            return 0
        # A verifier's log comes in one piece, of up to 16 MiB; its last lines say what is wrong.
        text = ctypes.c_char_p()
        if self._libc.vasprintf(ctypes.byref(text), template, ctypes.c_void_p(arguments)) < 0:
            return 0
        lines = (text.value or b"").decode(errors="replace").splitlines()
        self._libc.free(text)
        self.log.extend(lines[-_MAX_LOG:])
        del self.log[:-_MAX_LOG]
        return 0

    def checked(self, pointer: int | None, what: str) -> int:
        """``pointer`` if it is one, in either convention. Raises ProbeError."""
        if not pointer or self.lib.libbpf_get_error(pointer):
            raise ProbeError(f"{what}{self.reason()}")
        return pointer

    def reason(self) -> str:
        """The last lines of libbpf's log that say why, for an error message."""
        lines = [line.strip() for line in self.log if line.strip()]
        telling = [line for line in lines if not line.startswith(("-- END", "processed"))]
        return f": {'; '.join(telling[-3:])}" if telling else ""


class Object:
    """The programs and maps of an object file (KernelSide)."""

    def __init__(self, libbpf: Libbpf, path: Path) -> None:
        self._libbpf, self._lib = libbpf, libbpf.lib
        try:
            self._image = path.read_bytes()
        except OSError as error:
            raise ProbeError(
                f"the compiled BPF object is missing ({error}); run make build"
            ) from None
        libbpf.log.clear()
        self._pointer = libbpf.checked(
            self._lib.bpf_object__open_mem(self._image, len(self._image), None),
            f"libbpf cannot open {path.name}",
        )
        self.btf = Btf(self._types())

    def _program(self, name: str) -> int:
        pointer = self._lib.bpf_object__find_program_by_name(self._pointer, name.encode())
        return self._libbpf.checked(pointer, f"no BPF program {name}")

    def _map(self, name: str) -> int:
        pointer = self._lib.bpf_object__find_map_by_name(self._pointer, name.encode())
        return self._libbpf.checked(pointer, f"no BPF map {name}")

    def _types(self) -> bytes:
        pointer = self._libbpf.checked(
            self._lib.bpf_object__btf(self._pointer), "object has no BTF"
        )
        size = ctypes.c_uint32()
        data = self._libbpf.raw_btf(pointer, ctypes.byref(size))
        return ctypes.string_at(self._libbpf.checked(data, "object has no BTF"), size.value)

    def load(self, kinds: Mapping[str, Kind], maps: Mapping[str, MapSettings]) -> None:
        """Once: as ``Libbpf.load``."""
        for name in programs.ALL:
            pointer = self._program(name)
            kind = kinds.get(name)
            if kind is None:
                self._lib.bpf_program__set_autoload(pointer, False)
            else:
                self._lib.bpf_program__set_type(pointer, kind.type)
                self._lib.bpf_program__set_expected_attach_type(pointer, kind.attach_type)
        for name, settings in maps.items():
            pointer = self._map(name)
            self._lib.bpf_map__set_max_entries(pointer, settings.max_entries)
            if settings.preallocated:
                self._lib.bpf_map__set_map_flags(pointer, 0)
        self._libbpf.log.clear()
        if self._lib.bpf_object__load(self._pointer):
            raise ProbeError(f"the kernel refused the BPF programs{self._libbpf.reason()}")

    def program(self, name: str) -> int:
        """As KernelSide."""
        return int(self._lib.bpf_program__fd(self._program(name)))

    def map(self, name: str) -> MapInfo:
        """As KernelSide."""
        pointer = self._map(name)
        return MapInfo(
            int(self._lib.bpf_map__fd(pointer)),
            int(self._lib.bpf_map__key_size(pointer)),
            int(self._lib.bpf_map__value_size(pointer)),
            int(self._lib.bpf_map__max_entries(pointer)),
        )

    def close(self) -> None:
        """Free everything; programs live on while links hold them."""
        if self._pointer:
            self._lib.bpf_object__close(self._pointer)
            self._pointer = 0
