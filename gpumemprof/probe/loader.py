"""The interface to the kernel side: load, attach to offsets of a file, maps, rings, close."""

from __future__ import annotations

import contextlib
import platform
import select
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpumemprof.errors import ProbeError
from gpumemprof.probe import syscalls
from gpumemprof.probe.attach import ATTACH_TYPES, AttachMode, Closable, Target, attach, error_name
from gpumemprof.probe.btf import Btf, Layout
from gpumemprof.probe.kernel import too_old
from gpumemprof.probe.libbpf import Libbpf, Object
from gpumemprof.probe.ringbuf import RingBuffer
from gpumemprof.probe.syscalls import BpfMap

OBJECT_PATH = Path(__file__).with_name("gpumemprof.bpf.o")
_SCRATCH_PER_CPU = 2  # bpf/maps.bpf.h


_PROGRAMS = {
    AttachMode.SESSION: ("session",),
    AttachMode.MULTI: ("multi_entry", "multi_return"),
    AttachMode.SINGLE: ("single_entry", "single_return"),
}
_EMPTY_PROGRAMS = {
    AttachMode.SESSION: ("empty_session",),
    AttachMode.MULTI: ("empty_entry", "empty_return"),
    AttachMode.SINGLE: ("empty_entry", "empty_return"),
}
_LIFECYCLE = ("on_fork", "on_exec", "on_exit")
_ALL_PROGRAMS = {
    name for table in (_PROGRAMS, _EMPTY_PROGRAMS) for row in table.values() for name in row
}


@dataclass(frozen=True, slots=True)
class Options:
    """Sizes and switches of the kernel side. Bytes; ring sizes are powers of two of whole pages."""

    events_ring: int = 4 << 20
    stacks_ring: int = 16 << 20
    stack_bytes: int = 32 << 10
    record_all: bool = False
    follow: bool = True
    mode: AttachMode | None = None
    """None: the best that this kernel takes."""
    empty: bool = False
    """Attach programs that do nothing, to measure what a bare probe costs."""


class Probes:
    """The loaded kernel side. Use as a context manager: leaving detaches and frees everything."""

    def __init__(self, options: Options | None = None, libbpf: Libbpf | None = None) -> None:
        self.options = options or Options()
        self.libbpf = libbpf or Libbpf()
        self.refused: dict[AttachMode, str] = {}
        """Ways to attach that this kernel refused, and why."""
        self._stack = contextlib.ExitStack()
        self.mode, self._object = self._load_best()
        try:
            self._set_up()
        except BaseException:
            self._stack.close()
            raise

    def _load_best(self) -> tuple[AttachMode, Object]:
        modes = [self.options.mode] if self.options.mode else list(AttachMode)
        for mode in modes:
            try:
                return mode, self._load(mode)
            except ProbeError as error:
                self.refused[mode] = str(error)
        reasons = "; ".join(f"{mode.value}: {why}" for mode, why in self.refused.items())
        what = too_old(platform.release()) or "no way to attach works on this kernel"
        raise ProbeError(f"{what} ({reasons})")

    def _load(self, mode: AttachMode) -> Object:
        loaded = Object(self.libbpf, OBJECT_PATH)
        try:
            wanted = (_EMPTY_PROGRAMS if self.options.empty else _PROGRAMS)[mode]
            for name in _ALL_PROGRAMS:
                if name in wanted:
                    loaded.program(name).as_uprobe(ATTACH_TYPES[mode])
                else:
                    loaded.program(name).skip()
            loaded.resize("events", self.options.events_ring)
            loaded.resize("stacks", self.options.stacks_ring)
            loaded.resize("scratches", _possible_cpus() * _SCRATCH_PER_CPU)
            loaded.load()
            self._try(loaded, mode, wanted)
        except BaseException:
            loaded.close()
            raise
        return loaded

    def _try(self, loaded: Object, mode: AttachMode, wanted: Sequence[str]) -> None:
        """Kernels load what they cannot attach: try it on a file that nobody runs."""
        probe = Target(offset=0, cookie=0, needs_return=mode is not AttachMode.SINGLE)
        try:
            fds = [loaded.program(name).fd for name in wanted]
            attach(mode, fds, str(OBJECT_PATH), [probe]).close()
        except OSError as error:
            raise ProbeError(f"attaching fails with {error_name(error)}") from None

    def _set_up(self) -> None:
        self._stack.callback(self._object.close)
        btf = Btf(self._object.btf())
        self._btf = btf
        self.settings_layout = btf.layout("settings")
        self.python_layout = btf.layout("python_target")
        self.counter_names = sorted(
            (value, name) for name, value in btf.enum("counter").items() if name != "COUNT_MAX"
        )
        self._settings = self._map("settings")
        self._processes = self._map("processes")
        self._python = self._map("python_targets")
        fd, key, _, _ = self._object.map_sizes("counters")
        self._cpus = _possible_cpus()
        self._counters = BpfMap(fd, key, 8 * self._cpus)
        self._apply_settings()
        self.events = self._ring("events")
        self.stacks = self._ring("stacks")
        self._poll = select.epoll()
        self._stack.callback(self._poll.close)
        for ring in (self.events, self.stacks):
            self._poll.register(ring.fd, select.EPOLLIN | select.EPOLLET)
        programs = (_EMPTY_PROGRAMS if self.options.empty else _PROGRAMS)[self.mode]
        self._program_fds = [self._object.program(name).fd for name in programs]
        self.lifecycle_error: str | None = None
        """Why forks, execs and exits are not told by the kernel; None when they are."""
        for name in _LIFECYCLE:
            try:
                link = syscalls.raw_tracepoint(self._object.program(name).fd)
            except OSError as error:
                self.lifecycle_error = f"{name}: {error_name(error)}"
            else:
                self._stack.callback(link.close)

    def _map(self, name: str) -> BpfMap:
        fd, key, value, _ = self._object.map_sizes(name)
        return BpfMap(fd, key, value)

    def _ring(self, name: str) -> RingBuffer:
        fd, _, _, size = self._object.map_sizes(name)
        ring = RingBuffer(fd, size)
        self._stack.callback(ring.close)
        return ring

    def layout(self, name: str) -> Layout:
        """The layout of a structure of bpf/events.h."""
        return self._btf.layout(name)

    def pause(self) -> None:
        """Make the programs do nothing from now on, as long as they stay attached."""
        self._apply_settings(paused=True)

    def _apply_settings(self, *, paused: bool = False, idle: bool = False) -> None:
        values = {
            "paused": int(paused),
            "idle": int(idle),
            "record_all": int(self.options.record_all),
            "follow": int(self.options.follow),
            "stack_bytes": self.options.stack_bytes,
            "events_wake": self.options.events_ring // 4,
            "stacks_wake": self.options.stacks_ring // 4,
        }
        self._settings.put(_u32(0), self.settings_layout.pack(values))

    def attach(self, path: str, targets: Sequence[Target]) -> Closable:
        """Probe file offsets of a file. Raises OSError with the kernel's reason; then nothing
        stays attached."""
        return attach(self.mode, self._program_fds, path, targets)

    def set_process(self, pid: int, on: bool) -> None:
        """Switch the recording of a process. ProbeError when the kernel's table is full."""
        try:
            self._processes.put(_u32(pid), _u32(int(on)))
        except OSError as error:
            raise ProbeError(f"cannot record process {pid}: {error.strerror}") from None

    def forget_process(self, pid: int) -> None:
        """Remove a process from the kernel's tables."""
        self._processes.drop(_u32(pid))
        self._python.drop(_u32(pid))

    def set_python(self, pid: int, target: Mapping[str, int] | None) -> None:
        """Tell where the interpreter of a process keeps its frames (fields of python_target)."""
        if target is None:
            self._python.drop(_u32(pid))
        else:
            self._python.put(_u32(pid), self.python_layout.pack(target))

    def wait(self, seconds: float, *, idle: bool = False) -> None:
        """Until the kernel wakes us, at most ``seconds``; ``idle``: also for the first record."""
        if idle:
            self._apply_settings(idle=True)
            if self.events.waiting or self.stacks.waiting:
                return
        self._poll.poll(seconds)

    def counters(self) -> dict[str, int]:
        """What happened in the kernel since loading, by ``enum counter`` without its prefix."""
        totals = {}
        for index, name in self.counter_names:
            raw = self._counters.get(_u32(index)) or b""
            total = sum(struct.unpack(f"<{len(raw) // 8}Q", raw))
            totals[name.removeprefix("COUNT_").lower()] = total
        return totals

    def close(self) -> None:
        """Detach and free."""
        self._stack.close()

    def __enter__(self) -> Probes:
        """Nothing to do: it is loaded."""
        return self

    def __exit__(self, *_: object) -> None:
        """Detach and free."""
        self.close()


def _possible_cpus() -> int:
    """Processors the kernel may ever bring up: the length of per-processor values."""
    text = Path("/sys/devices/system/cpu/possible").read_text()
    return max(int(part) for part in text.strip().replace(",", "-").split("-")) + 1


def _u32(value: int) -> bytes:
    return value.to_bytes(4, "little")
