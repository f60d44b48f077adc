"""How pushing goes, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class PusherStatus:
    """How pushing goes. A push is one request; a container's profile makes one or several.

    ``attempts``: requests made, by ``Result`` value. ``settled``: pushes by how they ended:
    delivered, rejected, too_old, queue_full, discarded, shutdown, unknown (no answer, and given
    up), broken (a mistake of ours); and ``empty``: profiles of which there was nothing to push.
    ``waiting``, ``waiting_bytes``: pushes not settled. ``last_success_ns``: wall clock, None if
    there was none. ``last_error``: one line without secrets; empty once a push is delivered again.
    """

    attempts: Mapping[str, int] = field(default_factory=dict)
    settled: Mapping[str, int] = field(default_factory=dict)
    waiting: int = 0
    waiting_bytes: int = 0
    last_success_ns: int | None = None
    last_error: str = ""
    encoded: int = 0
    unchanged: int = 0
    negative_samples: int = 0
    stacks_pruned: int = 0
