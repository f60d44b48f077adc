"""``gpumemprof doctor``: can this machine record?"""

from __future__ import annotations

import json
import sys

import click
from rich.markup import escape
from rich.table import Table

from gpumemprof.cli.options import loader_option
from gpumemprof.doctor import Check, Status, examine
from gpumemprof.probe.kernel_side import LoaderChoice
from gpumemprof.profile.console import PlainConsole, print_table
from gpumemprof.profile.text import printable

_STYLES = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "bold red"}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@loader_option
def doctor(as_json: bool, loader: str) -> int:
    """Check whether this machine can record, and what will be seen.

    Exits with 1 when recording cannot work.
    """
    checks = examine(LoaderChoice(loader))
    works = all(check.status is not Status.FAIL for check in checks)
    if as_json:
        found = [
            {"name": c.name, "status": c.status.value, "found": c.found, "advice": c.advice}
            for c in checks
        ]
        click.echo(json.dumps({"works": works, "checks": found}, indent=2))
    else:
        _print(checks, works)
    return 0 if works else 1


def _print(checks: list[Check], works: bool) -> None:
    console = PlainConsole(highlight=False, soft_wrap=not sys.stdout.isatty())
    table = Table.grid(padding=(0, 2))
    for check in checks:
        style = _STYLES[check.status]
        advice = f"\n-> {check.advice}" if check.advice else ""
        # as it is: the kernel writes brackets, and programs choose the paths they map
        found = escape(printable(check.found) + advice)
        table.add_row(f"[{style}]{check.status.value}[/]", escape(check.name), found)
    print_table(console, table)
    console.print("\nrecording works here" if works else "\nrecording cannot work here")
