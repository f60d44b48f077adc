"""Maps and programs through bpf(2), without a library (layouts: linux/bpf.h)."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import platform
import resource
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from gpumemprof.errors import ProbeError
from gpumemprof.probe import instructions
from gpumemprof.probe.kernel import kernel_version
from gpumemprof.probe.programs import Kind
from gpumemprof.probe.syscalls import Descriptor, bpf

_MAP_CREATE, _PROG_LOAD, _PROG_TEST_RUN, _BTF_LOAD = 0, 5, 10, 18
_FUNC_INFO = 8
"""Bytes of struct bpf_func_info."""
_LICENSE = ctypes.create_string_buffer(b"Dual BSD/GPL")
_LOG_SIZES = (1 << 20, 16 << 20)
_LOG_LINES = 60
_MEMLOCK_IGNORED_SINCE = (5, 11)

MAP_TYPE_ARRAY, MAP_TYPE_PROGRAM_ARRAY = 2, 3
_NAME = 15


@dataclass(frozen=True, slots=True)
class Types:
    """What the kernel is told of the functions of a program: the types, by descriptor, and struct
    bpf_func_info for each (where it begins, in instructions; the number of its type)."""

    fd: int = 0
    functions: bytes = b""


_NO_TYPES = Types()


def create_map(
    name: str, kind: int, key_size: int, value_size: int, max_entries: int, flags: int = 0
) -> Descriptor:
    """A new map; ``kind`` is enum bpf_map_type. Raises ProbeError with the kernel's reason."""
    attr = struct.pack(
        "<7I16s", kind, key_size, value_size, max_entries, flags, 0, 0, name.encode()[:_NAME]
    )
    try:
        return Descriptor(bpf(_MAP_CREATE, attr))
    except OSError as error:
        raise ProbeError(f"the kernel refused the map {name}: {error.strerror}") from None


def load_types(btf: bytes) -> Descriptor:
    """Types, in the kernel. Raises ProbeError with its reason."""
    data = ctypes.create_string_buffer(btf, len(btf))
    try:
        return Descriptor(
            bpf(_BTF_LOAD, struct.pack("<QQII", ctypes.addressof(data), 0, len(btf), 0))
        )
    except OSError as error:
        raise ProbeError(f"the kernel refused the programs' types: {error.strerror}") from None


def load_program(name: str, kind: Kind, program: bytes, types: Types = _NO_TYPES) -> Descriptor:
    """A new program. Raises ProbeError with the last lines of the verifier's log."""
    code = ctypes.create_string_buffer(program, len(program))
    functions = ctypes.create_string_buffer(types.functions, len(types.functions) or 1)

    def attempt(log: ctypes.Array[ctypes.c_char] | None) -> Descriptor:
        attr = struct.pack(
            "<IIQQIIQII16sIIIIQI",
            kind.type, len(program) // instructions.SIZE, ctypes.addressof(code),
            ctypes.addressof(_LICENSE), 1 if log else 0, len(log) if log else 0,
            ctypes.addressof(log) if log else 0, 0, 0, name.encode()[:_NAME], 0,
            kind.attach_type, types.fd, _FUNC_INFO if types.functions else 0,
            ctypes.addressof(functions) if types.functions else 0,
            len(types.functions) // _FUNC_INFO,
        )  # fmt: skip
        return Descriptor(bpf(_PROG_LOAD, attr))

    try:
        return attempt(None)
    except OSError as error:
        reason = error
    for size in _LOG_SIZES:
        log = ctypes.create_string_buffer(size)
        try:
            return attempt(log)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                reason = error
                break
    lines = log.value.decode(errors="replace").splitlines()[-_LOG_LINES:]
    telling = [line.strip() for line in lines if line.strip() and not line.startswith("processed")]
    raise ProbeError(
        f"the kernel refused the program {name}: {'; '.join(telling[-3:]) or reason.strerror}"
    )


def run_program(fd: int) -> None:
    """Run a raw tracepoint program once, in this thread (Linux 5.10). Raises OSError."""
    bpf(_PROG_TEST_RUN, struct.pack("<I", fd))


@contextlib.contextmanager
def locked_memory() -> Iterator[None]:
    """Before Linux 5.11 maps and programs count as locked memory: allow as much as can be allowed.
    Programs that are started later have the limit as it was."""
    if kernel_version(platform.release()) >= _MEMLOCK_IGNORED_SINCE:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    with contextlib.suppress(OSError, ValueError):  # not privileged enough: it may do without
        resource.setrlimit(
            resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        )
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_MEMLOCK, before)
