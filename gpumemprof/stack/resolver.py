"""From captured stacks to stack ids, and from ids to frames.

A captured stack is unwound as it arrives, and its Python code objects are read at once, since they
may be gone later. What remains is small: places in files and Python frames. Native symbols are
looked up only when frames are asked for, off the path of the events.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Container, Mapping

from gpumemprof.errors import GpumemprofError, ProcessGone
from gpumemprof.probe.events import PythonState, StackEvent
from gpumemprof.process.identity import ProcessId
from gpumemprof.process.maps import Maps
from gpumemprof.process.patience import NoAnswerError, Patience
from gpumemprof.process.trust import OWN, Trust
from gpumemprof.stack.frames import Frame
from gpumemprof.stack.kept import KeptStacks
from gpumemprof.stack.merge import FrameMode
from gpumemprof.stack.python.frames import Run, unpack
from gpumemprof.stack.python.interpreter import Interpreter, InterpreterFinder
from gpumemprof.stack.python.memory import CopiedMemory, ProcessMemory
from gpumemprof.stack.symbols import Symbolizer
from gpumemprof.stack.tracked import RawStack, RefreshOnMiss, Tracked, python_counts
from gpumemprof.stack.unwind import (
    FileCache,
    ProcessImage,
    Registers,
    UnwindEnd,
    Unwinder,
    Unwound,
)

log = logging.getLogger(__name__)

_MAX_SEEN = 1 << 14
_FULL = "too many different stacks"
_THROTTLED = "stack not taken: those of the process take too long"


class StackResolver(KeptStacks):
    """Stacks of all processes, by id.

    What is known of a process's code is let go with ``forget``, when it ended; its stacks with
    ``drop``, when they were told for the last time. So memory does not grow with the number of
    processes that there ever were.
    """

    def __init__(
        self,
        mode: FrameMode = FrameMode.MIXED,
        *,
        full_names: bool = False,
        trust: Trust = OWN,
    ) -> None:
        self._patience = Patience(trust.patience)
        self._files = FileCache(trust=trust, patience=self._patience)
        super().__init__(mode, Symbolizer(self._files, full_names=full_names), trust)
        self._finder = InterpreterFinder(allow_fuse=trust.allow_fuse)
        self._tracked: dict[ProcessId, Tracked] = {}
        self._counts: Counter[str] = Counter()

    def see(self, process: ProcessId, maps: Maps) -> None:
        """Take note of the mappings of a process: quick, so that also those of one that is about
        to end are known."""
        tracked = self._tracked.get(process)
        if tracked is None:
            self._track(process, maps)
        else:
            tracked.image.refresh(maps)

    def _track(self, process: ProcessId, maps: Maps) -> Tracked:
        image = ProcessImage(process.pid, self._files, maps=maps, on_miss=RefreshOnMiss())
        tracked = Tracked(image, Unwinder(image), self.holding(process))
        self._tracked[process] = tracked
        return tracked

    def find_interpreter(self, process: ProcessId, maps: Maps) -> Mapping[str, int] | None:
        """Look for the interpreter of a process that was seen. Returns what the kernel is to be
        told of it, the first time one is found."""
        tracked = self._tracked[process]
        if tracked.interpreter is not None:
            return None
        try:
            # Not to be looked for again if its files or memory do not answer.
            found = None if tracked.silent else self._patience(lambda: self._find(process, maps))
            if found is None:
                return None
            memory = ProcessMemory(process.pid)
        except ProcessGone:
            return None
        except GpumemprofError as error:
            tracked.problem = str(error)
            tracked.silent = isinstance(error, NoAnswerError)
            return None
        tracked.problem = ""
        return tracked.runs(found, memory, self._trust.python_cache)

    def _find(self, process: ProcessId, maps: Maps) -> Interpreter | None:
        return self._finder.find(process.pid, maps)

    def read_python(self, event: StackEvent, process: ProcessId) -> None:
        """Read the code objects of a captured stack; naming it later then needs no process."""
        tracked = self._tracked.get(process)
        if tracked is None or not event.python_frames or tracked.holding.budget.exhausted:
            return
        python = tracked.python
        if python is None:
            return
        seen = hash(event.python_frames)
        if seen not in tracked.python_seen:
            if len(tracked.python_seen) >= _MAX_SEEN:
                tracked.python_seen.clear()
            tracked.python_seen.add(seen)
            frames = unpack(event.python_frames)
            try:
                with tracked.holding.budget:
                    self._patience(lambda: python.read(frames))
            except NoAnswerError as error:
                self._memory_is_silent(process, tracked, error)

    def _memory_is_silent(self, process: ProcessId, tracked: Tracked, error: Exception) -> None:
        """Its memory is a file that does not answer: its Python frames are not read any more."""
        self._patience.keep((tracked.python, tracked.memory))
        tracked.python = tracked.memory = None
        tracked.silent = True
        self._counts["python_unsupported"] += 1
        log.warning("process %d: its memory cannot be read: %s", process.pid, error)

    def forked(self, parent: ProcessId, child: ProcessId) -> Mapping[str, int] | None:
        """``child`` began as a copy of ``parent``: what is known of one holds for the other, also
        if the child ends before it can be looked at. Returns what the kernel is to be told."""
        original = self._tracked.get(parent)
        if original is None or child in self._tracked:
            return None
        tracked = self._track(child, original.image.maps)
        tracked.silent = original.silent
        found = original.interpreter
        if found is None or tracked.silent:
            return None
        memory = CopiedMemory(child.pid, parent.pid)
        return tracked.runs(found, memory, self._trust.python_cache)

    def drop(self, process: ProcessId) -> None:
        """Let go of all stacks of a process: its last profile was made. Their ids are unknown from
        then on. One that goes on is to be seen anew."""
        self.forget(process)
        super().drop(process)

    def keep_only(self, process: ProcessId, used: Container[int]) -> None:
        """Let go of the stacks of a process that are not in ``used``: of one that runs for months
        and makes ever new ones. They get another id when they come again."""
        super().keep_only(process, used)
        tracked = self._tracked.get(process)
        if tracked is not None:
            tracked.known = {key: n for key, n in tracked.known.items() if n in used}

    def forget(self, process: ProcessId) -> None:
        """The process ended; its stacks stay until ``drop``."""
        tracked = self._tracked.pop(process, None)
        if tracked is None:
            return
        self._counts.update(python_counts(tracked))
        tracked.image.close()
        if tracked.memory is not None:
            tracked.memory.close()

    def intern(self, event: StackEvent, process: ProcessId) -> int:
        """The id of a captured stack; equal stacks of one process have equal ids."""
        tracked = self._tracked.get(process)
        if tracked is None:
            self._counts["stacks_unseen"] += 1
            return self.note("process not found")
        budget = tracked.holding.budget
        if budget.exhausted:
            self._counts["stacks_throttled"] += 1
            return self.note(_THROTTLED)
        with budget:
            return self._interned(event, process, tracked)

    def _interned(self, event: StackEvent, process: ProcessId, tracked: Tracked) -> int:
        unwound = tracked.unwinder.unwind(Registers(*event.registers), event.window)
        key = (
            tracked.image.generation,
            unwound.pcs,
            unwound.end,
            event.python_state,
            event.python_frames,
        )
        known = tracked.known.get(key)
        if known is not None:
            return known
        if tracked.holding.full or self.full:
            self._counts["stacks_full"] += 1
            return self.note(_FULL)
        if tracked.problem and not tracked.known:
            self._counts["python_unsupported"] += 1
            log.warning(
                "process %d: its Python frames cannot be read: %r", process.pid, tracked.problem
            )
        number = self.add(self._freeze(process, tracked, event, unwound))
        tracked.known[key] = number
        return number

    def _runs(self, process: ProcessId, tracked: Tracked, event: StackEvent) -> tuple[Run, ...]:
        python = tracked.python
        if python is None or not event.python_frames:
            return ()
        try:
            runs = self._patience(
                lambda: python.resolve(
                    unpack(event.python_frames),
                    truncated=event.python_state == PythonState.TRUNCATED,
                    unreadable=event.python_state == PythonState.UNREADABLE,
                )
            )
        except NoAnswerError as error:
            self._memory_is_silent(process, tracked, error)
            return ()
        return tuple(map(tracked.holding.shared, runs))

    def _freeze(
        self, process: ProcessId, tracked: Tracked, event: StackEvent, unwound: Unwound
    ) -> RawStack:
        places = tuple(tracked.image.locate(pc) or (0, pc) for pc in unwound.lookups)
        runs = self._runs(process, tracked, event)
        interpreter = tracked.interpreter
        evaluates: tuple[bool, ...] = ()
        if interpreter is not None:
            evaluates = tuple(interpreter.evaluates(pc) for pc in unwound.lookups)
            if event.python_state == PythonState.NOT_PYTHON and any(evaluates):
                # Captured in the moment between the start of the interpreter and our finding it.
                self._counts["python_found_late"] += 1
        return RawStack(
            tracked.holding,
            places,
            evaluates,
            runs,
            interpreter.module if interpreter is not None else "",
            tuple(self._end_notes(event, unwound)),
        )

    def _end_notes(self, event: StackEvent, unwound: Unwound) -> list[Frame]:
        if unwound.end.complete:
            return []
        if unwound.end is UnwindEnd.WINDOW_CUT and event.window_full:
            self._counts["stacks_truncated"] += 1
            return [Frame.note("stack truncated")]
        self._counts["unwind_failed"] += 1
        detail = f": {unwound.detail}" if unwound.detail else ""
        return [Frame.note(f"unwind failed: {unwound.end.value}{detail}")]

    def counters(self) -> dict[str, int]:
        """What could not be resolved, by name."""
        totals = Counter(self._counts)
        for tracked in self._tracked.values():
            totals.update(python_counts(tracked))
        names = (
            "unwind_failed", "stacks_truncated", "python_unsupported", "python_found_late",
            "stacks_full", "stacks_throttled", "stacks_unseen",
            "python_not_code", "python_reused", "python_unreadable", "python_lines_unknown",
        )  # fmt: skip
        return {
            **{name: totals[name] for name in names},
            "reads_given_up": self._patience.given_up,
            **self._symbolizer.counters(),
        }

    def close(self) -> None:
        """Let go of every process and file."""
        for process in list(self._tracked):
            self.forget(process)
        self._patience.close()
