"""Slow leaks in the terminal: stacks whose memory rises steadily, with the evidence."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from rich.console import Console
from rich.text import Text

from gpumemprof.profile.growth import Growth, growth_within
from gpumemprof.profile.merge import PINNED_KIND, label
from gpumemprof.profile.model import Profile
from gpumemprof.report import units
from gpumemprof.report.functions import owner, owner_index, place
from gpumemprof.report.layout import Column, columns, print_lines
from gpumemprof.stack.frames import Frame, Stack

MAX_ROWS = 10

_NUMBERS = (
    Column("per minute", right=True, style="bold"),
    Column("grown", right=True),
    Column("seen for", right=True),
    Column("rising", right=True),
)
_PID = Column("pid", right=True)
_FUNCTION = (
    Column("function", flexible=True, style="cyan"),
    Column("file:line", flexible=True, style="dim"),
)


def print_growth(profile: Profile, console: Console, limit: int) -> None:
    """Print the stacks that grew steadily while ``profile`` was recorded, fastest first; nothing
    where none did. Where equal functions grow on several stacks, the nearest caller that differs
    stands beneath; where there are several processes, their pids."""
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
    pids = len(profile.processes) > 1 or len({label(each.labels, "pid") for each in found}) > 1
    layout = (*_NUMBERS, *([_PID] if pids else ()), *_FUNCTION)
    rows = []
    for each in shown:
        pid = [label(each.labels, "pid") or "-"] if pids else []
        rows.append((*_numbers(each), *pid, *_function(each)))
        caller = _differing_caller(each, [other for other in shown if other is not each])
        if caller is not None:
            beneath = [""] * (len(layout) - len(_FUNCTION))
            rows.append((*beneath, f"  \N{LEFTWARDS ARROW} {caller.name}", place(caller)))
    print_lines(console, columns(console, layout, rows))
    if len(found) > len(shown):
        more = units.number(len(found) - len(shown), "more stack")
        print_lines(console, [Text(f"and {more} (--format json has all)", "dim")])


def _differing_caller(each: Growth, others: Sequence[Growth]) -> Frame | None:
    """The nearest caller in which a stack differs from all others of the same function; None where
    its function is the only one, or the callers are all the same."""
    mine = _callers(each.stack)
    depths = []
    for other in others:
        theirs = _callers(other.stack)
        if _function(each) == _function(other) and mine != theirs:
            pairs = zip_longest(mine, theirs)
            depths.append(next(at for at, (a, b) in enumerate(pairs) if a != b))
    if not depths:
        return None
    nearest = max(depths)
    return mine[nearest] if nearest < len(mine) else None


def _callers(stack: Stack) -> Stack:
    """From the owner outwards."""
    return stack[owner_index(stack) or 0 :]


def _function(each: Growth) -> tuple[str, str]:
    frame = owner(each.stack)
    name = frame.name if frame else "[no stack]"
    if label(each.labels, "kind") == PINNED_KIND:
        name += " (pinned host memory)"
    return name, place(frame) if frame else ""


def _numbers(each: Growth) -> tuple[str, ...]:
    trend = each.trend
    steps = len(trend.points) - 1
    return (
        units.signed(round(trend.bytes_per_minute)),
        units.size(trend.grown),
        units.duration(trend.until_ns - trend.since_ns),
        f"{round(trend.rising * steps)} of {steps}",
    )
