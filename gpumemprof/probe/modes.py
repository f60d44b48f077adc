"""How probes hang on a library."""

from __future__ import annotations

import enum


class AttachMode(enum.Enum):
    """How probes hang on a library, best first."""

    SESSION = "session"
    """One program for entry and return that asks for the return only when it wants it (6.13)."""
    MULTI = "multi"
    """One link for all entries of a file, one for all returns (6.6)."""
    SINGLE = "single"
    """A perf event for each entry and each return (cookies: 5.15)."""
    WRAPPED = "wrapped"
    """The same with a small program for each place, which knows its cookie (5.10). Only for kernels
    without attach cookies: on later ones another thread may come between the two programs."""
