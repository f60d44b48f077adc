"""What changed between two profiles, as text in a terminal, a pipe or a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from gpumemprof.profile.completeness import lost
from gpumemprof.profile.growth import MINUTE_NS
from gpumemprof.profile.model import Profile
from gpumemprof.report import units
from gpumemprof.report.changes import (
    Change,
    FunctionChanged,
    Part,
    StackChanged,
    largest,
    parts,
    percent,
    status,
)
from gpumemprof.report.functions import place
from gpumemprof.report.layout import INDENT, Column, columns, print_lines
from gpumemprof.report.stacks import print_stack
from gpumemprof.stack.frames import Frame

DEFAULT_LIMIT = 20

_WHAT = {
    "inuse_space": "in use",
    "alloc_space": "allocated",
    "peak_space": "in use at the peak",
}
_STRANGERS = (
    "The two have no function in common: are they of one program, and both with native or both "
    "with Python frames?"
)
_ONE = {"grew": "grew", "shrank": "shrank", "new": "is new", "gone": "is gone"}
_SEVERAL = {"grew": "grew", "shrank": "shrank", "new": "are new", "gone": "are gone"}


def render(
    before: Profile,
    after: Profile,
    console: Console,
    *,
    names: tuple[str, str] = ("", ""),
    type_: str = "",
    sort: str = "growth",
    limit: int = DEFAULT_LIMIT,
    stacks: bool = False,
    by: str = "self",
) -> None:
    """Print what changed: the totals, then functions (or with ``stacks`` whole stacks) that grew,
    shrank, came and went. GPU memory and pinned host memory apart.

    ``names``: of the two profiles. ``type_``, ``sort``: see ``changes``; ``limit``: rows of each
    table; ``by``: ``self`` or ``total`` bytes of functions."""
    _print_recorded(before, after, names, console)
    found = list(parts(before, after, type_))
    _print_totals(found, console)
    if found[0].strangers:
        print_lines(console, ["", Text(_STRANGERS, "bold yellow")])
    for part in found:
        if part.pinned and not part.changed:
            continue  # the totals say so
        console.print()
        if stacks:
            _print_stacks(part, console, sort, limit)
        else:
            _print_functions(part, console, sort, limit, by)


def _print_recorded(
    before: Profile, after: Profile, names: tuple[str, str], console: Console
) -> None:
    rows = []
    for which, name, profile in zip(("before", "after"), names, (before, after), strict=True):
        when = units.recorded(profile.time_ns, profile.duration_ns) or units.NO_TIME
        rows.append((which, name, when, profile.about.get("command", "")))
    layout = (
        Column(""),
        Column("", flexible=True, style="bold"),
        Column(""),
        Column("", flexible=True, keep_start=True, style="dim"),
    )
    print_lines(console, columns(console, layout, rows))
    for which, profile in (("before", before), ("after", after)):
        losses = lost(profile.completeness)
        if losses:
            title = f"INCOMPLETE: not everything could be recorded {which}"
            print_lines(console, [Text(title, "bold red")])
            print_lines(console, losses, INDENT)


def _print_totals(found: Sequence[Part], console: Console) -> None:
    rows = []
    for part in found:
        was, now = part.totals
        title = f"{part.title} {_WHAT[part.type]}"
        sizes = units.size(was), units.size(now), units.signed(now - was), percents(was, now)
        rows += [(title, *sizes), ("  exactly", f"{was:,}", f"{now:,}", f"{now - was:+,}", "")]
    layout = (
        Column(""),
        *(Column(title, right=True) for title in ("before", "after", "change")),
        Column("%", right=True),
    )
    console.print()
    print_lines(console, columns(console, layout, rows))
    for part in found:
        if part.minutes is not None:
            later = units.duration(round(part.minutes * MINUTE_NS))
            was, now = part.totals
            per_minute = units.signed(round((now - was) / part.minutes))
            text = f"the same process, {later} later: {part.title} {per_minute} a minute"
            print_lines(console, [Text(text, "dim")])


def _print_functions(part: Part, console: Console, sort: str, limit: int, by: str) -> None:
    rows = part.functions(by)
    changed = [row for row in rows if row.before != row.after]
    _print_title(part, f"by function ({by})", console)
    if changed:
        layout = (
            Column("change", right=True, style="bold"),
            Column("%", right=True),
            Column("before", right=True),
            Column("after", right=True),
            *([Column("a minute", right=True)] if part.minutes else []),
            Column("function", flexible=True, style="cyan"),
            Column("file:line", flexible=True, style="dim"),
        )
        cells = [
            (
                units.signed(row.after - row.before),
                percents(row.before, row.after),
                units.size(row.before) if row.before else "-",
                units.size(row.after) if row.after else "-",
                *_per_minute(row, part),
                row.name,
                _place(row),
            )
            for row in largest(changed, sort, limit)
        ]
        print_lines(console, columns(console, layout, cells))
    _print_summary(rows, limit, "function", console)


def _print_stacks(part: Part, console: Console, sort: str, limit: int) -> None:
    rows = part.stacks()
    changed = [row for row in rows if row.before != row.after]
    _print_title(part, "by stack", console)
    for row in largest(changed, sort, limit):
        console.print()
        print_lines(console, [_stack_title(row)])
        print_stack(row.stack, console, INDENT)
    if changed:
        console.print()
    _print_summary(rows, limit, "stack", console)


def _print_title(part: Part, by: str, console: Console) -> None:
    print_lines(console, [Text(f"{part.title} {_WHAT[part.type]}, {by}", "bold")])


def _stack_title(row: StackChanged) -> Text:
    return Text.assemble(
        (f"{units.signed(row.after - row.before)}  {percents(row.before, row.after)}", "bold"),
        f"  {units.size(row.before)} before, {units.size(row.after)} after",
    )


def _print_summary(rows: Sequence[Change], limit: int, noun: str, console: Console) -> None:
    """How many changed in which way, so that nothing is left out without a word."""
    count = Counter(map(status, rows))
    same = count.pop("same", 0)
    words = [
        f"{count[which]:,} {(_ONE if count[which] == 1 else _SEVERAL)[which]}"
        for which in _ONE
        if count[which]
    ]
    text = ", ".join(words) or "no difference"
    if same:
        text += f"; {units.number(same, noun)} did not change"
    hidden = count.total() - limit
    if hidden > 0:
        text += f"; {hidden:,} not shown (--limit)"
    print_lines(console, [Text(text, "dim")])


def percents(before: int, after: int) -> str:
    """``+12.3%``; ``new`` from nothing, ``gone`` to nothing."""
    if before == after:
        return ""
    if not after:
        return "gone"
    growth = percent(before, after)
    return "new" if growth is None else f"{growth:+.1f}%"


def _per_minute(row: Change, part: Part) -> list[str]:
    if not part.minutes:
        return []
    return [units.signed(round((row.after - row.before) / part.minutes))]


def _place(row: FunctionChanged) -> str:
    return place(Frame(row.name, row.kind, row.file, row.line, row.module))
