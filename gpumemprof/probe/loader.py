"""The interface to the kernel side: load, attach to offsets of a file, maps, rings, close."""

from __future__ import annotations

import contextlib
import errno
import logging
import platform
import select
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpumemprof.errors import ProbeError
from gpumemprof.probe import programs, syscalls
from gpumemprof.probe.attach import Attacher, AttachMode, Closable, Target, error_name
from gpumemprof.probe.bcc import Bcc
from gpumemprof.probe.btf import Layout
from gpumemprof.probe.kernel import kernel_version, too_old
from gpumemprof.probe.kernel_side import KernelSide, Loader, LoaderChoice, MapSettings
from gpumemprof.probe.libbpf import Libbpf
from gpumemprof.probe.loading import locked_memory
from gpumemprof.probe.ringbuf import RingBuffer
from gpumemprof.probe.syscalls import BpfMap
from gpumemprof.probe.wrappers import Wrappers

log = logging.getLogger(__name__)

_RETURNS_TRIED = (AttachMode.SESSION, AttachMode.MULTI)
"""Detaching is quick there."""
_SCRATCH_PER_CPU = 2  # bpf/maps.bpf.h
_GROWING_MAPS = (6, 1)
"""Since when tracing programs may have maps that grow."""
_LOADERS: Mapping[LoaderChoice, Callable[[], Loader]] = {
    LoaderChoice.LIBBPF: Libbpf,
    LoaderChoice.BCC: Bcc,
}
"""The best first."""


@dataclass(frozen=True, slots=True)
class Options:
    """Sizes and switches of the kernel side. Bytes; ring sizes are powers of two of whole pages."""

    events_ring: int = 4 << 20
    stacks_ring: int = 16 << 20
    stack_bytes: int = 32 << 10
    record_all: bool = False
    follow: bool = True
    loader: LoaderChoice = LoaderChoice.AUTO
    mode: AttachMode | None = None
    """None: the best that this kernel takes."""
    empty: bool = False
    """Attach programs that do nothing, to measure what a bare probe costs."""


class Probes:
    """The loaded kernel side. Use as a context manager: leaving detaches and frees everything."""

    def __init__(self, options: Options | None = None) -> None:
        """Raises ProbeError with the reason of each loader and each way to attach."""
        self.options = options or Options()
        self.refused: dict[AttachMode, str] = {}
        """Ways to attach that this kernel refused, and why."""
        self.loaders_refused: dict[LoaderChoice, str] = {}
        """Loaders that did not work here, and why."""
        self._stack = contextlib.ExitStack()
        with locked_memory():
            self.loader, self.mode, self._kernel = self._load_best()
            """Which loader, with its version; how probes hang on libraries."""
            log.info("loaded by %s, attaching by %s", self.loader, self.mode.value)
            try:
                self._set_up()
            except BaseException:
                self._stack.close()
                raise

    def _load_best(self) -> tuple[str, AttachMode, KernelSide]:
        choice = self.options.loader
        for candidate, begin in _LOADERS.items():
            if choice not in (LoaderChoice.AUTO, candidate):
                continue
            try:
                loader = begin()
                mode, loaded = self._load_by(loader)
            except ProbeError as error:
                self.loaders_refused[candidate] = str(error)
            else:
                return loader.name, mode, loaded
        reasons = "; ".join(f"{one.value}: {why}" for one, why in self.loaders_refused.items())
        what = too_old(platform.release()) or "this kernel cannot record"
        raise ProbeError(f"{what} ({reasons})")

    def _load_by(self, loader: Loader) -> tuple[AttachMode, KernelSide]:
        self.refused.clear()
        loader.prepare()
        for mode in [self.options.mode] if self.options.mode else list(AttachMode):
            try:
                return mode, self._load(loader, mode)
            except ProbeError as error:
                self.refused[mode] = str(error)
        raise ProbeError("; ".join(f"{mode.value}: {why}" for mode, why in self.refused.items()))

    def _load(self, loader: Loader, mode: AttachMode) -> KernelSide:
        loaded = loader.load(
            programs.wanted(mode, empty=self.options.empty),
            {
                "events": MapSettings(self.options.events_ring),
                "stacks": MapSettings(self.options.stacks_ring),
                "scratches": MapSettings(_possible_cpus() * _SCRATCH_PER_CPU),
                **_preallocated(kernel_version(platform.release())),
            },
        )
        try:
            self._try(loaded, mode)
        except BaseException:
            loaded.close()
            raise
        return loaded

    def _try(self, loaded: KernelSide, mode: AttachMode) -> None:
        """Kernels load what they cannot attach: try it on a file that nobody runs."""
        probe = Target(offset=0, cookie=0, needs_return=mode in _RETURNS_TRIED)
        try:
            with contextlib.closing(self._attacher(loaded, mode)) as attacher:
                attacher.attach(str(Path(__file__)), [probe]).close()
        except OSError as error:
            raise ProbeError(f"attaching fails with {error_name(error)}") from None

    def _attacher(self, loaded: KernelSide, mode: AttachMode) -> Attacher:
        names = programs.of_calls(mode, empty=self.options.empty)
        fds = [loaded.program(name) for name in names]
        if mode is not AttachMode.WRAPPED:
            return Attacher(mode, fds)
        return Attacher(mode, wrappers=Wrappers(fds[0], fds[1], loaded.map("cookies").fd))

    def _set_up(self) -> None:
        self._stack.callback(self._kernel.close)
        btf = self._kernel.btf
        self.settings_layout = btf.layout("settings")
        self.python_layout = btf.layout("python_target")
        self.counter_names = sorted(
            (value, name) for name, value in btf.enum("counter").items() if name != "COUNT_MAX"
        )
        self._settings = self._map("settings")
        self._processes = self._map("processes")
        self._python = self._map("python_targets")
        counters = self._kernel.map("counters")
        self._counters = BpfMap(counters.fd, counters.key_size, 8 * _possible_cpus())
        self._apply_settings()
        self.events = self._ring("events")
        self.stacks = self._ring("stacks")
        self._poll = select.epoll()
        self._stack.callback(self._poll.close)
        for ring in (self.events, self.stacks):
            self._poll.register(ring.fd, select.EPOLLIN | select.EPOLLET)
        self._attached = self._attacher(self._kernel, self.mode)
        self._stack.callback(self._attached.close)
        self.lifecycle_error: str | None = None
        """Why forks, execs and exits are not told by the kernel; None when they are."""
        for name, tracepoint in programs.LIFECYCLE.items():
            try:
                link = syscalls.raw_tracepoint(self._kernel.program(name), tracepoint)
            except OSError as error:
                self.lifecycle_error = f"{name}: {error_name(error)}"
            else:
                self._stack.callback(link.close)

    def _map(self, name: str) -> BpfMap:
        found = self._kernel.map(name)
        return BpfMap(found.fd, found.key_size, found.value_size)

    def _ring(self, name: str) -> RingBuffer:
        found = self._kernel.map(name)
        ring = RingBuffer(found.fd, found.max_entries)
        self._stack.callback(ring.close)
        return ring

    def layout(self, name: str) -> Layout:
        """The layout of a structure of bpf/events.h."""
        return self._kernel.btf.layout(name)

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
        try:
            with locked_memory():
                return self._attached.attach(path, targets)
        except ProbeError as error:  # of a program for a single place
            raise OSError(errno.EINVAL, str(error)) from None

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


def _preallocated(kernel: tuple[int, int]) -> dict[str, MapSettings]:
    """Older kernels warn of tracing programs with maps that grow, and one that is set to stop at a
    warning would. There these maps have all their memory from the start, and so fewer entries."""
    if kernel >= _GROWING_MAPS:
        return {}
    return {"threads": MapSettings(8192, True), "python_targets": MapSettings(4096, True)}


def _possible_cpus() -> int:
    """Processors the kernel may ever bring up: the length of per-processor values."""
    text = Path("/sys/devices/system/cpu/possible").read_text()
    return max(int(part) for part in text.strip().replace(",", "-").split("-")) + 1


def _u32(value: int) -> bytes:
    return value.to_bytes(4, "little")
