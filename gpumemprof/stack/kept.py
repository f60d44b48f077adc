"""Stacks by id: raw as they were captured, then, once they were asked for, with names."""

from __future__ import annotations

import time
from array import array
from collections.abc import Container, Iterable, Iterator

from gpumemprof.process.identity import ProcessId
from gpumemprof.process.trust import Trust
from gpumemprof.stack.frames import Frame, Stack
from gpumemprof.stack.holding import Holding
from gpumemprof.stack.merge import FrameMode, NativeFrame, merge
from gpumemprof.stack.symbols import Symbolizer
from gpumemprof.stack.tracked import RawStack

CROWDED = 0.25
"""Share of the room for stacks that may be taken before some are let go of."""


def _native_frames(raw: RawStack, frames: list[Frame]) -> Iterator[NativeFrame]:
    evaluates = raw.evaluates or (False,) * len(frames)
    for frame, loop in zip(frames, evaluates, strict=True):
        inside = bool(raw.interpreter) and frame.module == raw.interpreter
        yield NativeFrame(frame, evaluates=loop, interpreter=inside)


class KeptStacks:
    """Of all processes. Ids are never reused; 0 is the stack of nothing."""

    def __init__(self, mode: FrameMode, symbolizer: Symbolizer, trust: Trust) -> None:
        self._mode, self._symbolizer, self._trust = mode, symbolizer, trust
        self._holdings: dict[ProcessId, Holding] = {}
        """Of the processes that are tracked, and of ended ones whose stacks were not dropped."""
        self._raw: dict[int, RawStack] = {}
        """Stacks without names yet; they move to ``_resolved`` when these are asked for."""
        self._resolved: dict[int, Stack] = {0: ()}
        self._notes: dict[str, int] = {}
        self._next = 1

    def holding(self, process: ProcessId) -> Holding:
        """What is kept of one process's stacks."""
        return self._holdings.setdefault(process, Holding(self._trust))

    @property
    def full(self) -> bool:
        """Whether no further stack of any process is kept."""
        return self.held >= self._trust.stacks

    def add(self, raw: RawStack) -> int:
        """Keep a stack; its id."""
        number = self._new_id()
        self._raw[number] = raw
        raw.holding.ids.append(number)
        return number

    def _new_id(self) -> int:
        number, self._next = self._next, self._next + 1
        return number

    def note(self, text: str) -> int:
        """The id of the stack that consists of a note."""
        found = self._notes.get(text)
        if found is None:
            found = self._notes[text] = self._new_id()
            self._resolved[found] = (Frame.note(text),)
        return found

    def drop(self, process: ProcessId) -> None:
        """Let go of all stacks of a process."""
        holding = self._holdings.pop(process, None)
        if holding is not None:
            self._let_go(holding.ids)

    def keep_only(self, process: ProcessId, used: Container[int]) -> None:
        """Let go of the stacks of a process that are not in ``used``."""
        holding = self._holdings.get(process)
        if holding is None:
            return
        kept = array("Q", [number for number in holding.ids if number in used])
        self._let_go(array("Q", [number for number in holding.ids if number not in used]))
        holding.keep(kept, [self._resolved.get(n) or self._runs_of(n) for n in kept])

    def is_crowded(self, process: ProcessId) -> bool:
        """Whether it is time to let go of what is not needed of a process (``keep_only``)."""
        holding = self._holdings.get(process)
        if holding is None:
            return False
        all_crowded = self.held > CROWDED * self._trust.stacks
        return holding.fuller_than(CROWDED / 8 if all_crowded else CROWDED)

    def _runs_of(self, number: int) -> Stack:
        return tuple(frame for run in self._raw[number].runs for frame in run)

    def _let_go(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._raw.pop(number, None)
            self._resolved.pop(number, None)

    @property
    def held(self) -> int:
        """Stacks that are kept."""
        return len(self._raw) + len(self._resolved)

    def resolve(self, number: int) -> Stack:
        """The frames of an id. Raises KeyError for an id that was never given out or was let go."""
        known = self._resolved.get(number)
        if known is not None:
            return known
        raw = self._raw[number]
        holding = raw.holding
        look_up = self._symbolizer.frames
        if holding.budget.exhausted or holding.names_full:
            look_up = self._symbolizer.unnamed
        with holding.budget:
            native = look_up(raw.places)
        merged = merge(
            [*_native_frames(raw, native), *map(NativeFrame, raw.notes)],
            raw.runs,
            self._mode,
        )
        del self._raw[number]
        found = self._resolved[number] = holding.shared(merged)
        return found

    def resolve_all(self, numbers: Iterable[int]) -> None:
        """Resolve these ids, those that were given out here."""
        for number in numbers:
            if number in self._raw:
                self.resolve(number)

    def resolve_some(self, processes: Iterable[ProcessId], until: float) -> bool:
        """Resolve stacks of these processes up to a time (monotonic seconds), so that a profile of
        them takes little more. Returns whether all are resolved."""
        for process in processes:
            holding = self._holdings.get(process)
            for number in holding.ids if holding is not None else ():
                if number in self._raw:
                    if time.monotonic() > until:
                        return False
                    self.resolve(number)
        return True
