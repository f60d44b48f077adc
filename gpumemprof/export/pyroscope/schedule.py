"""When something is sent: spread, paced, retried. Pure values; times are seconds.

Snapshots of all nodes have the same times, multiples of the interval. So that they do not arrive
together, each owner has its own place in the time after that, always the same.
"""

from __future__ import annotations

import hashlib

from gpumemprof.export.model import Owner

MAX_AGE = 55 * 60
"""Seconds after which a profile is given up: servers refuse those older than an hour."""

_FIRST_DELAY = 1.0
_LONGEST_DELAY = 60.0


def fraction(owner: Owner, salt: int = 0) -> float:
    """A number in [0, 1) that differs between nodes and owners, and stays the same for one."""
    text = "\0".join((*owner, str(salt)))
    digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=6).digest()
    return int.from_bytes(digest, "big") / (1 << 48)


def spread(owner: Owner, age: float, jitter: float) -> float:
    """How long to wait before sending a profile that is ``age`` old: until the owner's place in
    what is left of the first ``jitter`` after the profile's time."""
    return fraction(owner) * min(max(jitter - age, 0.0), jitter)


def backoff(failures: int, place: float) -> float:
    """How long to wait after the ``failures``-th failure in a row (from 1): doubled from 1 s up to
    a minute, times 0.5 to 1.5 by ``place`` in [0, 1), so that nodes do not return together."""
    longest = min(_FIRST_DELAY * 2.0 ** min(failures - 1, 16), _LONGEST_DELAY)
    return longest * (0.5 + place)


class Pace:
    """At most so many bytes a second, counted after each send."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._free_at = 0.0

    def spend(self, size: int, now: float) -> None:
        """``size`` bytes are being sent."""
        self._free_at = max(now, self._free_at) + size / self._rate

    def wait(self, now: float) -> float:
        """How long until the next may be sent."""
        return max(self._free_at - now, 0.0)
