"""What is kept of one process's stacks, how much it is, and what it cost: bounded by Trust."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable

from gpumemprof.process.trust import Trust
from gpumemprof.stack.frames import Frame, Stack

_FRAME_BYTES = 200
"""Of a frame besides its texts, with its place in the tables."""


class Budget:
    """Seconds of work: so many at once, and a share of the time that passes."""

    def __init__(
        self, share: float | None, burst: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """``share`` None: there is no limit, and no clock is read."""
        self._share, self._burst, self._clock = share, burst, clock
        self._left = burst
        self._began = self._seen = clock() if share is not None else 0.0

    @property
    def exhausted(self) -> bool:
        """Whether no work is to be done now."""
        if self._share is None:
            return False
        now = self._clock()
        self._left = min(self._burst, self._left + self._share * (now - self._seen))
        self._seen = now
        return self._left <= 0

    def __enter__(self) -> None:
        """Work begins."""
        if self._share is not None:
            self._began = self._clock()

    def __exit__(self, *_: object) -> None:
        """Work is done."""
        if self._share is not None:
            self._left -= self._clock() - self._began


class Holding:
    """The stacks of one process, from its first to ``drop``."""

    def __init__(self, trust: Trust) -> None:
        self.budget = Budget(trust.share, trust.burst)
        self.ids: array[int] = array("Q")
        self._most_stacks, self._most_bytes = trust.stacks_per_process, trust.bytes_per_process
        self._frames: dict[Frame, Frame] = {}
        self._bytes = 0

    @property
    def full(self) -> bool:
        """Whether no further stack is kept."""
        return len(self.ids) >= self._most_stacks or self.names_full

    def fuller_than(self, share: float) -> bool:
        """Whether more than a share of its room is taken."""
        return len(self.ids) > share * self._most_stacks or self._bytes > share * self._most_bytes

    @property
    def names_full(self) -> bool:
        """Whether no further names are kept."""
        return self._bytes >= self._most_bytes

    def shared(self, frames: Iterable[Frame]) -> Stack:
        """The same frames, one object for each that the process has."""
        return tuple([self._frames.get(frame) or self._new(frame) for frame in frames])

    def _new(self, frame: Frame) -> Frame:
        self._bytes += _FRAME_BYTES + len(frame.name) + len(frame.file) + len(frame.module)
        self._frames[frame] = frame
        return frame

    def keep(self, ids: array[int], stacks: Iterable[Stack]) -> None:
        """Let go of all stacks but these, and of the frames that are in none of ``stacks``."""
        self.ids = ids
        self._frames, self._bytes = {}, 0
        for stack in stacks:
            self.shared(stack)
