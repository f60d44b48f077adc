"""The loop: events in the order the kernel saw them, to the stage whose they are."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping

from gpumemprof.errors import ProbeError, ProcessGone, RemoteDataError
from gpumemprof.ledger.decode import NO_STACK
from gpumemprof.ledger.events import ProcessEnded
from gpumemprof.ledger.model import AggregateKey
from gpumemprof.probe.calls import CALLS, Action
from gpumemprof.probe.events import CallEvent, Event, EventType, ProcessEvent, StackState
from gpumemprof.process import maps as process_maps
from gpumemprof.process import procfs
from gpumemprof.process.identity import ProcessId
from gpumemprof.process.table import Process
from gpumemprof.profile.model import Profile
from gpumemprof.recorder.options import RecorderOptions
from gpumemprof.recorder.stages import Stages

WAIT_SECONDS = 0.005
"""How long records may wait in a ring while they come: Python code objects are to be read soon
after. The kernel wakes us early for a ring that fills up, and for the start, the end and the
libraries of a process."""
IDLE_SECONDS = 0.1
"""How long we sleep while nothing comes; the first record wakes us."""
IDLE_AFTER = 10
"""Turns without a record after which nothing comes."""
COLLECT_SECONDS = 0.005
"""How often the rings are emptied while events are handled."""
TURN_SECONDS = 0.2
DRAIN_SECONDS = 5.0
"""How long a profile waits for events that came before it to be handled."""

_LOST_STACK = {
    StackState.RING_FULL: "stack lost: ring full",
    StackState.NO_BUFFER: "stack lost: no buffer",
}


class Recorder(Stages):
    """Records until closed. Single-threaded: call ``step`` in a loop."""

    def __init__(self, options: RecorderOptions | None = None) -> None:
        """Raises ProbeError when this machine cannot record."""
        super().__init__(options)
        self.on_new: Callable[[Process], None] = lambda _: None
        """Called with each process, and each new program of one, that is recorded from now on: the
        place to switch it off. Also with the new program of one that is switched off."""
        self._quiet_turns = 0

    # Which processes

    def add(self, pid: int) -> Process:
        """Record a process from now on. Raises ProcessGone, RemoteDataError or ProbeError."""
        self._end_stale(pid, procfs.read_stat(pid).start_ns)
        process = self.processes.add(pid)
        try:
            self.switch_on(process)
        except ProbeError:
            self.processes.end(process, "not recorded")
            self.stacks.forget(process.id)
            self.forget(process)
            raise
        self.on_new(process)
        return process

    def switch_on(self, process: Process) -> None:
        """Record a known process from now on. What it holds already is told as before attach.
        Raises ProbeError when the kernel's table is full."""
        pid = process.id.pid
        process.recorded, process.recorded_since = True, time.monotonic_ns()
        self._decoder.began_late(process.id)
        # First what its stacks need, so that not even the first one is without Python frames.
        uses_cuda = self._scanner.scan(process)
        self._driver.attached(process.id, uses_cuda=uses_cuda)
        self.probes.set_process(pid, on=True)

    def switch_off(self, process: Process) -> None:
        """Record a process no longer, and keep nothing of what was recorded of it. It stays known,
        so that it can be switched on again. Raises ProbeError when the kernel's table is full: it
        then goes on to tell, and what it tells is ignored."""
        pid = process.id.pid
        process.recorded = False
        try:
            if process.ended is None:
                self.probes.set_process(pid, on=False)
        finally:
            if process.ended is None:
                self.probes.set_python(pid, None)
                self._inbox.discard(pid)
                self._ended(process.id, time.monotonic_ns(), "off")
            self._drop(process.id)

    def forget(self, process: Process) -> None:
        """Keep nothing of a process that has ended."""
        self.processes.forget(process.id)
        self._drop(process.id)

    def _drop(self, process: ProcessId) -> None:
        with contextlib.suppress(KeyError):  # it made no call
            self.ledger.forget(process)
        self.stacks.drop(process)
        self.series.forget(process)
        self._driver.forget(process)

    def make_room(self, process: ProcessId) -> tuple[AggregateKey, ...]:
        """If a process has made many stacks, let go of those of which nothing is held; their sums
        stay (``Ledger.let_go_idle``)."""
        if not self.stacks.is_crowded(process):
            return ()
        gone = self.ledger.let_go_idle(process)
        if gone:
            self.stacks.keep_only(process, self.ledger.stacks(process))
        return gone

    def tidy(self) -> None:
        """Let go of what is not used any more; to be called every minute or so by who records for
        long."""
        self._scanner.tidy(self.processes.running)

    def add_all(self) -> None:
        """Record every process that maps a CUDA library; later ones come by themselves."""
        for pid in procfs.pids():
            with contextlib.suppress(ProcessGone, RemoteDataError):
                maps = process_maps.read_code(pid)
                if self.libraries.scan(pid, maps):
                    self.add(pid)

    def add_children(self, pid: int) -> None:
        """Record the descendants that a process has already; later ones follow by themselves."""
        for child in procfs.descendants(pid):
            with contextlib.suppress(ProcessGone, RemoteDataError):
                self.add(child)

    # The loop

    def step(self, seconds: float | None = None) -> None:
        """Wait at most ``seconds`` for records (by default shortly, longer while nothing comes),
        and handle them for about ``TURN_SECONDS``."""
        idle = self._quiet_turns >= IDLE_AFTER
        if seconds is None:
            seconds = IDLE_SECONDS if idle else WAIT_SECONDS
        before = self._inbox.records
        self.probes.wait(0 if len(self._inbox) else seconds, idle=idle)
        self.drain(TURN_SECONDS)
        self._quiet_turns = self._quiet_turns + 1 if self._inbox.records == before else 0
        gone = self.processes.gone()
        if gone:
            # Their last calls may have arrived between the drain and the look at the pidfds.
            self.drain()
        for process in gone:
            if process.ended is None:
                self._end(process, time.monotonic_ns(), "exit")
                # The kernel forgets a process when it tells its end; this it did not tell.
                self.probes.forget_process(process.id.pid)
        self._scanner.rescan(self.processes.running)
        now = time.monotonic_ns()
        if self.history.due(now):
            self.history.look(now, self.ledger.held())

    def drain(self, seconds: float = DRAIN_SECONDS) -> None:
        """Handle waiting records until none is left or the time is over: a program can make them
        faster than they are handled."""
        inbox, handle = self._inbox, self._handle
        inbox.collect()
        collected = time.monotonic()
        end = collected + seconds
        while (event := inbox.next()) is not None:
            handle(event)
            now = time.monotonic()
            if now - collected > COLLECT_SECONDS or not len(inbox):
                inbox.collect()
                collected = now
            if now > end:
                return

    def _handle(self, event: Event) -> None:
        if isinstance(event, ProcessEvent):
            self._on_process_event(event)
            return
        action = CALLS[event.call].action
        if action is Action.DRIVER_INIT and not self.options.probe.record_all:
            return  # every process of the machine tells that it begins to use CUDA
        process = self._known(event.pid, event.start_ns)
        if not process.recorded or event.time_ns < process.recorded_since:
            return  # it was made before the process was switched off, or is the end of such a call
        if action is Action.LIBRARY_LOADED:
            process.mappings_changed = True
            return
        stack = self._stack_of(event, process)
        for change in self._decoder.decode(event, process.id, stack):
            self.ledger.apply(change)

    def _stack_of(self, event: CallEvent, process: Process) -> int:
        if event.stack_state == StackState.NONE or event.type != EventType.RETURN:
            return NO_STACK
        if event.stack_state != StackState.SENT:
            return self.stacks.note(_LOST_STACK[StackState(event.stack_state)])
        stack = self._inbox.stack(event)
        if stack is None:
            self._stacks_missing += 1
        return (
            self.stacks.note("stack lost")
            if stack is None
            else self.stacks.intern(stack, process.id)
        )

    def _known(self, pid: int, start_ns: int) -> Process:
        """The process of an event; one that is new becomes known (record_all)."""
        process = self.processes.get(pid, start_ns)
        if process is None:
            self._end_stale(pid, start_ns)
            process = self.processes.add(pid, start_ns)
            self._scanner.scan(process)
            self.on_new(process)
        return process

    def _end_stale(self, pid: int, start_ns: int) -> None:
        """A pid was given again: the process that had it before ended before, if no one told it."""
        stale = self.processes.stale(pid, start_ns)
        if stale is not None:
            slept = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()
            self._end(stale, start_ns - slept, "exit")

    def _forked(self, event: ProcessEvent) -> None:
        pid, start_ns = event.child, event.child_start_ns
        if self.processes.get(pid, start_ns) is not None:
            return  # found among the children of a process that was asked for
        self._end_stale(pid, start_ns)
        child = self.processes.add(pid, start_ns, event.comm)
        parent = self.processes.get(event.pid, event.start_ns)
        if parent is not None:
            child.parent = parent.id
            target = self.stacks.forked(parent.id, child.id)
            if target is not None:
                self._scanner.tell_python(pid, target)
        self._scanner.scan(child)
        self.on_new(child)

    def _on_process_event(self, event: ProcessEvent) -> None:
        if event.type == EventType.FORK:
            self._forked(event)
            return
        process = self.processes.get(event.pid, event.start_ns)
        if process is None:
            return
        if event.type == EventType.EXEC:
            self._end(process, event.time_ns, "exec", event.comm)
        else:
            self._end(process, event.time_ns, "exit")
            if not process.recorded:
                # It ended before it was switched off; who gets the pid next is not off.
                self.probes.forget_process(event.pid)

    def _end(self, process: Process, time_ns: int, reason: str, comm: str = "") -> None:
        self._ended(process.id, time_ns, reason)
        if reason == "exec":
            # It may have been told of the program before, in the moment of the exec.
            self.probes.set_python(process.id.pid, None)
            program = self.processes.executed(process, comm)
            if program.recorded:
                self._scanner.scan(program)
            self.on_new(program)
        else:
            self.processes.end(process, reason)

    def _ended(self, process: ProcessId, time_ns: int, reason: str) -> None:
        self.ledger.apply(ProcessEnded(process, time_ns, reason))
        self._decoder.forget(process)
        self.stacks.forget(process)
        self._inbox.forget(process.pid, time_ns)

    # Results

    def profile(self, about: Mapping[str, str] | None = None) -> Profile:
        """What was recorded so far; ``about`` adds to the header."""
        self.drain()
        return self.profile_of(
            self.ledger.snapshot(),
            list(self.processes.all),
            started_ns=self.started_ns,
            duration_ns=time.monotonic_ns() - self._started,
            about={**self.about(), **(about or {})},
            series=self.series.snapshot(),
            histories=self.history.snapshot(),
        )

    def __enter__(self) -> Recorder:
        """Nothing to do: it records already."""
        return self

    def __exit__(self, *_: object) -> None:
        """Detach."""
        self.close()
