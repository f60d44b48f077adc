"""Looks at the mappings of recorded processes: which libraries to probe, which interpreter runs."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Mapping

from gpumemprof.errors import ProcessGone, RemoteDataError
from gpumemprof.probe.attach import AttachMode
from gpumemprof.probe.loader import Probes
from gpumemprof.process import maps as process_maps
from gpumemprof.process import procfs
from gpumemprof.process.libraries import LibraryProber
from gpumemprof.process.library_places import installed_libraries
from gpumemprof.process.table import Process
from gpumemprof.recorder.options import RecorderOptions
from gpumemprof.stack.resolver import StackResolver

log = logging.getLogger(__name__)

RESCAN_SECONDS = 0.5
"""How often a process whose address space changed is looked at for new libraries."""
RESCAN_TOLD_SECONDS = 10.0
"""The same, for one whose dynamic linker is probed and tells: address spaces change all the time,
and those of large programs take long to read."""


class Scanner:
    """Keeps probes, and what is known of processes, up to date with their mappings."""

    def __init__(self, probes: Probes, libraries: LibraryProber, stacks: StackResolver) -> None:
        self._probes, self._libraries, self._stacks = probes, libraries, stacks
        self.python_not_told = 0
        """Interpreters for which the kernel had no room: their frames are not captured."""

    def probe_installed(self, options: RecorderOptions) -> None:
        """Probe the machine's libraries before any process maps them."""
        for pid in options.root_pids:
            with contextlib.suppress(ProcessGone):
                if self._libraries.probe_root(pid):
                    break
        for library in installed_libraries(options.library_path):
            self._libraries.probe_path(library)

    def scan(self, process: Process) -> bool:
        """Look at the mappings of a process: probe its libraries, find its interpreter. Returns
        whether it maps a CUDA library."""
        pid = process.id.pid
        process.mappings_changed = False
        with process.pace:
            process.size = procfs.virtual_size(pid)
            try:
                maps = process_maps.read_code(pid)
            except (ProcessGone, RemoteDataError) as error:
                log.debug("process %d: %s", pid, error)
                return False
            self._stacks.see(process.id, maps)
            uses_cuda = self._libraries.scan(pid, maps)
            process.linker_tells = self._libraries.probes_linker(maps)
            target = self._stacks.find_interpreter(process.id, maps)
            if target is not None:
                self.tell_python(pid, target)
            return uses_cuda

    def tell_python(self, pid: int, target: Mapping[str, int]) -> None:
        """Tell the kernel where an interpreter keeps its frames, if it has room for one more."""
        try:
            self._probes.set_python(pid, target)
        except OSError as error:
            self.python_not_told += 1
            log.warning("process %d: its Python frames are not captured: %s", pid, error.strerror)

    def rescan(self, running: Iterable[Process]) -> None:
        """Look again at those whose mappings may have changed, each in its pace."""
        now = time.monotonic()
        for process in running:
            if not process.recorded:
                continue
            if process.mappings_changed:
                if process.pace.ready:
                    self.scan(process)
            elif now - process.looked_at >= (
                RESCAN_TOLD_SECONDS if process.linker_tells else RESCAN_SECONDS
            ):
                process.looked_at = now
                if procfs.virtual_size(process.id.pid) != process.size:
                    self.scan(process)

    def tidy(self, running: Iterable[Process]) -> None:
        """Let go of libraries that no process has used for minutes. Where detaching takes long,
        they stay."""
        if self._probes.mode is not AttachMode.SINGLE:
            self._libraries.release_unused(process.id.pid for process in running)
