"""The snapshot for people: totals, pools, fragmentation, failures, peaks, the largest stacks."""

from __future__ import annotations

import io
from typing import IO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpumemprof.profile.console import PlainConsole, print_table
from gpumemprof.profile.text import printable, short_path
from gpumemprof.snapshot import oom
from gpumemprof.snapshot.analyse import Totals
from gpumemprof.snapshot.oom import OutOfMemory
from gpumemprof.snapshot.summary import Summary, has_expandable
from gpumemprof.stack.frames import Frame, FrameKind, Stack

_WIDE = 160
_FRAMES = 12
_UNITS = ("KiB", "MiB", "GiB", "TiB")
LEGEND = (
    "reserved: all segments, used or not; allocated: blocks that tensors have; active: those, and "
    "blocks that another stream still uses; inactive split: free blocks in segments that are "
    "partly used"
)


def make_console() -> Console:
    """A console for standard output; text of the file is never taken for markup."""
    console = PlainConsole(highlight=False, markup=False, emoji=False)
    return console if console.is_terminal else _plain(None)


def as_text(summary: Summary, limit: int) -> str:
    """What ``render`` prints, without colours."""
    text = io.StringIO()
    render(summary, _plain(text), limit)
    return text.getvalue()


def _plain(file: IO[str] | None) -> Console:
    """Where there is no terminal lines are wide and nothing is coloured."""
    return PlainConsole(file=file, highlight=False, markup=False, emoji=False, width=_WIDE)


def render(summary: Summary, console: Console, limit: int) -> None:
    """Print it; ``limit``: rows of each table."""
    for warning in summary.snapshot.warnings:
        console.print(Text(f"the file contradicts itself: {printable(warning)}", "bold red"))
    if summary.failed:
        console.print(
            Text(f"{_counted(summary.failed, 'allocation')} failed: see below", "bold red")
        )
    if summary.snapshot.segments:
        _totals(summary, console)
        console.print(Text(LEGEND, "dim"))
        _pools(summary, console, limit)
        _fragmentation(summary, console, limit)
    else:
        console.print(Text("no segments: PyTorch held no GPU memory when this was taken"))
    for failure in summary.failures[-limit:]:
        _failure(failure, summary, console)
    if summary.peaks:
        _peaks(summary, console)
    if summary.stacks:
        _stacks(summary, console, limit)


def _totals(summary: Summary, console: Console) -> None:
    table = _table(
        "device", "reserved", "allocated", "active", "inactive split", "free", "segments"
    )
    for device, total in summary.devices.items():
        table.add_row(
            str(device), *map(_size, _columns(total)), f"{total.segments + total.ranges:,}"
        )
        table.add_row("  exactly", *(f"{value:,}" for value in _columns(total)), "")
        if total.expandable:
            table.add_row("  of it expandable", _size(total.expandable))
    print_table(console, table)


def _columns(total: Totals) -> tuple[int, ...]:
    return total.reserved, total.allocated, total.active, total.inactive_split, total.free


def _pools(summary: Summary, console: Console, limit: int) -> None:
    console.print(Text("\nBy pool and stream", "bold"))
    table = _table(
        "pool", "device", "stream", "reserved", "allocated", "active", "inactive split", "free",
        "largest free", "segments",
    )  # fmt: skip
    for pool, total in list(summary.pools.items())[:limit]:
        table.add_row(
            pool.name, str(pool.device), _stream(pool.stream), *map(_size, _columns(total)),
            _size(total.largest_free), f"{total.segments + total.ranges:,}",
        )  # fmt: skip
    print_table(console, table)
    _more(console, len(summary.pools) - limit, "pool")


def _fragmentation(summary: Summary, console: Console, limit: int) -> None:
    console.print(Text(f"\nFree memory, for a request of {_size(summary.request)}", "bold"))
    for device, rows in summary.unusable.items():
        free = sum(row.free for row in rows)
        usable = sum(row.usable for row in rows)
        share = f" ({100 * (free - usable) / free:.1f}%)" if free else ""
        console.print(
            Text(
                f"device {device}: {_size(free)} free, of which {_size(free - usable)}{share} in "
                f"blocks that it cannot use ({free - usable:,} of {free:,} bytes)"
            )
        )
        growing = sum(row.free - row.usable for row in rows if row.segment.expandable)
        if growing:
            console.print(
                Text(
                    f"  {_size(growing)} of these in expandable segments, which can grow or be "
                    "given back page by page",
                    "italic",
                )
            )
        if not rows:
            continue
        table = _table("segment", "size", "free", "usable", "largest free", "pool")
        for row in rows[:limit]:
            segment = row.segment
            kind = "small" if segment.small else "large"
            table.add_row(
                f"{segment.address:#x}", _size(segment.size), _size(row.free), _size(row.usable),
                _size(segment.largest_free), kind + (", expandable" if segment.expandable else ""),
            )  # fmt: skip
        print_table(console, table)
        _more(console, len(rows) - limit, "segment")


def _failure(failure: OutOfMemory, summary: Summary, console: Console) -> None:
    console.print(
        Text(
            f"\nOut of memory on device {failure.device}: {_size(failure.requested)} asked "
            f"({failure.requested:,} bytes), entry {failure.index:,} of the trace",
            "bold red",
        )
    )
    console.print(
        Text(
            f"then reserved {_size(failure.reserved)}, active {_size(failure.active)}, "
            f"free {_size(failure.free)}"
        )
    )
    for reason in oom.reasons(failure, expandable=has_expandable(summary)):
        console.print(Text(f"  - {reason}"))
    _print_stack(failure.stack, console)


def _peaks(summary: Summary, console: Console) -> None:
    console.print(Text("\nPeaks in the trace", "bold"))
    for device, peak in summary.peaks.items():
        if peak is None:
            console.print(Text(f"device {device}: no trace was recorded"))
            continue
        entries = len(summary.snapshot.traces[device])
        console.print(
            Text(
                f"device {device}: requested {_size(peak.requested)} ({peak.requested:,} bytes) "
                f"after entry {peak.at:,} of {entries:,}, with {_size(peak.reserved_then)} "
                f"reserved; at most {_size(peak.reserved)} ({peak.reserved:,} bytes) reserved"
            )
        )
        if peak.reserved_before:
            console.print(
                Text(
                    f"  the trace begins with {_size(peak.reserved_before)} already reserved, "
                    f"{_size(peak.before)} of it requested: it began late or was overwritten "
                    "(max_entries), so an earlier peak is not in it",
                    "italic",
                )
            )


def _stacks(summary: Summary, console: Console, limit: int) -> None:
    console.print(Text("\nLargest stacks", "bold"))
    total = sum(row.size for row in summary.stacks)
    for row in summary.stacks[:limit]:
        share = f"{100 * row.size / total:.1f}%" if total else "-"
        console.print(
            Text(
                f"{_size(row.size)}  {share}  in {_counted(row.blocks, 'block')}, "
                f"device {row.device}",
                "bold",
            )
        )
        _print_stack(row.stack, console)
    _more(console, len(summary.stacks) - limit, "stack")


def _print_stack(stack: Stack, console: Console) -> None:
    if not stack:
        console.print(
            Text("    no stack: no Python on that thread, or _record_memory_history was off", "dim")
        )
        return
    python = [frame for frame in stack if frame.kind is FrameKind.PYTHON]
    shown = python or list(stack)
    for frame in shown[:_FRAMES]:
        console.print(Text(f"    {printable(frame.name)}  {_place(frame)}"), soft_wrap=True)
    if len(shown) > _FRAMES:
        more = _counted(len(shown) - _FRAMES, "more frame")
        console.print(Text(f"    and {more} outwards", "dim"))


def _place(frame: Frame) -> str:
    where = printable(short_path(frame.file or frame.module))
    return f"{where}:{frame.line}" if frame.line else where


def _more(console: Console, count: int, what: str) -> None:
    if count > 0:
        console.print(Text(f"and {_counted(count, f'more {what}')} (--limit)", "dim"))


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for at, title in enumerate(titles):
        table.add_column(title, justify="right" if at else "left", no_wrap=True)
    return table


def _stream(stream: int) -> str:
    return "default" if stream == 0 else f"{stream:#x}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _size(count: int) -> str:
    scaled: float = count
    if count < 1 << 10:
        return f"{count} B"
    for unit in _UNITS:
        scaled /= 1024
        if scaled < 1024:
            return f"{scaled:.2f} {unit}"
    return f"{scaled:,.2f} {_UNITS[-1]}"
