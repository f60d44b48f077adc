"""bpf(2) and perf_event_open(2), through ctypes: links, maps, file descriptors.

Libraries of older distributions do not know uprobe-multi links; the kernel's interface is small
and stable, so links are made here (layouts: linux/bpf.h, linux/perf_event.h).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import struct
from pathlib import Path

from gpumemprof.errors import ProbeError

_SYSCALLS = {
    "x86_64": {"bpf": 321, "perf_event_open": 298},
    "aarch64": {"bpf": 280, "perf_event_open": 241},
}

_MAP_LOOKUP, _MAP_UPDATE, _MAP_DELETE = 1, 2, 3
_RAW_TRACEPOINT_OPEN = 17
_LINK_CREATE = 28

BPF_TRACE_UPROBE_MULTI = 48
BPF_TRACE_UPROBE_SESSION = 57
_BPF_PERF_EVENT = 41
_UPROBE_MULTI_RETURN = 1

_PERF_FLAG_FD_CLOEXEC = 8
_PERF_ENABLE = 0x2400
_PERF_SET_BPF = 0x40042408
_PERF_ATTR_SIZE = 136
_ATTR_SIZE = 128
_UPROBE_PMU = Path("/sys/bus/event_source/devices/uprobe")

_libc = ctypes.CDLL(None, use_errno=True)


def _number(name: str) -> int:
    try:
        return _SYSCALLS[platform.machine()][name]
    except KeyError:
        raise ProbeError(f"no {name} system call known for {platform.machine()}") from None


def bpf(command: int, attr: bytes) -> int:
    """One bpf(2) call. Raises OSError with the kernel's error."""
    buffer = ctypes.create_string_buffer(attr.ljust(_ATTR_SIZE, b"\0"), _ATTR_SIZE)
    result = _libc.syscall(_number("bpf"), command, buffer, _ATTR_SIZE)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(result)


class Descriptor:
    """An owned file descriptor of a link: closing it detaches."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @property
    def fd(self) -> int:
        """The number; -1 once closed."""
        return self._fd

    def close(self) -> None:
        """Detach. Further calls do nothing."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            with contextlib.suppress(OSError):
                os.close(fd)


def uprobe_multi_link(
    program_fd: int,
    path: str,
    offsets: list[int],
    cookies: list[int],
    *,
    attach_type: int = BPF_TRACE_UPROBE_MULTI,
    returns: bool = False,
) -> Descriptor:
    """Attach one program to many file offsets of one file at once (kernel 6.6; sessions 6.13)."""
    count = len(offsets)
    offset_array = (ctypes.c_uint64 * count)(*offsets)
    cookie_array = (ctypes.c_uint64 * count)(*cookies)
    path_buffer = ctypes.create_string_buffer(os.fsencode(path))
    attr = struct.pack(
        "<IIIIQQQQIII",
        program_fd,
        0,
        attach_type,
        0,
        ctypes.addressof(path_buffer),
        ctypes.addressof(offset_array),
        0,
        ctypes.addressof(cookie_array),
        count,
        _UPROBE_MULTI_RETURN if returns else 0,
        0,
    )
    return Descriptor(bpf(_LINK_CREATE, attr))


def raw_tracepoint(program_fd: int, tracepoint: str) -> Descriptor:
    """Attach a program to a tracepoint, such as ``sched_process_exit``."""
    name = ctypes.create_string_buffer(tracepoint.encode())
    return Descriptor(
        bpf(_RAW_TRACEPOINT_OPEN, struct.pack("<QI", ctypes.addressof(name), program_fd))
    )


def perf_link(program_fd: int, event: Descriptor, cookie: int) -> Descriptor:
    """Run a program with a cookie at each hit of a perf event (kernel 5.15)."""
    return Descriptor(
        bpf(_LINK_CREATE, struct.pack("<IIIIQ", program_fd, event.fd, _BPF_PERF_EVENT, 0, cookie))
    )


def perf_set_program(program_fd: int, event: Descriptor) -> None:
    """Run a program at each hit of a perf event, as long as that is open."""
    for request, argument in ((_PERF_SET_BPF, program_fd), (_PERF_ENABLE, 0)):
        if _libc.ioctl(event.fd, ctypes.c_ulong(request), ctypes.c_ulong(argument)) < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))


def uprobe_event(path: str, offset: int, *, returns: bool = False) -> Descriptor:
    """A perf event for one offset of a file: hit by every process that comes there, or returns
    from the function that begins there."""
    try:
        pmu = int((_UPROBE_PMU / "type").read_text())
        retprobe = (_UPROBE_PMU / "format/retprobe").read_text()
    except (OSError, ValueError) as error:
        raise ProbeError(f"this kernel has no uprobe perf events: {error}") from None
    bit = int(retprobe.strip().removeprefix("config:"))
    path_buffer = ctypes.create_string_buffer(os.fsencode(path))
    attr = bytearray(_PERF_ATTR_SIZE)
    struct.pack_into("<IIQ", attr, 0, pmu, _PERF_ATTR_SIZE, (1 << bit) if returns else 0)
    # config1 and config2 of struct perf_event_attr
    struct.pack_into("<QQ", attr, 56, ctypes.addressof(path_buffer), offset)
    buffer = ctypes.create_string_buffer(bytes(attr), _PERF_ATTR_SIZE)
    fd = _libc.syscall(
        _number("perf_event_open"), buffer, -1, 0, -1, ctypes.c_ulong(_PERF_FLAG_FD_CLOEXEC)
    )
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return Descriptor(int(fd))


class BpfMap:
    """Look-ups and updates of one map by raw keys and values."""

    def __init__(self, fd: int, key_size: int, value_size: int) -> None:
        self.fd = fd
        self._key = ctypes.create_string_buffer(key_size)
        self._value = ctypes.create_string_buffer(value_size)
        key, value = ctypes.addressof(self._key), ctypes.addressof(self._value)
        self._attr = struct.pack("<IIQQQ", fd, 0, key, value, 0)
        # The kernel refuses a deletion with anything behind the key.
        self._attr_of_key = struct.pack("<IIQQQ", fd, 0, key, 0, 0)

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or None."""
        self._key.raw = key
        try:
            bpf(_MAP_LOOKUP, self._attr)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        return self._value.raw

    def put(self, key: bytes, value: bytes) -> None:
        """Set the value of a key. OSError E2BIG when the map is full."""
        self._key.raw = key
        self._value.raw = value
        bpf(_MAP_UPDATE, self._attr)

    def drop(self, key: bytes) -> bool:
        """Remove a key; whether it was there."""
        self._key.raw = key
        try:
            bpf(_MAP_DELETE, self._attr_of_key)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return False
            raise
        return True
