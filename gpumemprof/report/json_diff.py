"""What changed between two profiles as JSON, for scripts.

=====================  ======================================================================
``version``            of this schema: 1; new keys may come without a new version
``before``, ``after``  ``name``, ``time_ns``, ``duration_ns``, ``about``, ``complete``, ``losses``
``gpu``                GPU memory, see below
``pinned_host``        pinned host memory, None where neither has any; never added up
=====================  ======================================================================

Of ``gpu`` and ``pinned_host``: ``type`` is the sample type compared; ``minutes`` are between
the two if they are of the same running process, else None; ``total`` and each row of
``functions`` and ``stacks`` have ``before``, ``after`` and ``change`` in bytes, and ``percent``
(None from nothing to something). Rows have a ``status`` (new, gone, grew, shrank, same) as well;
functions ``name``, ``kind``, ``file``, ``line``, ``module``, by self; stacks ``stack``: frames from
the leaf.
"""

from __future__ import annotations

from typing import Any

from gpumemprof.profile.completeness import lost
from gpumemprof.profile.model import Profile
from gpumemprof.report.changes import (
    GPU_TITLE,
    PINNED_TITLE,
    Change,
    Part,
    largest,
    parts,
    percent,
    status,
)
from gpumemprof.stack.frames import Frame

VERSION = 1


def report(
    before: Profile,
    after: Profile,
    *,
    names: tuple[str, str] = ("", ""),
    type_: str = "",
    sort: str = "growth",
    limit: int | None = None,
    by: str = "self",
) -> dict[str, Any]:
    """The value described above; at most ``limit`` functions and stacks of each part."""
    found = {part.title: _part(part, sort, limit, by) for part in parts(before, after, type_)}
    return {
        "version": VERSION,
        "before": _recorded(before, names[0]),
        "after": _recorded(after, names[1]),
        "gpu": found[GPU_TITLE],
        "pinned_host": found.get(PINNED_TITLE),
    }


def _recorded(profile: Profile, name: str) -> dict[str, Any]:
    losses = lost(profile.completeness)
    return {
        "name": name,
        "time_ns": profile.time_ns,
        "duration_ns": profile.duration_ns,
        "about": dict(profile.about),
        "complete": not losses,
        "losses": losses,
    }


def _part(part: Part, sort: str, limit: int | None, by: str) -> dict[str, Any]:
    return {
        "type": part.type,
        "minutes": part.minutes,
        "total": _numbers(*part.totals),
        "functions": [
            {
                "name": row.name,
                "kind": row.kind.value,
                "file": row.file,
                "line": row.line,
                "module": row.module,
                **_row(row),
            }
            for row in largest(part.functions(by), sort, limit)
        ],
        "stacks": [
            {
                "stack": [_frame(frame) for frame in row.stack],
                **_row(row),
            }
            for row in largest(part.stacks(), sort, limit)
        ],
    }


def _frame(frame: Frame) -> dict[str, Any]:
    # Not by dataclasses.asdict: it takes 20 times as long, and there may be a million of them.
    return {
        "name": frame.name,
        "kind": frame.kind.value,
        "file": frame.file,
        "line": frame.line,
        "module": frame.module,
    }


def _row(change: Change) -> dict[str, Any]:
    return {"status": status(change), **_numbers(change.before, change.after)}


def _numbers(before: int, after: int) -> dict[str, Any]:
    return {
        "before": before,
        "after": after,
        "change": after - before,
        "percent": percent(before, after),
    }
