"""The head of the report: what was recorded, whether all of it, totals and processes."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from gpumemprof.profile.completeness import lost, normal
from gpumemprof.profile.merge import PINNED_KIND, gpu_only, of_kinds
from gpumemprof.profile.model import ProcessInfo, Profile, Values
from gpumemprof.profile.text import printable
from gpumemprof.report import units
from gpumemprof.report.hints import hints
from gpumemprof.report.layout import INDENT, Column, columns, print_lines


def print_header(profile: Profile, console: Console, limit: int) -> None:
    """Print it; ``limit``: processes to show."""
    about = dict(profile.about)
    command = about.pop("command", "")
    if command:
        print_lines(console, [Text(printable(command), "bold")])
    print_lines(
        console,
        [
            f"recorded {units.moment(profile.time_ns)} for {units.duration(profile.duration_ns)}",
            ", ".join(f"{name} {text}" for name, text in sorted(about.items())),
        ][: 2 if about else 1],
    )
    if profile.failures:
        failed = units.number(len(profile.failures), "allocation")
        print_lines(console, [Text(f"{failed} failed: see the end", "bold red")])
    console.print()
    _print_losses(profile, console)
    _print_totals(profile, console)
    if profile.processes:
        console.print()
        _print_processes(profile, console, limit)
    for hint in hints(profile):
        console.print()
        print_lines(console, [Text(hint, "italic")])


def _print_losses(profile: Profile, console: Console) -> None:
    losses = lost(profile.completeness)
    if losses:
        print_lines(console, [Text("INCOMPLETE: not everything could be recorded", "bold red")])
        print_lines(console, losses, INDENT)
        console.print()
    notices = normal(profile.completeness)
    if notices:
        print_lines(console, [Text(notice, "dim") for notice in notices])
        console.print()


def _print_totals(profile: Profile, console: Console) -> None:
    several = len(profile.processes) > 1
    layout = (
        Column(""),
        Column("in use"),
        Column("peak (each process's own)" if several else "peak"),
        Column("allocated while recording"),
    )
    rows = []
    for title, part in (
        ("GPU memory", gpu_only(profile)),
        ("Pinned host memory", of_kinds(profile, {PINNED_KIND})),
    ):
        if part.samples or title == "GPU memory":
            rows += _total_rows(title, part.total)
    print_lines(console, columns(console, layout, rows))


def _total_rows(title: str, total: Values) -> list[tuple[str, str, str, str]]:
    sizes = (total.inuse_space, total.peak_space, total.alloc_space)
    in_use, peak, allocated = map(units.size, sizes)
    calls = units.number(total.alloc_objects, "call")
    return [
        (title, in_use, peak, f"{allocated} in {calls}"),
        ("  exactly", *(f"{value:,}" for value in sizes)),  # type: ignore[list-item]
    ]


def _print_processes(profile: Profile, console: Console, limit: int) -> None:
    processes = sorted(profile.processes, key=lambda process: (-process.in_use, -process.peak))
    shown = processes[:limit]
    fields: list[tuple[Column, Callable[[ProcessInfo], str]]] = [
        (Column("process"), lambda process: f"{process.comm} ({process.pid})"),
        (Column("in use", right=True), lambda process: units.size(process.in_use)),
        (Column("peak", right=True), lambda process: units.size(process.peak)),
    ]
    if any(process.pinned_peak for process in profile.processes):
        fields.append((Column("pinned", right=True), lambda p: units.size(p.pinned_in_use)))
    driver = any(process.driver is not None for process in profile.processes)
    if driver:
        fields += [
            (Column("driver", right=True), _driver),
            (Column("not tracked", right=True), _not_tracked),
        ]
    fields.append((Column(""), process_state))
    if any(process.command != profile.about.get("command") for process in profile.processes):
        fields.append((Column("command", flexible=True, keep_start=True), lambda p: p.command))
    cells = [[read(process) for _, read in fields] for process in shown]
    print_lines(console, columns(console, [column for column, _ in fields], cells))
    if len(processes) > limit:
        rest = units.size(sum(process.in_use for process in processes[limit:]))
        more = units.number(len(processes) - limit, "more process").replace("processs", "processes")
        print_lines(console, [Text(f"and {more} with {rest} in use (--limit)", "dim")])
    if driver:
        print_lines(
            console,
            [
                Text(
                    "not tracked: what the driver counts for the process and no recorded call "
                    "asked for: CUDA's own context and code, memory from before recording began",
                    "dim",
                )
            ],
        )


def _driver(process: ProcessInfo) -> str:
    return "-" if process.driver is None else units.size(process.driver)


def _not_tracked(process: ProcessInfo) -> str:
    return "-" if process.driver is None else units.size(process.driver - process.in_use)


def process_state(process: ProcessInfo) -> str:
    """Whether a process runs, or how it ended."""
    if process.ended is None:
        return "running"
    return f"ended ({process.end_reason})" if process.end_reason else "ended"
