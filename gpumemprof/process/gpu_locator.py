"""Gathers what tells on which GPU a process's memory is; ``visible_gpus`` decides."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from gpumemprof.errors import GpumemprofError, RemoteDataError
from gpumemprof.process import procfs
from gpumemprof.process.gpu import Gpu
from gpumemprof.process.identity import ProcessId
from gpumemprof.process.mapped_file import PROC, open_directory_in_root
from gpumemprof.process.mounts import inspect
from gpumemprof.process.patience import Patience
from gpumemprof.process.trust import OWN, Trust
from gpumemprof.process.visible_gpus import MAX_VALUE, VARIABLES, GpuFacts, gpu_of

REFRESH_SECONDS = 5.0
"""How long what NVML says of all processes is used."""
SOONEST_SECONDS = 0.5
"""How long it is used even if a process calls a GPU that it was not seen to use before."""
MAX_ENVIRONMENT = 1 << 20
_NVIDIA_MAJOR = 195
"""Of ``/dev/nvidiaN`` (Linux, Documentation/admin-guide/devices.txt)."""


class Driver(Protocol):
    """What is asked of NVML."""

    def gpus(self) -> list[Gpu]:
        """All GPUs of the machine."""
        ...

    def process_gpus(self) -> dict[int, frozenset[int]]:
        """Pid → indices of the GPUs on which it has a context."""
        ...


class GpuLocator:
    """Remembers of each process what was found, until ``forget``."""

    def __init__(
        self,
        nvml: Driver,
        *,
        trust: Trust = OWN,
        proc: Path = PROC,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nvml = nvml
        self._allow_fuse = trust.allow_fuse
        self._patience = Patience(trust.patience)
        self._proc = proc
        self._clock = clock
        self._asked = -REFRESH_SECONDS
        self._node: list[Gpu] = []
        self._used: dict[int, frozenset[int]] = {}
        self._facts: dict[ProcessId, tuple[frozenset[int] | None, Mapping[str, str] | None]] = {}
        self._known: dict[ProcessId, dict[int, tuple[str, str]]] = {}
        self._first_use: dict[ProcessId, dict[int, float]] = {}

    def locate(
        self, process: ProcessId, ordinal: int, ordinals: Iterable[int] = ()
    ) -> tuple[str, str]:
        """(index on the node, UUID) of the GPU that a process calls ``ordinal``; ("", "") if that
        is not sure (yet). ``ordinals``: all that the process was seen to use."""
        known = self._known.setdefault(process, {})
        found = known.get(ordinal)
        if found is not None:
            return found
        first = self._first_use.setdefault(process, {}).setdefault(ordinal, self._clock())
        self._refresh(first)
        if self._asked < first and len(self._node) > 1:
            return "", ""  # its context there may be newer than what the driver said
        nodes, variables = self._gathered(process)
        seen = frozenset(number for number in ordinals if number >= 0)
        facts = GpuFacts(self._used.get(process.pid, frozenset()), seen, nodes, variables)
        gpu = gpu_of(ordinal, self._node, facts)
        if gpu is None:
            return "", ""
        place = str(gpu.index), gpu.uuid
        if ordinal >= 0:  # which one an ordinal is never changes; what is unknown may be another
            known[ordinal] = place
        return place

    def forget(self, process: ProcessId) -> None:
        """The process ended."""
        self._known.pop(process, None)
        self._first_use.pop(process, None)
        self._facts.pop(process, None)

    def close(self) -> None:
        """Let go of what gathers; NVML is the caller's."""
        self._patience.close()

    def _refresh(self, needed: float) -> None:
        """``needed``: what the driver said before this time is too old."""
        now = self._clock()
        if now - self._asked >= (SOONEST_SECONDS if self._asked < needed else REFRESH_SECONDS):
            self._asked = now
            if not self._node:
                self._node = self._nvml.gpus()
            self._used = self._nvml.process_gpus()

    def _gathered(
        self, process: ProcessId
    ) -> tuple[frozenset[int] | None, Mapping[str, str] | None]:
        found = self._facts.get(process)
        if found is None:
            if len(self._node) <= 1:
                return None, None  # it does not matter
            minors = [gpu.minor for gpu in self._node if gpu.minor >= 0]
            found = (
                self._device_nodes(process.pid, minors),
                self._variables(process.pid),
            )
            self._facts[process] = found
        return found

    def _device_nodes(self, pid: int, minors: list[int]) -> frozenset[int] | None:
        def look() -> frozenset[int]:
            directory = open_directory_in_root(
                pid, "/dev", proc=self._proc, allow_fuse=self._allow_fuse
            )
            try:
                return frozenset(n for n in minors if _is_gpu(directory, n))
            finally:
                os.close(directory)

        try:
            return self._patience(look)
        except GpumemprofError:
            return None

    def _variables(self, pid: int) -> Mapping[str, str] | None:
        try:
            return self._patience(lambda: read_variables(pid, self._proc))
        except GpumemprofError:
            return None


def _is_gpu(directory: int, minor: int) -> bool:
    with contextlib.suppress(OSError):
        flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(f"nvidia{minor}", flags, dir_fd=directory)
        try:
            file = inspect(fd)
        finally:
            os.close(fd)
        return stat.S_ISCHR(file.mode) and file.node == os.makedev(_NVIDIA_MAJOR, minor)
    return False


def read_variables(pid: int, proc: Path = PROC) -> dict[str, str]:
    """Those of ``VARIABLES`` that a process was started with. Raises ProcessGone or
    RemoteDataError."""
    data = procfs.read_whole(pid, "environ", MAX_ENVIRONMENT, proc)
    found: dict[str, str] = {}
    for entry in data.split(b"\0"):
        name, separator, value = entry.partition(b"=")
        text = name.decode("ascii", "replace")
        if separator and text in VARIABLES and text not in found:
            if len(value) > MAX_VALUE or not value.isascii():
                raise RemoteDataError(f"process {pid}: its {text} is no list of devices")
            found[text] = value.decode("ascii")
    return found
