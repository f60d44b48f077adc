"""Numbers for equal frames, fast: the codecs and tables meet each frame thousands of times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from gpumemprof.stack.frames import Frame


class FrameNumbers:
    """Equal frames have one number, from 0 in the order they were first met.

    Profiles share frame objects, and looking an object up by identity is several times faster
    than hashing its fields. Objects met are kept alive, so that no identity is reused."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        """By number."""
        self._by_value: dict[Frame, int] = {}
        self._by_identity: dict[int, int] = {}
        self._kept: list[Frame] = []

    def number(self, frame: Frame) -> int:
        """The number of ``frame``, a new one if no equal frame was met."""
        known = self._by_identity.get(id(frame))
        if known is None:
            known = self._by_value.setdefault(frame, len(self.frames))
            if known == len(self.frames):
                self.frames.append(frame)
            self._by_identity[id(frame)] = known
            self._kept.append(frame)
        return known

    def numbers(self, frames: Sequence[Frame]) -> tuple[int, ...]:
        """The numbers of a stack's frames. New frames are numbered from the end, its root."""
        known = tuple(map(self._by_identity.get, map(id, frames)))
        if None in known:
            new = [frame for frame, number in zip(frames, known, strict=True) if number is None]
            for frame in reversed(new):
                self.number(frame)
            known = tuple(map(self._by_identity.get, map(id, frames)))
        return cast(tuple[int, ...], known)
