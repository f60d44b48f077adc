"""What NVML says: bytes per process and GPU. None of it is there without a driver."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. Bytes; empty or 0 where NVML does not tell. ``index``: in the order of PCI
    addresses. ``minor``: N of its device node ``/dev/nvidiaN``, -1 if not told. ``mig``: it is
    divided into instances."""

    index: int
    uuid: str
    name: str
    total: int
    used: int
    minor: int = -1
    mig: bool = False


class Nvml:
    """An NVML session, or nothing where there is none (``available`` False)."""

    def __init__(self) -> None:
        self.problem = ""
        self._warned: set[str] = set()
        try:
            import pynvml

            pynvml.nvmlInit()
        except Exception as error:  # an optional source: any failure means "no NVML"
            self._nvml: ModuleType | None = None
            self.problem = str(error)
        else:
            self._nvml = pynvml

    @property
    def available(self) -> bool:
        """Whether NVML answers."""
        return self._nvml is not None

    def gpus(self) -> list[Gpu]:
        """All GPUs of the machine."""
        nvml = self._nvml
        if nvml is None:
            return []
        count = self._ask(nvml.nvmlDeviceGetCount) or 0
        return [self._gpu(nvml, index) for index in range(count)]

    def _gpu(self, nvml: ModuleType, index: int) -> Gpu:
        handle = self._ask(nvml.nvmlDeviceGetHandleByIndex, index)
        if handle is None:
            return Gpu(index, "", "", 0, 0)
        # GPUs that share the machine's memory, or fell off the bus, do not tell all of it
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        return Gpu(
            index,
            _text(self._ask(nvml.nvmlDeviceGetUUID, handle) or ""),
            _text(self._ask(nvml.nvmlDeviceGetName, handle) or ""),
            int(memory.total) if memory else 0,
            int(memory.used) if memory else 0,
            self._told("nvmlDeviceGetMinorNumber", handle, -1),
            bool(self._told("nvmlDeviceGetMigMode", handle, (0, 0))[0]),
        )

    def _told(self, question: str, handle: object, otherwise: Any) -> Any:
        """An answer that not every GPU, driver or binding has."""
        assert self._nvml is not None
        try:
            return getattr(self._nvml, question)(handle)
        except (AttributeError, self._nvml.NVMLError):
            return otherwise

    def _ask(self, question: Callable[..., Any], *arguments: object) -> Any:
        """The answer, None where NVML has none."""
        assert self._nvml is not None
        try:
            return question(*arguments)
        except self._nvml.NVMLError as error:
            if str(error) not in self._warned:
                self._warned.add(str(error))
                log.warning("NVML: %s", error)
            return None

    def process_bytes(self) -> Counter[int]:
        """Pid → bytes the driver attributes to it over all GPUs, contexts and code included."""
        used: Counter[int] = Counter()
        for _, pid, size in self._processes():
            if size is not None:
                used[pid] += size
        return used

    def process_gpus(self) -> dict[int, frozenset[int]]:
        """Pid → indices of the GPUs on which it has a context."""
        found: dict[int, set[int]] = {}
        for index, pid, _ in self._processes():
            found.setdefault(pid, set()).add(index)
        return {pid: frozenset(indices) for pid, indices in found.items()}

    def _processes(self) -> Iterator[tuple[int, int, int | None]]:
        """(index of a GPU, pid, bytes if told) of what runs there."""
        nvml = self._nvml
        if nvml is None:
            return
        for index in range(self._ask(nvml.nvmlDeviceGetCount) or 0):
            handle = self._ask(nvml.nvmlDeviceGetHandleByIndex, index)
            if handle is None:
                continue
            for process in self._ask(nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ():
                yield index, process.pid, process.usedGpuMemory

    def close(self) -> None:
        """End the session."""
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml = None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
