"""What every text for people is printed on."""

from __future__ import annotations

from rich.console import Console


class PlainConsole(Console):
    """A console that leaves it to the command line, as for every other output, when the reader
    has gone (rich itself ends the program with 1)."""

    def on_broken_pipe(self) -> None:
        """Raises BrokenPipeError again: rich calls this while it is handled."""
        raise BrokenPipeError
