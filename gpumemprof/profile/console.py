"""What every text for people is printed on."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text


class PlainConsole(Console):
    """A console that leaves it to the command line, as for every other output, when the reader
    has gone (rich itself ends the program with 1)."""

    def on_broken_pipe(self) -> None:
        """Raises BrokenPipeError again: rich calls this while it is handled."""
        raise BrokenPipeError


def print_table(console: Console, table: Table) -> None:
    """Print a table; where there is no terminal, lines end with their last word."""
    if console.is_terminal:
        console.print(table)
        return
    with console.capture() as captured:
        console.print(table)
    lines = captured.get().splitlines()
    console.print(Text("\n".join(line.rstrip() for line in lines)), soft_wrap=True)
