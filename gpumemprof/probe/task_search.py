"""Finds fields of the kernel's task_struct by values that are known of one's own threads, for
kernels without BTF. What is not found in exactly one place is an error, never a guess."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpumemprof.errors import ProbeError
from gpumemprof.probe import instructions as do
from gpumemprof.probe.loading import MAP_TYPE_ARRAY, create_map, load_program, run_program
from gpumemprof.probe.programs import TYPE_RAW_TRACEPOINT, Kind
from gpumemprof.probe.syscalls import BpfMap

WINDOW = 16384
"""Bytes of a task_struct that are looked at; it has 9 to 13 KiB."""
_PIECE = 256
_KERNEL_HALF = 0xFF00_0000_0000_0000
"""Where the kernel's addresses begin with page tables of five levels; with four it is higher."""
_ARCH_PRCTL, _ARCH_GET_FS = 158, 0x1003
_FIRST_THREADS, _MORE_THREADS = 3, 2
_NANOSECONDS = 10**9


@dataclass(frozen=True, slots=True)
class Sample:
    """What a thread knows of itself, and its task_struct. ``started``: clock ticks since boot."""

    tid: int
    pid: int
    started: int
    fs_base: int
    task: int
    memory: bytes


class KernelMemory:
    """Reads the kernel's memory by a small BPF program. Raises ProbeError."""

    def __init__(self) -> None:
        self._map = create_map("peek", MAP_TYPE_ARRAY, 4, 8 + WINDOW, 1)
        self._values = BpfMap(self._map.fd, 4, 8 + WINDOW)
        self._program = load_program("peek", Kind(TYPE_RAW_TRACEPOINT), _peek(self._map.fd))

    def read(self, address: int = 0) -> tuple[int, bytes]:
        """The address and ``WINDOW`` bytes there, zeros where there is nothing; 0 for the
        task_struct of this thread."""
        zero = bytes(4)
        self._values.put(zero, struct.pack("<Q", address).ljust(8 + WINDOW, b"\0"))
        run_program(self._program.fd)
        value = self._values.get(zero) or b""
        return struct.unpack_from("<Q", value)[0], value[8:]


def _peek(map_fd: int) -> bytes:
    """The program: the map's value begins with an address, and what is there is put behind it."""
    address, value = do.R7, do.R6
    parts = [
        do.store_value32(do.R10, -4, 0),
        do.move(do.R2, do.R10),
        do.add_value(do.R2, -4),
        do.load_map(do.R1, map_fd),
        do.call(do.MAP_LOOKUP),
        do.skip_unless_zero(do.R0, 2),
        do.move_value(do.R0, 0),
        do.leave(),
        do.move(value, do.R0),
        do.load(address, value, 0),
        do.skip_unless_zero(address, 3),
        do.call(do.GET_CURRENT_TASK),
        do.move(address, do.R0),
        do.store(value, 0, address),
    ]
    for at in range(0, WINDOW, _PIECE):
        parts += [
            do.move(do.R1, value),
            do.add_value(do.R1, 8 + at),
            do.move_value(do.R2, _PIECE),
            do.move(do.R3, address),
            do.add_value(do.R3, at),
            do.call(do.PROBE_READ_KERNEL),
        ]
    return b"".join((*parts, do.move_value(do.R0, 0), do.leave()))


def look() -> dict[str, int]:
    """Bytes from the begin of task_struct: ``pid``, ``tgid``, ``group_leader``, ``signal``,
    ``start_boottime``, ``fsbase``; ``live`` from that of signal_struct. Only in a process that has
    no other threads. Raises ProbeError for what is not sure, OSError for what the kernel refuses.
    """
    if platform.machine() != "x86_64":
        raise ProbeError(f"not on {platform.machine()}")
    memory = KernelMemory()
    with _Threads(memory) as threads:
        samples = [sample(memory), *threads.start(_FIRST_THREADS)]
        found = search(samples)
        places = signal_places(samples, len(samples), lambda at: memory.read(at)[1])
        more = [*samples, *threads.start(_MORE_THREADS)]
        places &= signal_places(more, len(more), lambda at: memory.read(at)[1])
        found["signal"] = _only("signal", places)
        if search(more) != {name: at for name, at in found.items() if name != "signal"}:
            raise ProbeError("two looks at the kernel's structures differ")
    return {**found, "live": 4}


def sample(memory: KernelMemory) -> Sample:
    """Of this thread."""
    tid = threading.get_native_id()
    stat = Path(f"/proc/self/task/{tid}/stat").read_text()
    started = int(stat.rsplit(") ", 1)[1].split()[19])
    fs_base = ctypes.c_uint64()
    ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ARCH_GET_FS, ctypes.byref(fs_base))
    return Sample(tid, os.getpid(), started, fs_base.value, *memory.read())


def search(samples: Sequence[Sample], ticks: int = 0) -> dict[str, int]:
    """Fields whose values are known; the first sample is the main thread's. ``ticks``: a second,
    by default this machine's. Raises ProbeError."""
    second = ticks or os.sysconf("SC_CLK_TCK")
    leader = samples[0].task
    pids = _everywhere(samples, lambda one: _found(one, struct.pack("<ii", one.tid, one.pid), 4))
    leaders = _everywhere(samples, lambda one: _found(one, struct.pack("<Q", leader), 8))
    bases = _everywhere(samples, lambda one: _found(one, struct.pack("<Q", one.fs_base), 8))
    started = _everywhere(
        samples,
        lambda one: {
            at for at, value in _words(one) if value * second // _NANOSECONDS == one.started
        },
    )
    # The time since boot without sleep stands right before it, and is the same if there was none.
    if len(started) == 2 and max(started) - min(started) == 8:
        started.discard(min(started))
    pid = _only("pid", pids)
    return {
        "pid": pid,
        "tgid": pid + 4,
        "group_leader": _only("group_leader", leaders),
        "start_boottime": _only("start_boottime", started),
        "fsbase": _only("fsbase", bases),
    }


def signal_places(
    samples: Sequence[Sample], threads: int, read: Callable[[int], bytes]
) -> set[int]:
    """Where pointers stand, the same for all threads, to what begins like a signal_struct does:
    with a count of references, one of threads that live, and one of threads, all of them equal."""
    begin = struct.pack("<iii", threads, threads, threads)
    shared = _everywhere(samples, lambda one: {*_words(one)})
    pointers = {at: value for at, value in shared if value >= _KERNEL_HALF and value % 8 == 0}
    return {at for at, value in pointers.items() if read(value).startswith(begin)}


def _words(one: Sample) -> Iterator[tuple[int, int]]:
    for number, (value,) in enumerate(struct.iter_unpack("<Q", one.memory)):
        yield number * 8, value


def _found(one: Sample, value: bytes, step: int) -> set[int]:
    places, at = set(), one.memory.find(value)
    while at >= 0:
        if at % step == 0:
            places.add(at)
        at = one.memory.find(value, at + 1)
    return places


def _everywhere(samples: Sequence[Sample], places: Callable[[Sample], set]) -> set:  # type: ignore[type-arg]
    """What all samples have."""
    return set.intersection(*(places(one) for one in samples))


def _only(what: str, places: set[int]) -> int:
    if len(places) != 1:
        where = f"in {len(places)} places" if places else "nowhere"
        raise ProbeError(f"{what} is found {where}")
    return next(iter(places))


class _Threads:
    """Threads that take a sample of themselves and stay until the end."""

    def __init__(self, memory: KernelMemory) -> None:
        self._memory = memory
        self._end = threading.Event()
        self._all: list[threading.Thread] = []

    def start(self, count: int) -> list[Sample]:
        samples: list[Sample] = []
        for _ in range(count):
            done = threading.Event()

            def look(done: threading.Event = done) -> None:
                try:
                    samples.append(sample(self._memory))
                finally:
                    done.set()
                    self._end.wait()

            thread = threading.Thread(target=look, daemon=True)
            thread.start()
            self._all.append(thread)
            done.wait()
        if len(samples) != count:
            raise ProbeError("a thread could not look at itself")
        return samples

    def __enter__(self) -> _Threads:
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._all:
            thread.join()
