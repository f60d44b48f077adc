"""The head of the report: what was recorded, whether all of it, totals and processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rich.console import Console
from rich.text import Text

from gpumemprof.profile.completeness import lost, normal
from gpumemprof.profile.merge import PINNED_KIND, gpu_only, of_kinds
from gpumemprof.profile.model import ProcessInfo, Profile, Values
from gpumemprof.profile.text import printable
from gpumemprof.report import units
from gpumemprof.report.changes import GPU_TITLE, PINNED_TITLE
from gpumemprof.report.hints import hints
from gpumemprof.report.layout import INDENT, Column, columns, print_lines

GPU_ONLY = "GPU memory"
"""What ``about`` says under ``only`` where pinned host memory was left out."""
_FIRST = ("only", "source", "loader", "attach", "kernel")
_AT_THE_END = "libraries"
"""Many long paths, which nobody wants to read first."""


def print_header(profile: Profile, console: Console, limit: int) -> None:
    """Print it; ``limit``: processes to show."""
    about = dict(profile.about)
    command = about.pop("command", "")
    if command:
        print_lines(console, [Text(printable(command), "bold")])
    about.pop(_AT_THE_END, None)
    when = units.recorded(profile.time_ns, profile.duration_ns)
    lines = [f"recorded {when}" if when else "", _how(about)]
    print_lines(console, [line for line in lines if line])
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


def print_end(profile: Profile, console: Console) -> None:
    """Print which libraries were probed, where that is told."""
    libraries = profile.about.get(_AT_THE_END)
    if libraries:
        console.print()
        print_lines(console, [Text(f"{_AT_THE_END}: {printable(libraries)}", "dim")])


def kind_title(profile: Profile) -> str:
    """What the profile is of, to begin a sentence with: one kind of memory, or GPU memory."""
    only = printable(profile.about.get("only", GPU_TITLE))
    return only[:1].upper() + only[1:]


def _how(about: Mapping[str, str]) -> str:
    first = [name for name in _FIRST if name in about]
    names = [*first, *sorted(about.keys() - set(first))]
    return ", ".join(f"{name} {about[name]}" for name in names)


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
    if "only" in profile.about:
        rows += _total_rows(kind_title(profile), profile.total)
    else:
        rows += _total_rows(GPU_TITLE, gpu_only(profile).total)
        pinned = of_kinds(profile, {PINNED_KIND})
        if pinned.samples:
            rows += _total_rows(PINNED_TITLE, pinned.total)
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
    only = profile.about.get("only", GPU_ONLY)
    if only != GPU_ONLY:
        text = f"processes with the GPU memory of every kind that they hold, not {only} alone"
        print_lines(console, [Text(printable(text), "dim")])
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
