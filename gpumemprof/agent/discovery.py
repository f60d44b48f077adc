"""Finds processes that use CUDA and were never told of: those that run already when the agent
starts or a namespace is switched on, and those whose libraries are in no probed file yet.

All processes of a node are looked at again and again, in small turns, and their mappings read only
when their address space has changed.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Collection, Iterator

from gpumemprof.errors import GpumemprofError, ProbeError, ProcessGone
from gpumemprof.probe.calls import Library
from gpumemprof.process import maps as process_maps
from gpumemprof.process import procfs
from gpumemprof.process.libraries import classify
from gpumemprof.process.maps import Maps
from gpumemprof.recorder import Recorder

log = logging.getLogger(__name__)

TURN_SECONDS = 0.02
ROUND_SECONDS = 5.0
"""From the end of one look at all processes to the next."""


class Discovery:
    """Call ``turn`` between the recorder's steps."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._sizes: dict[int, int] = {}
        """Pid → size of its address space when its mappings were last read, in pages. A pid that is
        given anew has another one, or is told of when it calls CUDA."""
        self._round: Iterator[int] = iter(())
        self._seen: set[int] = set()
        self._next_round = 0.0
        self.rounds = 0
        """Looks at all processes that were completed."""
        self.counts: Counter[str] = Counter(processes_not_added=0)

    def again(self) -> None:
        """Look at every process again, whether it changed or not."""
        self._sizes.clear()
        self._round, self._seen = iter(()), set()
        self._next_round = 0.0

    def turn(self, known: Collection[int]) -> None:
        """Look at some more processes. ``known``: those that are followed already."""
        now = time.monotonic()
        if now < self._next_round:
            return
        if not self._seen:
            try:
                self._round = iter(list(procfs.pids()))
            except OSError as error:  # files are exhausted
                log.warning("processes cannot be looked at: %s", error.strerror)
                self._next_round = now + ROUND_SECONDS
                return
        end = now + TURN_SECONDS
        for pid in self._round:
            self._seen.add(pid)
            if pid not in known:
                self._look_at(pid)
            if time.monotonic() > end:
                return
        for pid in self._sizes.keys() - self._seen:
            del self._sizes[pid]
        self._seen = set()
        self._next_round = time.monotonic() + ROUND_SECONDS
        self.rounds += 1

    def _look_at(self, pid: int) -> None:
        size = procfs.virtual_size(pid)
        if not size or self._sizes.get(pid) == size:
            return
        self._sizes[pid] = size
        with contextlib.suppress(ProcessGone, GpumemprofError):
            if not _uses_cuda(process_maps.read_code(pid)):
                return
            try:
                self._recorder.add(pid)
            except ProbeError:
                self.counts["processes_not_added"] += 1
                raise


def _uses_cuda(maps: Maps) -> bool:
    return any(
        mapping.file_backed and classify(mapping.path) in {Library.DRIVER, Library.RUNTIME}
        for mapping in maps.executable()
    )
