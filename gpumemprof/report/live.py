"""The live view as lines of text for a size of terminal: processes above, functions of one below.

A pure function of what is shown: ``gpumemprof top`` asks for the lines and puts them on the screen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from gpumemprof.profile.model import TYPE_NAMES, Profile
from gpumemprof.report import units
from gpumemprof.report.functions import SORTS, functions, place
from gpumemprof.report.layout import Column, columns, cut_right

KINDS = ("gpu", "device", "managed", "array", "pinned_host")
"""What can be looked at: all GPU memory, or one kind."""
ORDERS = ("in use", "peak", "rate", "pid")
HELP = "q quit  ↑↓ process  s sort  m memory  t self/total  p pause  w write profile"
_MIN_PROCESSES = 3


@dataclass(frozen=True, slots=True)
class LiveRow:
    """One process, in the kind of memory that is looked at. Bytes; ``rate``: bytes allocated a
    second, ``calls``: allocations a second. ``before``: bytes of GPU memory that it held before it
    was looked at, 0 if none or not known; they are not in ``in_use``."""

    pid: int
    program: str
    in_use: int
    peak: int
    rate: float
    calls: float
    failures: int
    before: int = 0


@dataclass(frozen=True, slots=True)
class LiveView:
    """Everything that is shown. ``rows``: in their order. ``profile``: of the selected process, in
    the kind of memory that is looked at. ``message``: shown in place of the help."""

    rows: Sequence[LiveRow]
    profile: Profile | None = None
    selected: int = 0
    kind: str = "gpu"
    order: str = "in use"
    by: str = "self"
    paused: bool = False
    lost: int = 0
    message: str = ""


def ordered(rows: Sequence[LiveRow], order: str) -> list[LiveRow]:
    """Largest first; equal ones, and ``pid``, by pid."""

    def largest(row: LiveRow) -> float:
        return {"in use": row.in_use, "peak": row.peak, "rate": row.rate}.get(order, 0)

    return sorted(rows, key=lambda row: (-largest(row), row.pid))


def lines(view: LiveView, console: Console, height: int) -> list[Text]:
    """At most ``height`` lines, each at most as wide as ``console``."""
    shown = [*_head(view), Text()]
    last = [Text(view.message or HELP, "bold" if view.message else "dim")]
    room = max(height - len(shown) - len(last), 1)
    for_processes = min(
        len(view.rows) + 1, max(_MIN_PROCESSES + 1, room // 2 if view.profile else room)
    )
    shown += _processes(view, console, for_processes)
    left = room - for_processes - 1
    if view.profile is not None and left >= 2:
        shown += [Text(), *_functions(view, console, left)]
    del shown[height - len(last) :]
    shown += [Text()] * (height - len(last) - len(shown))
    found = [*shown, *last]
    return [_cut(line, console.width) for line in found] if console.is_terminal else found


def _head(view: LiveView) -> list[Text]:
    in_use = sum(row.in_use for row in view.rows)
    what = "GPU memory" if view.kind == "gpu" else f"{view.kind.replace('_', ' ')} memory"
    title = Text.assemble(
        ("gpumemprof top", "bold"),
        f"  {units.number(len(view.rows), 'process').replace('processs', 'processes')}, ",
        (f"{units.size(in_use)} of {what}", "bold"),
        f", by {view.order}",
    )
    if view.lost:
        title.append(f"  INCOMPLETE: {view.lost:,} events lost", "bold red")
    if view.paused:
        title.append("  PAUSED", "bold yellow")
    return [title]


def _processes(view: LiveView, console: Console, height: int) -> list[Text]:
    layout = (
        Column("pid", right=True),
        Column("in use", right=True, style="bold"),
        Column("peak", right=True),
        Column("alloc/s", right=True),
        Column("calls/s", right=True),
        Column("failed", right=True),
        Column("program", flexible=True, keep_start=True, style="cyan"),
    )
    room = max(height - 1, 1)
    selected = min(view.selected, max(len(view.rows) - 1, 0))
    first = max(0, min(selected - room // 2, len(view.rows) - room))
    cells = [
        (
            str(row.pid),
            units.size(row.in_use) + ("+" if row.before else ""),
            units.size(row.peak),
            units.size(round(row.rate)) if row.rate else "-",
            f"{row.calls:,.0f}" if row.calls >= 1 else "-" if not row.calls else "<1",
            f"{row.failures:,}" if row.failures else "-",
            row.program,
        )
        for row in view.rows[first : first + room]
    ]
    if not cells:
        return [Text("waiting for a process that uses CUDA…", "dim")]
    found = columns(console, layout, cells)
    found[1 + selected - first].stylize("reverse")
    return found


def _functions(view: LiveView, console: Console, height: int) -> list[Text]:
    assert view.profile is not None
    column = TYPE_NAMES.index(SORTS["inuse"])
    whole = view.profile.total[column]
    pid = view.rows[min(view.selected, len(view.rows) - 1)].pid if view.rows else 0
    if not whole:
        return [Text(f"process {pid} holds nothing of it now", "dim")]
    rows = [
        row
        for row in functions(view.profile, "inuse", view.by)
        if row.total[column] and not row.internal
    ]
    layout = (
        Column("self", right=True, style="bold"),
        Column("total", right=True),
        Column("%", right=True),
        Column(f"function of process {pid}", flexible=True, style="cyan"),
        Column("file:line", flexible=True, style="dim"),
    )
    cells = [
        (
            units.size(row.self[column]) if row.self[column] else "-",
            units.size(row.total[column]),
            units.share(row.total[column], whole),
            row.name,
            place(row),
        )
        for row in rows[: height - 1]
    ]
    return columns(console, layout, cells)


def _cut(line: Text, width: int) -> Text:
    if line.cell_len <= width:
        return line
    shorter = line.copy()
    shorter.truncate(width)
    return shorter if shorter.cell_len <= width else Text(cut_right(line.plain, width))
