"""The stages of one recording, wired, and what they tell of it: totals, losses, profiles."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpumemprof.ledger.decode import Decoder
from gpumemprof.ledger.events import UNKNOWN_DEVICE
from gpumemprof.ledger.history import StackHistory
from gpumemprof.ledger.ledger import Ledger
from gpumemprof.ledger.model import AggregateKey, LedgerSnapshot, OnChange, Totals
from gpumemprof.ledger.series import Points, SeriesKey, SeriesLog
from gpumemprof.probe.events import EventReader, StackEvent
from gpumemprof.probe.inbox import Inbox
from gpumemprof.probe.loader import Probes
from gpumemprof.process.identity import ProcessId
from gpumemprof.process.libraries import LibraryProber
from gpumemprof.process.table import Process, ProcessTable
from gpumemprof.profile.build import PlaceLabels, build
from gpumemprof.profile.model import Profile
from gpumemprof.recorder.driver import DriverView
from gpumemprof.recorder.options import RecorderOptions
from gpumemprof.recorder.scanner import Scanner
from gpumemprof.stack.resolver import StackResolver


class Stages:
    """Probes, processes, stacks and ledger of one recording. Events are handled by Recorder."""

    def __init__(self, options: RecorderOptions | None = None) -> None:
        """Raises ProbeError when this machine cannot record."""
        self.options = options or RecorderOptions()
        self.started_ns = time.time_ns()
        self._started = time.monotonic_ns()
        with contextlib.ExitStack() as stack:
            self.probes = Probes(self.options.probe)
            stack.callback(self.probes.close)
            self.libraries = LibraryProber(self.probes.attach, trust=self.options.trust)
            stack.callback(self.libraries.close)
            self.processes = ProcessTable()
            stack.callback(self.processes.close)
            self.stacks = StackResolver(
                self.options.frames,
                full_names=self.options.full_names,
                trust=self.options.trust,
            )
            stack.callback(self.stacks.close)
            self.series = SeriesLog(self.options.series)
            self.history = StackHistory(self.options.history)
            self.ledger = Ledger(on_change=self._on_change())
            self._scanner = Scanner(self.probes, self.libraries, self.stacks)
            self._driver = DriverView(self.options.trust)
            stack.callback(self._driver.close)
            self._decoder = Decoder(0 if self._driver.single_gpu else UNKNOWN_DEVICE)
            self._inbox = Inbox(
                self.probes.events,
                self.probes.stacks,
                EventReader(self.probes.layout),
                at_once=self._read_python,
                max_stack_bytes=self.options.trust.waiting_stack_bytes,
            )
            self._stacks_missing = 0
            self._scanner.probe_installed(self.options)
            self._close = stack.pop_all()

    def _on_change(self) -> OnChange | None:
        told: list[OnChange] = [self.series.change] if self.options.series.series else []
        told += [self.options.on_change] if self.options.on_change else []
        if len(told) < 2:
            return told[0] if told else None

        def tell(*change: Any) -> None:
            for each in told:
                each(*change)

        return tell

    def _read_python(self, stack: StackEvent) -> None:
        """Read the code objects of a stack that arrived: they may be gone when its turn comes."""
        process = self.processes.get(stack.pid, stack.start_ns)
        if process is not None:
            self.stacks.read_python(stack, process.id)

    @property
    def records(self) -> int:
        """Records read from the rings so far."""
        return self._inbox.records

    def totals(self) -> Totals:
        """What is held now, for a live line."""
        return self.ledger.totals()

    def lost(self) -> int:
        """Events and stacks that the kernel could not deliver."""
        counters = self.probes.counters()
        return counters["events_lost"] + counters["stacks_lost"] + counters["stack_no_buffer"]

    def completeness(self) -> dict[str, int]:
        """Every counter of what was lost, cut or not resolved, by name."""
        counters = self.probes.counters()
        told = ("events", "stacks")
        stacks = self.stacks.counters()
        stacks["python_unsupported"] += self._scanner.python_not_told
        return {
            **{name: n for name, n in counters.items() if name not in told},
            **stacks,
            "calls_unreadable": self._decoder.unreadable,
            "stacks_missing": self._stacks_missing,
            "processes_forgotten": self.processes.forgotten,
            "libraries_not_probed": len(self.libraries.problems),
            "series_omitted": self.series.omitted,
            "before_attach_unknown": self._driver.before_unknown,
        }

    def about(self) -> Mapping[str, str]:
        """How this recording was made, for the header."""
        return {
            "loader": self.probes.loader,
            "attach": self.probes.mode.value,
            "kernel": Path("/proc/sys/kernel/osrelease").read_text().strip(),
            "libraries": ", ".join(sorted(file.path for file in self.libraries.probed)),
        }

    def profile_of(
        self,
        snapshot: LedgerSnapshot,
        processes: Sequence[Process],
        *,
        started_ns: int,
        duration_ns: int,
        completeness: Mapping[str, int] | None = None,
        about: Mapping[str, str] | None = None,
        labels: PlaceLabels = lambda _process, _device: (),
        series: Mapping[SeriesKey, Points] | None = None,
        histories: Mapping[AggregateKey, Points] | None = None,
        driver: Mapping[ProcessId, int] | None = None,
    ) -> Profile:
        """The profile of some processes; ``snapshot``, ``series`` and ``histories``: theirs.
        ``completeness``: instead of everything that was lost since the start. ``driver``: what
        ``driver_bytes`` told a moment ago; else it is asked again."""
        driver = self.driver_bytes() if driver is None else driver
        # First, so that frames without a symbol are among what is told below.
        self.stacks.resolve_all(aggregate.key.stack for aggregate in snapshot.aggregates)
        before = self._driver.before_attach(snapshot, driver)
        return build(
            snapshot,
            processes,
            self.stacks.resolve,
            started_ns=started_ns,
            duration_ns=duration_ns,
            completeness=self.completeness() if completeness is None else completeness,
            about=about or {},
            driver_bytes=driver,
            before_attach={p.id: before[p.id] for p in processes if p.id in before},
            labels=labels,
            series=series,
            histories=histories,
        )

    def gpu_of(self, process: ProcessId, device: int) -> tuple[str, str]:
        """Index on the machine and UUID of the GPU that a process calls ``device``, both empty
        where it is not sure."""
        return self._driver.gpu_of(process, device)

    def driver_bytes(self) -> Mapping[ProcessId, int]:
        """What the driver attributes to running processes now, as far as it tells."""
        return self._driver.bytes_of(process.id for process in self.processes.running)

    def held_before(self, snapshot: LedgerSnapshot) -> Mapping[ProcessId, int]:
        """Bytes that processes hold from before they were recorded, at most; as far as known."""
        return self._driver.before_attach(snapshot, self.driver_bytes())

    def pause(self) -> None:
        """Record no process any more; the probes stay until ``close``."""
        self.probes.pause()

    def close(self) -> None:
        """Detach and free everything."""
        self._close.close()
