"""What the live view shows, and what the keys change of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpumemprof import __version__
from gpumemprof.errors import GpumemprofError
from gpumemprof.ledger.events import MemoryKind
from gpumemprof.process.identity import ProcessId
from gpumemprof.process.table import Process
from gpumemprof.profile import files, pprof
from gpumemprof.profile.merge import gpu_only, of_kinds
from gpumemprof.profile.model import Profile
from gpumemprof.recorder import Recorder, RecorderOptions
from gpumemprof.report import live
from gpumemprof.report.live import KINDS, ORDERS, LiveRow, LiveView

_KEYS = {"\x1b[A": "k", "\x1b[B": "j", "\x1bOA": "k", "\x1bOB": "j", " ": "p", "\x03": "q"}
"""What terminals send for keys, and the letter that does the same."""
MESSAGE_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for on the command line. ``count``: pictures to show, 0: until it is left."""

    options: RecorderOptions
    pids: tuple[int, ...] = ()
    interval: float = 1.0
    count: int = 0
    output: Path = Path("gpumemprof-top.pb.gz")
    invoked: str = ""


@dataclass
class Peaks:
    """The most that each process held of each kind, told by the ledger at each change."""

    held: dict[tuple[ProcessId, str], int] = field(default_factory=dict)
    peak: dict[tuple[ProcessId, str], int] = field(default_factory=dict)

    def change(
        self, process: ProcessId, kind: MemoryKind, _device: int, size: int, _n: int, _t: int
    ) -> None:
        """The ledger's ``on_change``."""
        for name in (kind.value, "gpu") if kind.on_gpu else (kind.value,):
            key = process, name
            held = self.held[key] = self.held.get(key, 0) + size
            if held > self.peak.get(key, 0):
                self.peak[key] = held

    def forget(self, process: ProcessId) -> None:
        """It has ended."""
        for name in KINDS:
            self.held.pop((process, name), None)
            self.peak.pop((process, name), None)


@dataclass(slots=True)
class _Sums:
    """Of one process, in the kind that is looked at."""

    in_use: int = 0
    alloc_bytes: int = 0
    alloc_count: int = 0


class Watcher:
    """What is shown, and what the keys change of it."""

    def __init__(self, recorder: Recorder, peaks: Peaks, request: Request) -> None:
        self._recorder, self._peaks, self._request = recorder, peaks, request
        self._kind = self._order = 0
        self._by = "self"
        self._selected: ProcessId | None = None
        self._moved = False
        """Whether the user chose a process: else it is the first."""
        self._paused = False
        self._message, self._message_until = "", 0.0
        self._told: dict[ProcessId, _Sums] = {}
        self._told_at = time.monotonic()
        self._rates: dict[ProcessId, tuple[float, float]] = {}
        self._rows: list[tuple[Process, LiveRow]] = []
        self._profile: Profile | None = None
        self._snapshot = recorder.ledger.snapshot()
        """What was last looked at: it stays while it is paused."""
        self._before: Mapping[ProcessId, int] = {}
        self.left = False

    def look(self) -> None:
        """Look at what is held now, unless it is paused."""
        self._forget_ended()
        if self._paused:
            return
        self._snapshot = self._recorder.ledger.snapshot()
        self._before = self._recorder.held_before(self._snapshot)
        sums = self._sums()
        now = time.monotonic()
        passed = max(now - self._told_at, 1e-3)
        self._rates = {}
        for process, mine in sums.items():
            told = self._told.get(process, _Sums())
            self._rates[process] = (
                max(mine.alloc_bytes - told.alloc_bytes, 0) / passed,
                max(mine.alloc_count - told.alloc_count, 0) / passed,
            )
        self._told, self._told_at = sums, now
        self._arrange()

    def _arrange(self) -> None:
        """Make rows of what was last looked at, in the kind and the order that are chosen."""
        failed = {process.process: process.failures for process in self._snapshot.processes}
        rows = {}
        for process in self._recorder.processes.running:
            mine = self._told.get(process.id)
            if mine is None:
                continue
            rate, calls = self._rates.get(process.id, (0.0, 0.0))
            row = LiveRow(
                process.id.pid,
                process.command or process.comm,
                mine.in_use,
                self._peaks.peak.get((process.id, KINDS[self._kind]), 0),
                rate,
                calls,
                failed.get(process.id, 0),
                self._before.get(process.id, 0),
            )
            rows[row] = process
        self._rows = [(rows[row], row) for row in live.ordered(list(rows), ORDERS[self._order])]
        self._look_at_selected()

    def _look_at_selected(self) -> None:
        ids = [process.id for process, _ in self._rows]
        if not self._moved or self._selected not in ids:
            self._selected, self._moved = ids[0] if ids else None, False
        self._profile = None
        for process, _ in self._rows:
            if process.id == self._selected:
                whole = self._recorder.profile_of(
                    self._recorder.ledger.snapshot([process.id]),
                    [process],
                    started_ns=0,
                    duration_ns=0,
                    completeness={},
                )
                kind = KINDS[self._kind]
                self._profile = gpu_only(whole) if kind == "gpu" else of_kinds(whole, {kind})

    def _sums(self) -> dict[ProcessId, _Sums]:
        kind = KINDS[self._kind]
        found = {process.process: _Sums() for process in self._snapshot.processes}
        for aggregate in self._snapshot.aggregates:
            key = aggregate.key
            if key.kind.value == kind or (kind == "gpu" and key.kind.on_gpu):
                sums = found[key.process]
                sums.in_use += aggregate.inuse_bytes
                sums.alloc_bytes += aggregate.alloc_bytes
                sums.alloc_count += aggregate.alloc_count
        for process in self._before:  # those that held something before, and made no call since
            found.setdefault(process, _Sums())
        return found

    def _forget_ended(self) -> None:
        """Nothing of a process that has ended is shown: let it go."""
        for process in list(self._recorder.processes.all):
            if process.ended is not None:
                self._recorder.forget(process)
                self._peaks.forget(process.id)

    def view(self) -> LiveView:
        """What to show now."""
        ids = [process.id for process, _ in self._rows]
        message = self._message if time.monotonic() < self._message_until else ""
        return LiveView(
            rows=[row for _, row in self._rows],
            profile=self._profile,
            selected=ids.index(self._selected) if self._selected in ids else 0,
            kind=KINDS[self._kind],
            order=ORDERS[self._order],
            by=self._by,
            paused=self._paused,
            lost=self._recorder.lost(),
            message=message,
        )

    def press(self, key: str) -> None:
        """Do what a key asks for; others do nothing."""
        key = _KEYS.get(key, key)
        if key == "q":
            self.left = True
        elif key in {"j", "k"}:
            self._move(1 if key == "j" else -1)
        elif key == "s":
            self._order = (self._order + 1) % len(ORDERS)
            self._arrange()
        elif key == "m":
            self._kind = (self._kind + 1) % len(KINDS)
            self._told, self._rates = self._sums(), {}  # rates of another kind would be wrong
            self._arrange()
        elif key == "t":
            self._by = "total" if self._by == "self" else "self"
        elif key == "p":
            self._paused = not self._paused
        elif key == "w":
            self._write()

    def _move(self, step: int) -> None:
        ids = [process.id for process, _ in self._rows]
        if not ids:
            return
        at = ids.index(self._selected) if self._selected in ids else 0
        self._selected, self._moved = ids[min(max(at + step, 0), len(ids) - 1)], True
        self._look_at_selected()

    def _write(self) -> None:
        profile = self._recorder.profile({"version": __version__, "command": self._request.invoked})
        try:
            files.write_bytes(self._request.output, pprof.encode(profile))
        except (GpumemprofError, OSError) as error:
            self._say(f"not written: {error}")
        else:
            self._say(f"written: {self._request.output}")

    def _say(self, text: str) -> None:
        self._message, self._message_until = text, time.monotonic() + MESSAGE_SECONDS
