"""Collects what was tried in which version, and writes it as the tables of README.md."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

README = Path(__file__).with_name("README.md")
_START, _END = "<!-- generated: {} -->", "<!-- end: {} -->"


class Matrix:
    """Cells by table, row and column; rows and columns in the order they were first seen."""

    def __init__(self) -> None:
        self._cells: dict[str, dict[str, dict[str, str]]] = defaultdict(dict)

    def add(self, table: str, row: str, column: str, cell: str) -> None:
        """Say how ``row`` went in ``column``."""
        self._cells[table].setdefault(row, {})[column] = cell

    def markdown(self, table: str) -> str:
        """The table; a cell nobody filled says so."""
        rows = self._cells[table]
        columns = list(dict.fromkeys(c for cells in rows.values() for c in cells))
        lines = [f"| case | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
        notes: dict[str, int] = {}
        for row, cells in rows.items():
            shown = []
            for column in columns:
                cell = cells.get(column, "not run: the case was not reached")
                if cell.startswith("not run"):
                    number = notes.setdefault(cell, len(notes) + 1)
                    cell = f"- ({number})"
                shown.append(cell)
            lines.append(f"| {row} | {' | '.join(shown)} |")
        lines += ["", *(f"({number}) {text}  " for text, number in notes.items())]
        return "\n".join(lines) + "\n"

    def write(self) -> None:
        """Put the tables between their marks in README.md."""
        if not README.exists():
            return
        text = README.read_text()
        for table in self._cells:
            start, end = _START.format(table), _END.format(table)
            if start in text and end in text:
                before, rest = text.split(start, 1)
                _, after = rest.split(end, 1)
                text = f"{before}{start}\n\n{self.markdown(table)}\n{end}{after}"
        if text != README.read_text():
            README.write_text(text)


MATRIX = Matrix()
