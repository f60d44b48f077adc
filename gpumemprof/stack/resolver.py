"""From captured stacks to stack ids, and from ids to frames.

A captured stack is unwound as it arrives, and its Python code objects are read at once, since they
may be gone later. What remains is small: places in files and Python frames. Native symbols are
looked up only when frames are asked for, off the path of the events.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field

from gpumemprof.errors import GpumemprofError, ProcessGone
from gpumemprof.probe.events import PythonState, StackEvent
from gpumemprof.process.identity import ProcessId
from gpumemprof.process.maps import Maps
from gpumemprof.process.pace import Pace
from gpumemprof.stack.frames import Frame, Stack
from gpumemprof.stack.merge import FrameMode, NativeFrame, merge
from gpumemprof.stack.python.frames import PythonFrames, Run, unpack
from gpumemprof.stack.python.interpreter import Interpreter, InterpreterFinder
from gpumemprof.stack.python.memory import CopiedMemory, ProcessMemory
from gpumemprof.stack.symbols import Symbolizer
from gpumemprof.stack.unwind import (
    FileCache,
    ProcessImage,
    Registers,
    UnwindEnd,
    Unwinder,
    Unwound,
)

log = logging.getLogger(__name__)

_MAX_SEEN = 1 << 16
_MAX_STACKS = 1 << 20
"""Distinct stacks that are kept; more are told as one note."""


@dataclass(slots=True)
class _RawStack:
    """A stack before it has symbols. ``places``: (code file id, address in it), leaf first."""

    places: tuple[tuple[int, int], ...]
    pcs: tuple[int, ...]
    evaluates: tuple[bool, ...]
    runs: tuple[Run, ...]
    interpreter: str
    notes: tuple[Frame, ...]


@dataclass(slots=True)
class _Tracked:
    """What is known of one process."""

    image: ProcessImage
    unwinder: Unwinder
    interpreter: Interpreter | None = None
    python: PythonFrames | None = None
    memory: ProcessMemory | CopiedMemory | None = None
    python_seen: set[int] = field(default_factory=set)
    """Hashes of Python stacks whose code objects were read."""
    problem: str = ""
    """Why its interpreter cannot be read, the last time it was tried: a process that is just
    calling exec or ending is tried in vain, and it does not matter."""
    known: dict[tuple[object, ...], int] = field(default_factory=dict)

    def runs(
        self, interpreter: Interpreter, memory: ProcessMemory | CopiedMemory
    ) -> Mapping[str, int]:
        """The process runs Python. Returns what the kernel is to be told of it."""
        self.interpreter, self.memory = interpreter, memory
        self.python = PythonFrames(
            memory, interpreter.layout, interpreter.code_type, interpreter.none
        )
        return asdict(interpreter.target)


class _RefreshOnMiss:
    """Reads the mappings again when an address is in none, since libraries are loaded at any
    time; not more often than it may help."""

    def __init__(self) -> None:
        self._pace = Pace()

    def __call__(self, image: ProcessImage) -> None:
        if self._pace.ready:
            # If the process ended, what is known stays.
            with self._pace, contextlib.suppress(GpumemprofError):
                image.refresh()


def _native_frames(raw: _RawStack, frames: list[Frame]) -> Iterator[NativeFrame]:
    evaluates = raw.evaluates or (False,) * len(frames)
    for frame, loop in zip(frames, evaluates, strict=True):
        inside = bool(raw.interpreter) and frame.module == raw.interpreter
        yield NativeFrame(frame, evaluates=loop, interpreter=inside)


def _python_counts(tracked: _Tracked) -> dict[str, int]:
    if tracked.python is None:
        return {}
    return {f"python_{name}": number for name, number in asdict(tracked.python.counts).items()}


class StackResolver:
    """Stacks of all processes. Ids are never reused; 0 is the stack of nothing."""

    def __init__(self, mode: FrameMode = FrameMode.MIXED, *, full_names: bool = False) -> None:
        self._mode = mode
        self._files = FileCache()
        self._symbolizer = Symbolizer(self._files, full_names=full_names)
        self._finder = InterpreterFinder()
        self._tracked: dict[ProcessId, _Tracked] = {}
        self._raw: dict[int, _RawStack] = {}
        self._resolved: dict[int, Stack] = {0: ()}
        self._notes: dict[str, int] = {}
        self._next = 1
        self._counts: Counter[str] = Counter()

    def see(self, process: ProcessId, maps: Maps) -> None:
        """Take note of the mappings of a process: quick, so that also those of one that is about
        to end are known."""
        tracked = self._tracked.get(process)
        if tracked is None:
            image = ProcessImage(process.pid, self._files, maps=maps, on_miss=_RefreshOnMiss())
            tracked = self._tracked[process] = _Tracked(image, Unwinder(image))
        else:
            tracked.image.refresh(maps)

    def find_interpreter(self, process: ProcessId, maps: Maps) -> Mapping[str, int] | None:
        """Look for the interpreter of a process that was seen. Returns what the kernel is to be
        told of it, the first time one is found."""
        tracked = self._tracked[process]
        if tracked.interpreter is not None:
            return None
        try:
            found = self._finder.find(process.pid, maps)
            if found is None:
                return None
            memory = ProcessMemory(process.pid)
        except ProcessGone:
            return None
        except GpumemprofError as error:
            tracked.problem = str(error)
            return None
        tracked.problem = ""
        return tracked.runs(found, memory)

    def read_python(self, event: StackEvent, process: ProcessId) -> None:
        """Read the code objects of a captured stack; naming it later then needs no process."""
        tracked = self._tracked.get(process)
        if tracked is None or tracked.python is None or not event.python_frames:
            return
        seen = hash(event.python_frames)
        if seen not in tracked.python_seen:
            if len(tracked.python_seen) >= _MAX_SEEN:
                tracked.python_seen.clear()
            tracked.python_seen.add(seen)
            tracked.python.read(unpack(event.python_frames))

    def forked(self, parent: ProcessId, child: ProcessId) -> Mapping[str, int] | None:
        """``child`` began as a copy of ``parent``: what is known of one holds for the other, also
        if the child ends before it can be looked at. Returns what the kernel is to be told."""
        original = self._tracked.get(parent)
        if original is None or child in self._tracked:
            return None
        image = ProcessImage(
            child.pid, self._files, maps=original.image.maps, on_miss=_RefreshOnMiss()
        )
        tracked = self._tracked[child] = _Tracked(image, Unwinder(image))
        found = original.interpreter
        if found is None:
            return None
        return tracked.runs(found, CopiedMemory(child.pid, parent.pid))

    def forget(self, process: ProcessId) -> None:
        """The process ended; its stacks stay."""
        tracked = self._tracked.pop(process, None)
        if tracked is None:
            return
        self._counts.update(_python_counts(tracked))
        tracked.image.close()
        if tracked.memory is not None:
            tracked.memory.close()

    def note(self, text: str) -> int:
        """The id of the stack that consists of a note."""
        found = self._notes.get(text)
        if found is None:
            found = self._notes[text] = self._new_id()
            self._resolved[found] = (Frame.note(text),)
        return found

    def intern(self, event: StackEvent, process: ProcessId) -> int:
        """The id of a captured stack; equal stacks of one process have equal ids."""
        tracked = self._tracked.get(process)
        if tracked is None:
            return self.note("process not found")
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
        if len(self._raw) >= _MAX_STACKS:
            self._counts["stacks_full"] += 1
            return self.note("too many different stacks")
        if tracked.problem and not tracked.known:
            self._counts["python_unsupported"] += 1
            log.warning(
                "process %d: its Python frames cannot be read: %r", process.pid, tracked.problem
            )
        number = tracked.known[key] = self._new_id()
        self._raw[number] = self._freeze(tracked, event, unwound)
        return number

    def _new_id(self) -> int:
        number, self._next = self._next, self._next + 1
        return number

    def _freeze(self, tracked: _Tracked, event: StackEvent, unwound: Unwound) -> _RawStack:
        places = tuple(tracked.image.locate(pc) or (0, pc) for pc in unwound.lookups)
        runs: tuple[Run, ...] = ()
        interpreter = tracked.interpreter
        if tracked.python is not None and event.python_frames:
            runs = tuple(
                tracked.python.resolve(
                    unpack(event.python_frames),
                    truncated=event.python_state == PythonState.TRUNCATED,
                    unreadable=event.python_state == PythonState.UNREADABLE,
                )
            )
        evaluates: tuple[bool, ...] = ()
        if interpreter is not None:
            evaluates = tuple(interpreter.evaluates(pc) for pc in unwound.lookups)
            if event.python_state == PythonState.NOT_PYTHON and any(evaluates):
                # Captured in the moment between the start of the interpreter and our finding it.
                self._counts["python_found_late"] += 1
        return _RawStack(
            places,
            unwound.lookups,
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

    def resolve(self, number: int) -> Stack:
        """The frames of an id. Raises KeyError for an id that was never given out."""
        known = self._resolved.get(number)
        if known is not None:
            return known
        raw = self._raw[number]
        native = self._symbolizer.frames(raw.places)
        merged = merge(
            [*_native_frames(raw, native), *map(NativeFrame, raw.notes)],
            raw.runs,
            self._mode,
        )
        self._resolved[number] = merged
        return merged

    def resolve_all(self, numbers: Iterable[int]) -> None:
        """Resolve these ids, those that were given out here."""
        for number in numbers:
            if number in self._raw:
                self.resolve(number)

    def counters(self) -> dict[str, int]:
        """What could not be resolved, by name."""
        totals = Counter(self._counts)
        for tracked in self._tracked.values():
            totals.update(_python_counts(tracked))
        names = (
            "unwind_failed", "stacks_truncated", "python_unsupported", "python_found_late",
            "stacks_full",
            "python_not_code", "python_reused", "python_unreadable", "python_lines_unknown",
        )  # fmt: skip
        return {**{name: totals[name] for name in names}, **self._symbolizer.counters()}

    def close(self) -> None:
        """Let go of every process and file."""
        for process in list(self._tracked):
            self.forget(process)
