"""The plan for people: a table whose every line shows its formula and unit."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpumemprof.plan.check import Check
from gpumemprof.plan.lines import GIB, Line, lines
from gpumemprof.plan.plan import Plan
from gpumemprof.profile.console import PlainConsole, print_table
from gpumemprof.profile.text import printable

_WIDE = 160
"""Columns where there is no terminal: a pipe or a file gets whole lines."""


def make_console() -> Console:
    """A console for standard output; text of files is never taken for markup."""
    console = PlainConsole(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console = PlainConsole(highlight=False, markup=False, emoji=False, width=_WIDE)
    return console


def render(plan: Plan, console: Console) -> None:
    """Print the plan: the model, the table, notes, and whether all fits."""
    request = plan.request
    ranks = "on one GPU" if request.ranks == 1 else f"on each of {request.ranks} GPUs"
    console.print(
        Text(
            f"{printable(request.model.name)} ({request.model.architecture.family}): "
            f"{plan.parameters:,} parameters, {ranks}",
            "bold",
        )
    )
    console.print(Text(f"from {printable(request.model.source)}", "dim"))
    console.print()
    table = _table("", "size", "exactly", "how")
    for line in lines(plan):
        table.add_row(*map(Text, (line.name, _size(line), _exact(line), _how(line))))
    print_table(console, table)
    for note in plan.notes:
        console.print(Text(f"note: {printable(note)}", "italic"))
    console.print()
    _verdict(plan, console)


def _verdict(plan: Plan, console: Console) -> None:
    request = plan.request
    what = f"{request.sequences:,} × {request.typical_length:,} tokens"
    if request.sequences == 1 and request.typical_length == request.length:
        what = f"a sequence of {request.length:,} tokens"
    if plan.fits:
        console.print(Text(f"It fits: {what}.", "bold green"))
        return
    if plan.budget.available < 0:
        reason = f"what goes before the KV cache takes {_gib(-plan.budget.available)} too much"
    elif not plan.budget.fits(request.length):
        reason = f"a sequence of {request.length:,} tokens needs more KV cache than there is"
    else:
        reason = f"{what} need more KV cache than there is"
    console.print(Text(f"It does not fit: {reason}.", "bold red"))
    console.print(Text("What would:", "bold"))
    for remedy in plan.remedies:
        console.print(Text(f"  {remedy}"))


def render_check(check: Check, console: Console) -> None:
    """Print a plan beside what was measured."""
    console.print()
    console.print(Text(f"Set beside {printable(check.profile)}, {check.when}", "bold"))
    console.print(Text(f"process {printable(check.process)}; names of {check.engine}", "dim"))
    table = _table("", "planned", "measured", "off by", "exactly", "how")
    for row in check.rows:
        planned = "-" if row.planned is None else _gib(row.planned)
        off = "-" if row.planned is None else f"{row.measured - row.planned:+,}"
        table.add_row(*map(Text, (row.name, planned, _gib(row.measured), row.share, off, row.why)))
    print_table(console, table)
    for note in check.notes:
        console.print(Text(f"note: {printable(note)}", "italic"))


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title in titles:
        left = title in ("", "how")
        table.add_column(title, justify="left" if left else "right", no_wrap=title != "how")
    return table


def _size(line: Line) -> str:
    if line.unit == "bytes":
        return ("~ " if line.low is not None else "") + (
            _gib(line.value) if abs(line.value) >= 1 << 20 else f"{line.value / 1024:.2f} KiB"
        )
    if line.unit == "sequences":
        return f"{line.value:,.2f}×"
    if line.unit == "of the GPU":
        return f"{line.value:.2f}"
    return ("~ " if line.low is not None else "") + f"{line.value:,.0f}"


def _exact(line: Line) -> str:
    return f"{line.value:,.0f} bytes" if line.unit == "bytes" else line.unit


def _how(line: Line) -> str:
    if line.low is None or line.high is None:
        return line.formula
    if line.unit == "bytes":
        return f"{line.formula} (estimate, {line.low / GIB:.2f} to {line.high / GIB:.2f} GiB)"
    return f"{line.formula} (estimate, {line.low:,.0f} to {line.high:,.0f})"


def _gib(size: float) -> str:
    return f"{size / GIB:.3f} GiB"
