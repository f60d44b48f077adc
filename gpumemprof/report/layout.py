"""Columns of text: as wide as they need to be, cut where a terminal is too narrow.

Names and paths are cut on the left, because their ends tell them apart
(``…/modules/module.py:928``), command lines on the right.
Where there is no terminal nothing is cut: whoever reads a pipe or a file wants all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from gpumemprof.profile.text import printable

GAP = 2
INDENT = 2
_MIN_WIDTH = 12
_MAX_PADDED = 160
"""Cells of a column where nothing is cut: one endless name does not make every line endless."""


@dataclass(frozen=True, slots=True)
class Column:
    """``flexible``: text that may be cut, on the left unless ``keep_start``; all other columns
    keep their width."""

    title: str
    right: bool = False
    flexible: bool = False
    keep_start: bool = False
    style: str = ""


def columns(
    console: Console, layout: Sequence[Column], rows: Sequence[Sequence[str]], indent: int = 0
) -> list[Text]:
    """A line with the titles (if there are any) and one for each row, that fit ``console``."""
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [
        max([cell_len(column.title), *(cell_len(row[at]) for row in cells)])
        for at, column in enumerate(layout)
    ]
    if console.is_terminal:
        _narrow(widths, layout, console.width - indent)
    else:
        widths = [min(width, _MAX_PADDED) for width in widths]
    titles = [column.title for column in layout]
    styled = [(titles, "bold")] if any(titles) else []
    styled += [(row, "") for row in cells]
    return [
        Text(" " * indent) + _line(row, layout, widths, style, console.is_terminal)
        for row, style in styled
    ]


def print_lines(console: Console, lines: Sequence[Text | str], indent: int = 0) -> None:
    """Each as a line of its own, wrapped at words in a terminal and never elsewhere."""
    for line in lines:
        text = Text(printable(line)) if isinstance(line, str) else line
        if console.is_terminal:
            wrapped = text.wrap(console, max(console.width - indent, _MIN_WIDTH))
            for part in wrapped:
                part.rstrip()
                console.print(Text(" " * indent) + part, soft_wrap=True)
        else:
            console.print(Text(" " * indent) + text, soft_wrap=True)


def cut_left(text: str, width: int) -> str:
    """``text`` in at most ``width`` cells (1 or more), the beginning replaced by ``…``."""
    return cut_right(text[::-1], width)[::-1]


def cut_right(text: str, width: int) -> str:
    """``text`` in at most ``width`` cells (1 or more), the end replaced by ``…``."""
    if cell_len(text) <= width:
        return text
    return f"{set_cell_size(text[:width], width - 1).rstrip()}…"


def _narrow(widths: list[int], layout: Sequence[Column], available: int) -> None:
    """Take from the widest flexible column first, down to ``_MIN_WIDTH``."""
    flexible = [at for at, column in enumerate(layout) if column.flexible]
    excess = sum(widths) + GAP * (len(widths) - 1) - available
    while excess > 0 and flexible:
        widest = max(flexible, key=lambda at: widths[at])
        if widths[widest] <= _MIN_WIDTH:
            return
        widths[widest] -= 1
        excess -= 1


def _line(
    cells: Sequence[str],
    layout: Sequence[Column],
    widths: Sequence[int],
    style: str,
    cut: bool,
) -> Text:
    line = Text()
    last = max((at for at, cell in enumerate(cells) if cell), default=0)
    for at, (cell, column) in enumerate(zip(cells, layout, strict=True)):
        # The last cell of a line may use what the empty ones after it do not.
        width = widths[at] if at != last else sum(widths[at:]) + GAP * (len(widths) - 1 - at)
        text = cell
        if cut and column.flexible:
            text = (cut_right if column.keep_start else cut_left)(cell, width)
        padding = " " * (widths[at] - cell_len(text))
        if column.right:
            line.append(padding)
        line.append(text, style or column.style)
        if at == last:
            break
        line.append(("" if column.right else padding) + " " * GAP)
    return line
