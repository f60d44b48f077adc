"""What checks found: rows of ours against theirs, kept as JSON while they come, shown as tables."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Check:
    """A check by name. ``alone``: it needs the whole GPU, or a quiet machine."""

    name: str
    group: str
    seconds: int
    alone: bool
    run: Callable[[Run], None]


CHECKS: dict[str, Check] = {}


def check(
    name: str, group: str, seconds: int = 240, *, alone: bool = False
) -> Callable[[Callable[[Run], None]], Callable[[Run], None]]:
    """Registers a check."""

    def register(function: Callable[[Run], None]) -> Callable[[Run], None]:
        CHECKS[name] = Check(name, group, seconds, alone, function)
        return function

    return register


class Skipped(Exception):
    """The check cannot be made here, and why."""


@dataclass
class Run:
    """One run of a check: its means, and what it found. Every row is on disk at once."""

    name: str
    file: Path
    logs: Path
    binaries: Path
    programs: Path
    python: str
    stand_ins: bool = False
    """Whether it runs on the stand-in libraries, without a GPU."""
    env: dict[str, str] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    rows: list[dict[str, Any]] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    status: str = "running"
    problem: str = ""

    def _row(self, what: str, ours: Any, theirs: Any, ok: bool | None, note: str = "") -> None:
        difference = (
            ours - theirs
            if isinstance(ours, int | float)
            and isinstance(theirs, int | float)
            and not isinstance(ours, bool)
            else None
        )
        self.rows.append(
            {
                "what": what, "ours": ours, "theirs": theirs, "difference": difference,
                "ok": ok, "note": note,
            }
        )  # fmt: skip
        self.save()

    def equal(self, what: str, ours: Any, theirs: Any, note: str = "") -> None:
        """Ours has to be theirs, exactly."""
        self._row(what, ours, theirs, ours == theirs, note or "equal")

    def within(self, what: str, ours: float, theirs: float, tolerance: float) -> None:
        """Ours may differ by ``tolerance``."""
        self._row(what, ours, theirs, abs(ours - theirs) <= tolerance, f"± {tolerance:g}")

    def at_most(self, what: str, ours: float, theirs: float) -> None:
        """Ours may not be more than theirs."""
        self._row(what, ours, theirs, ours <= theirs, "at most")

    def true(self, what: str, ok: bool, told: Any = "") -> None:
        """A condition; ``told``: what was found."""
        self._row(what, told, "", bool(ok))

    def report(self, what: str, value: Any, beside: Any = "", note: str = "") -> None:
        """A figure that is told and not judged."""
        self._row(what, value, beside, None, note)

    def detail(self, name: str, value: Any) -> None:
        """Something for the JSON and the logs only."""
        self.details[name] = value
        self.save()

    @property
    def failed(self) -> bool:
        """Whether a row is wrong."""
        return any(row["ok"] is False for row in self.rows)

    def end(self, status: str, problem: str = "") -> None:
        """The last word."""
        self.status, self.problem = status, problem
        self.save()

    def save(self) -> None:
        """Write it whole or not at all."""
        part = self.file.with_suffix(".part")
        part.write_text(json.dumps(self.as_dict(), indent=1, default=str))
        part.replace(self.file)

    def as_dict(self) -> dict[str, Any]:
        """For the file."""
        return {
            "name": self.name,
            "status": self.status,
            "problem": self.problem,
            "seconds": round(time.monotonic() - self.started, 1),
            "rows": self.rows,
            "details": self.details,
        }


def markdown(results: Iterable[dict[str, Any]]) -> str:
    """All results as one table each."""
    parts = []
    for result in results:
        parts.append(f"## {result['name']}: {result['status']} ({result['seconds']} s)\n")
        if result["problem"]:
            parts.append(f"```\n{result['problem']}\n```\n")
        if result["rows"]:
            parts.append("| what | gpumemprof | the other | difference | |\n|---|--:|--:|--:|---|")
            for row in result["rows"]:
                verdict = {True: "ok", False: "**WRONG**", None: "told"}[row["ok"]]
                note = f" ({row['note']})" if row["note"] else ""
                parts.append(
                    f"| {row['what']} | {number(row['ours'])} | {number(row['theirs'])} "
                    f"| {number(row['difference'])} | {verdict}{note} |"
                )
            parts.append("")
    return "\n".join(parts)


def number(value: Any) -> str:
    """A figure for a table."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    return str(value).replace("|", "\\|").replace("\n", " ")
