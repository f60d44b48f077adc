"""Memory over time in the terminal: a line of blocks for each process, group and device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from gpumemprof.profile.merge import PINNED_KIND, label
from gpumemprof.profile.model import Failure, Labels, Profile
from gpumemprof.profile.over_time import Points, column_of, highest, total
from gpumemprof.profile.text import printable
from gpumemprof.report import units
from gpumemprof.report.layout import GAP, cut_left, print_lines

MAX_LINES = 10
_WIDEST, _NARROWEST, _WITHOUT_TERMINAL = 60, 12, 48
"""Columns of a chart: in a wide terminal, in a narrow one, in a file or pipe."""


@dataclass(frozen=True, slots=True)
class _Marks:
    levels: str
    """From nothing to the most."""
    peak: str
    failed: str


_BLOCKS = _Marks(" ▁▂▃▄▅▆▇█", "▲", "×")
_ASCII = _Marks(" .:-=+*#@", "^", "x")


@dataclass(slots=True)
class _Line:
    """What one process holds of one group on one device; ``failed``: times of failures."""

    name: str
    parts: list[Points] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    points: Points = ()

    @property
    def peak(self) -> tuple[int, int]:
        return max(self.points, key=lambda point: point[1], default=(0, 0))


def print_series(profile: Profile, console: Console, limit: int) -> None:
    """Print what each process held over time, the ``limit`` largest first; nothing where the
    profile does not tell."""
    lines = sorted(_lines(profile), key=lambda line: -line.peak[1])
    lines = [line for line in lines if line.peak[1]]
    if not lines:
        return
    marks = _marks(console)
    shown = lines[: min(limit, MAX_LINES)]
    legend = f"{marks.peak} peak"
    if any(line.failed for line in shown):
        legend += f", {marks.failed} failed allocation"
    console.print()
    title = f"Memory over time, 0 to {units.duration(profile.duration_ns)}"
    print_lines(console, [Text.assemble((title, "bold"), (f" ({legend})", "dim"))])
    print_lines(console, _drawn(shown, profile, console, marks))
    if len(lines) > len(shown):
        more = units.number(len(lines) - len(shown), "more line")
        print_lines(console, [Text(f"and {more} (--format json has all)", "dim")])


def _drawn(shown: list[_Line], profile: Profile, console: Console, marks: _Marks) -> list[Text]:
    tails = [
        f"{units.size(size)} at {units.duration(max(time_ns - profile.time_ns, 0))}"
        for time_ns, size in (line.peak for line in shown)
    ]
    names = [printable(line.name) for line in shown]
    width, wide = _WITHOUT_TERMINAL, max(map(cell_len, names))
    if console.is_terminal:
        room = console.width - max(map(len, tails)) - 2 * GAP
        wide = max(min(wide, room - _NARROWEST), _NARROWEST)
        width = max(min(room - wide, _WIDEST), _NARROWEST)
        names = [cut_left(name, wide) for name in names]
    drawn = []
    for line, name, tail in zip(shown, names, tails, strict=True):
        chart = Text(_chart(line, profile, marks, width), "cyan")
        for at in (at for at, char in enumerate(chart.plain) if char == marks.failed):
            chart.stylize("bold red", at, at + 1)
        padding = " " * (wide - cell_len(name) + GAP)
        drawn.append(Text.assemble(name, padding, chart, " " * GAP, tail))
    return drawn


def _lines(profile: Profile) -> Iterable[_Line]:
    devices: dict[Labels, set[str]] = {}
    for series in profile.series:
        owner = _owner(series.labels)
        devices.setdefault(owner, set()).add(label(series.labels, "device") or "")
    lines: dict[tuple[Labels, str], _Line] = {}
    for series in profile.series:
        owner = _owner(series.labels)
        device = label(series.labels, "device") or ""
        if dict(owner)["group"] == "pinned":
            device = ""
        name = _name(owner, device if len(devices[owner]) > 1 else "")
        lines.setdefault((owner, device), _Line(name)).parts.append(series.points)
    for failure in profile.failures:
        for line in _of_failure(failure, lines):
            line.failed.append(failure.time_ns)
    for line in lines.values():
        line.points = line.parts[0] if len(line.parts) == 1 else total(line.parts)
    return lines.values()


def _owner(labels: Labels) -> Labels:
    """Process and pod, and the group of memory."""
    kept = [pair for pair in labels if pair[0] not in {"kind", "device", "call", "gpu", "gpu_uuid"}]
    return (*kept, ("group", "pinned" if label(labels, "kind") == PINNED_KIND else "gpu"))


def _name(owner: Labels, device: str) -> str:
    found = dict(owner)
    pod = "/".join(filter(None, (found.get("namespace"), found.get("pod"))))
    pid = f"({found['pid']})" if "pid" in found else ""
    parts = [pod, found.get("comm", ""), pid]
    if device:
        parts.append(f"device {device}")
    if found["group"] == "pinned":
        parts.append("pinned")
    return " ".join(filter(None, parts))


def _of_failure(failure: Failure, lines: dict[tuple[Labels, str], _Line]) -> Iterable[_Line]:
    """The line of its device, or all lines of its process and group if that has none."""
    owner, device = _owner(failure.labels), label(failure.labels, "device") or ""
    if (owner, device) in lines:
        return [lines[owner, device]]
    return [line for (of, _), line in lines.items() if of == owner]


def _marks(console: Console) -> _Marks:
    try:
        (_BLOCKS.levels + _BLOCKS.peak + _BLOCKS.failed).encode(console.encoding)
    except (UnicodeEncodeError, LookupError):
        return _ASCII
    return _BLOCKS


def _chart(line: _Line, profile: Profile, marks: _Marks, width: int) -> str:
    start, end = profile.time_ns, profile.time_ns + profile.duration_ns
    when, most = line.peak
    top = len(marks.levels) - 1
    chart = [
        marks.levels[-(-top * size // most)] for size in highest(line.points, start, end, width)
    ]
    chart[column_of(when, start, end, width)] = marks.peak
    for time_ns in line.failed:
        chart[column_of(time_ns, start, end, width)] = marks.failed
    return "".join(chart)
