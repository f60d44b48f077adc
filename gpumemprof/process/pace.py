"""Limits repeated work to a share of the time, whatever one turn of it costs."""

from __future__ import annotations

import time
from collections.abc import Callable


class Pace:
    """Says when work may be done again: after it rested ``rest`` times as long as it took.

    Cheap work is then done at once and expensive work seldom, without a guess of either. The
    first ``free`` turns need no rest: a program that just started does most of its loading then.
    """

    def __init__(
        self, rest: float = 4.0, free: int = 8, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rest = rest
        self._free = free
        self._clock = clock
        self._began = 0.0
        self._ready_at = 0.0

    @property
    def ready(self) -> bool:
        """Whether the work may be done now."""
        return self._clock() >= self._ready_at

    def __enter__(self) -> None:
        """The work begins."""
        self._began = self._clock()

    def __exit__(self, *_: object) -> None:
        """The work is done."""
        now = self._clock()
        if self._free > 0:
            self._free -= 1
            return
        self._ready_at = now + self._rest * (now - self._began)
