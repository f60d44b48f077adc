"""What NVML says: bytes per process and GPU. None of it is there without a driver."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. Bytes."""

    index: int
    uuid: str
    name: str
    total: int
    used: int


class Nvml:
    """An NVML session, or nothing where there is none (``available`` False)."""

    def __init__(self) -> None:
        self.problem = ""
        try:
            import pynvml

            pynvml.nvmlInit()
        except Exception as error:  # an optional source: any failure means "no NVML"
            self._nvml = None
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
        found = []
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            found.append(
                Gpu(
                    index,
                    _text(nvml.nvmlDeviceGetUUID(handle)),
                    _text(nvml.nvmlDeviceGetName(handle)),
                    int(memory.total),
                    int(memory.used),
                )
            )
        return found

    def process_bytes(self) -> Counter[int]:
        """Pid → bytes the driver attributes to it over all GPUs, contexts and code included."""
        used: Counter[int] = Counter()
        nvml = self._nvml
        if nvml is None:
            return used
        try:
            for index in range(nvml.nvmlDeviceGetCount()):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
                    if process.usedGpuMemory is not None:
                        used[process.pid] += process.usedGpuMemory
        except nvml.NVMLError as error:
            log.warning("NVML: %s", error)
        return used

    def close(self) -> None:
        """End the session."""
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml = None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
