"""Writes the tables of docs/metrics.md from the tables of the code: run it in the checkout."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from gpumemprof.export.metrics import METRICS
from gpumemprof.profile.completeness import LOST, NORMAL

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"


def current(page: str) -> str:
    """The page with its tables as they should be."""
    memory = [m for m in METRICS if not m.name.startswith("gpumemprof_agent_")]
    agent = [m for m in METRICS if m.name.startswith("gpumemprof_agent_")]
    for name, lines in (
        ("memory", _metrics(memory, of_agent=False)),
        ("agent", _metrics(agent, of_agent=True)),
        ("lost", _words("cause", LOST)),
        ("noted", _words("what", NORMAL)),
    ):
        pattern = re.compile(f"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text = "".join(f"{line}\n" for line in lines)
        page, found = pattern.subn(lambda m, text=text: m[1] + text + m[2], page)
        assert found == 1, name
    return page


def _metrics(metrics: Iterable, *, of_agent: bool) -> list[str]:
    if not of_agent:
        return [
            "| metric | type | |",
            "|---|---|---|",
            *(f"| `{m.name}` | {m.type} | {m.help} |" for m in metrics),
        ]
    return [
        "| metric | type | labels | |",
        "|---|---|---|---|",
        *(f"| `{m.name}` | {m.type} | {', '.join(m.labels) or '–'} | {m.help} |" for m in metrics),
    ]


def _words(heading: str, words: dict[str, str]) -> list[str]:
    return [
        f"| {heading} | so many |",
        "|---|---|",
        *(f"| `{name}` | {meaning} |" for name, meaning in words.items()),
    ]


if __name__ == "__main__":
    PAGE.write_text(current(PAGE.read_text()))
