"""NVML that may hang: after an error of a GPU the driver may not answer, and no thread that waits
for it can be interrupted."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from gpumemprof.process.gpu import Gpu, Nvml
from gpumemprof.process.patience import NoAnswerError, Patience

log = logging.getLogger(__name__)
T = TypeVar("T")
SILENT_SECONDS = 300.0
"""How long a driver that did not answer is not asked again."""


class PatientNvml:
    """NVML that is asked for so many seconds, and then not for a while. What it answered last stays
    true as long as it does not answer."""

    def __init__(self, connect: Callable[[], Nvml], patience: Patience) -> None:
        self._patience = patience
        self._silent_until = 0.0
        self._last: dict[str, Any] = {}
        self._nvml: Nvml | None = None
        self._nvml = self._ask("session", connect, None)

    def _ask(self, question: str, ask: Callable[[], T], otherwise: T) -> T:
        if time.monotonic() >= self._silent_until:
            try:
                self._last[question] = self._patience(ask)
            except NoAnswerError as error:
                self._silent_until = time.monotonic() + SILENT_SECONDS
                log.warning("NVML: %s; it is not asked for %.0f s", error, SILENT_SECONDS)
        found: T = self._last.get(question, otherwise)
        return found

    def gpus(self) -> list[Gpu]:
        """All GPUs of the machine."""
        nvml = self._nvml
        return [] if nvml is None else self._ask("gpus", nvml.gpus, [])

    def process_bytes(self) -> Counter[int]:
        """Pid → bytes the driver attributes to it over all GPUs, contexts and code included."""
        nvml = self._nvml
        return Counter() if nvml is None else self._ask("bytes", nvml.process_bytes, Counter())

    def process_gpus(self) -> dict[int, frozenset[int]]:
        """Pid → indices of the GPUs on which it has a context."""
        nvml = self._nvml
        return {} if nvml is None else self._ask("places", nvml.process_gpus, {})

    def close(self) -> None:
        """End the session, if it answers."""
        if self._nvml is not None:
            self._ask("close", self._nvml.close, None)
        self._patience.close()
