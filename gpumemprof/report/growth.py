"""Slow leaks in the terminal: stacks whose memory rises steadily, with the evidence."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from gpumemprof.profile.growth import Growth, growth_within
from gpumemprof.profile.merge import PINNED_KIND, label
from gpumemprof.profile.model import Profile
from gpumemprof.report import units
from gpumemprof.report.functions import owner, place
from gpumemprof.report.layout import Column, columns, print_lines

MAX_ROWS = 10

_LAYOUT = (
    Column("per minute", right=True, style="bold"),
    Column("grown", right=True),
    Column("seen for", right=True),
    Column("rising", right=True),
    Column("function", flexible=True, style="cyan"),
    Column("file:line", flexible=True, style="dim"),
)


def print_growth(profile: Profile, console: Console, limit: int) -> None:
    """Print the stacks that grew steadily while ``profile`` was recorded, fastest first; nothing
    where none did."""
    found = growth_within(profile)
    if not found:
        return
    console.print()
    stacks = units.number(len(found), "stack")
    print_lines(
        console,
        [
            Text(f"Growing: {stacks} whose memory in use rises steadily", "bold"),
            Text("grown: and never given back; rising: observations not below the last", "dim"),
        ],
    )
    shown = found[: min(limit, MAX_ROWS)]
    print_lines(console, columns(console, _LAYOUT, [_row(each) for each in shown]))
    if len(found) > len(shown):
        more = units.number(len(found) - len(shown), "more stack")
        print_lines(console, [Text(f"and {more} (--format json has all)", "dim")])


def _row(each: Growth) -> tuple[str, ...]:
    frame, trend = owner(each.stack), each.trend
    name = frame.name if frame else "[no stack]"
    if label(each.labels, "kind") == PINNED_KIND:
        name += " (pinned host memory)"
    steps = len(trend.points) - 1
    return (
        units.signed(round(trend.bytes_per_minute)),
        units.size(trend.grown),
        units.duration(trend.until_ns - trend.since_ns),
        f"{round(trend.rising * steps)} of {steps}",
        name,
        place(frame) if frame else "",
    )
