"""The report for people: a profile as text in a terminal, a pipe or a file."""

from __future__ import annotations

from typing import IO

from rich.console import Console
from rich.text import Text

from gpumemprof.profile.console import PlainConsole
from gpumemprof.profile.merge import PINNED_KIND, gpu_only, of_kinds
from gpumemprof.profile.model import TYPE_NAMES, Profile
from gpumemprof.report import units
from gpumemprof.report.changes import GPU_TITLE, PINNED_TITLE
from gpumemprof.report.functions import SORTS, functions, place
from gpumemprof.report.growth import print_growth
from gpumemprof.report.header import kind_title, print_end, print_header
from gpumemprof.report.layout import Column, columns, print_lines
from gpumemprof.report.series import print_series
from gpumemprof.report.stacks import print_failures, print_stacks

DEFAULT_LIMIT = 20

LEGEND = "self: its own, with native code beneath it; total: also what it called"

_HELD = {
    "inuse": ("in use", "nothing was allocated while recording"),
    "alloc": ("allocated", "nothing was allocated while recording"),
    "peak": ("in use at the peak", "nothing was in use while recording"),
}


def make_console(file: IO[str] | None = None) -> Console:
    """A console for reports on ``file`` (standard output by default). Text of a profiled program
    is never taken for markup; without a terminal there are no colours and no line is cut."""
    return PlainConsole(file=file, highlight=False, markup=False, emoji=False)


def render(
    profile: Profile,
    console: Console,
    sort: str = "inuse",
    limit: int = DEFAULT_LIMIT,
    stacks: bool = False,
    *,
    by: str = "self",
) -> None:
    """Print ``profile``: what was recorded, whether all of it, the totals, the processes,
    memory over time, the functions, what grows steadily, the failures.

    ``sort``: a key of ``functions.SORTS``; ``limit``: rows of each table; ``stacks``: the largest
    stacks instead of the functions; ``by``: ``self`` or ``total``. Where nothing is in use any
    more, ``inuse`` shows the peak. GPU memory and pinned host memory have tables of their own and
    are never added up."""
    print_header(profile, console, limit)
    print_series(profile, console, limit)
    pinned = of_kinds(profile, {PINNED_KIND})
    parts = [(GPU_TITLE, gpu_only(profile))]
    if "only" in profile.about:
        parts = [(kind_title(profile), profile)]
    elif pinned.samples:
        parts.append((PINNED_TITLE, pinned))
    for title, part in parts:
        if part.samples or len(parts) == 1:
            console.print()
            _print_part(title, part, console, sort, limit, stacks, by)
    print_growth(profile, console, limit)
    if profile.failures:
        console.print()
        print_failures(profile, console)
    print_end(profile, console)


def _print_part(
    title: str,
    profile: Profile,
    console: Console,
    sort: str,
    limit: int,
    stacks: bool,
    by: str,
) -> None:
    what, nothing = _HELD[sort]
    if "only" in profile.about and not profile.samples:
        nothing = "there is none in this profile"
    if sort == "inuse" and profile.held_type != SORTS[sort]:
        # A program that has ended holds nothing; its reader wants to know what it held.
        sort, what = "peak", "in use at the peak (nothing is in use any more)"
    column = TYPE_NAMES.index(SORTS[sort])
    if not profile.total[column]:
        print_lines(console, [Text(f"{title}: {nothing}.")])
    elif stacks:
        print_lines(console, [Text(f"{title} {what}, by stack", "bold")])
        print_stacks(profile, console, column, limit)
    else:
        print_lines(console, [Text(f"{title} {what}, by function", "bold"), Text(LEGEND, "dim")])
        _print_functions(profile, console, sort, limit, by)


def _print_functions(profile: Profile, console: Console, sort: str, limit: int, by: str) -> None:
    column = TYPE_NAMES.index(SORTS[sort])
    rows = [row for row in functions(profile, sort, by) if row.total[column] and not row.internal]
    whole = profile.total[column]
    layout = (
        Column("self", right=True, style="bold"),
        Column("%", right=True),
        Column("total", right=True),
        Column("%", right=True),
        Column("function", flexible=True, style="cyan"),
        Column("file:line", flexible=True, style="dim"),
    )
    cells = [
        (
            units.size(row.self[column]) if row.self[column] else "-",
            units.share(row.self[column], whole) if row.self[column] else "",
            units.size(row.total[column]),
            units.share(row.total[column], whole),
            row.name,
            place(row),
        )
        for row in rows[:limit]
    ]
    print_lines(console, columns(console, layout, cells, indent=0))
    left_out = rows[limit:]
    if left_out:
        own = sum(row.self[column] for row in left_out)
        print_lines(
            console,
            [
                Text(
                    f"and {units.number(len(left_out), 'more function')} with "
                    f"{units.size(own)} of their own (--limit)",
                    "dim",
                )
            ],
        )
