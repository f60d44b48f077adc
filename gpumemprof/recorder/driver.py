"""What the driver says of the recorded processes: bytes from before us, and on which GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from gpumemprof.ledger.model import LedgerSnapshot
from gpumemprof.process.gpu import Nvml
from gpumemprof.process.gpu_locator import GpuLocator
from gpumemprof.process.identity import ProcessId
from gpumemprof.process.patience import Patience
from gpumemprof.process.trust import Trust
from gpumemprof.recorder.patient_nvml import PatientNvml


class DriverView:
    """NVML's view, as far as there is one."""

    def __init__(self, trust: Trust, connect: Callable[[], Nvml] = Nvml) -> None:
        self._nvml = PatientNvml(connect, Patience(trust.patience))
        self._locator = GpuLocator(self._nvml, trust=trust)
        self._ordinals: dict[ProcessId, set[int]] = {}
        self._at_attach: dict[ProcessId, int] = {}
        self.before_unknown = 0
        """Processes that used CUDA before they were recorded, while nothing told what they held."""

    @property
    def single_gpu(self) -> bool:
        """Whether the machine has exactly one GPU."""
        return len(self._nvml.gpus()) == 1

    def attached(self, process: ProcessId, *, uses_cuda: bool) -> None:
        """A process is recorded from now on: what it holds already is from before."""
        self._at_attach[process] = self._nvml.process_bytes().get(process.pid, 0)
        if uses_cuda and not self._nvml.gpus():
            self.before_unknown += 1

    def forget(self, process: ProcessId) -> None:
        """It is not to be told any more."""
        self._locator.forget(process)
        self._ordinals.pop(process, None)
        self._at_attach.pop(process, None)

    def gpu_of(self, process: ProcessId, device: int) -> tuple[str, str]:
        """Index on the machine and UUID of the GPU that a process calls ``device``, both empty
        where it is not sure."""
        ordinals = self._ordinals.setdefault(process, set())
        ordinals.add(device)
        return self._locator.locate(process, device, ordinals)

    def bytes_of(self, running: Iterable[ProcessId]) -> dict[ProcessId, int]:
        """What the driver attributes to processes now, contexts and code included. Some
        milliseconds for each GPU."""
        used = self._nvml.process_bytes()
        return {each: used[each.pid] for each in running if each.pid in used}

    def before_attach(
        self, snapshot: LedgerSnapshot, driver: Mapping[ProcessId, int]
    ) -> dict[ProcessId, int]:
        """What processes that were asked for still hold from before they were recorded, at most:
        what the driver attributes to them beyond what was seen, contexts and code included; 0
        where it does not tell."""
        seen = {process.process: process.gpu.in_use for process in snapshot.processes}
        return {
            process: min(held, max(0, driver.get(process, 0) - seen.get(process, 0)))
            for process, held in self._at_attach.items()
        }

    def close(self) -> None:
        """End the session."""
        self._locator.close()
        self._nvml.close()
