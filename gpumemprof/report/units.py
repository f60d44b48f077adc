"""Numbers as people read them. Sizes are in binary units and say so: GiB, never GB for GiB."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def size(count: int) -> str:
    """Bytes with three significant digits: ``512 B``, ``1.50 GiB``, ``24.0 MiB``, ``1000 MiB``."""
    if count < 0:
        return f"-{size(-count)}"
    unit, scaled = 0, float(count)
    while round(scaled, 0) >= 1024 and unit < len(_UNITS) - 1:
        scaled /= 1024
        unit += 1
    if unit == 0:
        return f"{count} B"
    decimals = 2 if round(scaled, 2) < 10 else 1 if round(scaled, 1) < 100 else 0
    return f"{scaled:.{decimals}f} {_UNITS[unit]}"


def signed(count: int) -> str:
    """A difference in bytes: ``+24.0 MiB``, ``-1.00 GiB``, ``0 B``."""
    return f"+{size(count)}" if count > 0 else size(count)


def exact(count: int) -> str:
    """Bytes to the last one: ``1,610,612,736 bytes``."""
    return number(count, "byte")


def number(count: int, noun: str) -> str:
    """``1 call``, ``1,542 calls``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def share(part: int, whole: int) -> str:
    """``20.6%``; nothing is left for a share of nothing."""
    return f"{100 * part / whole:.1f}%" if whole else "-"


def duration(nanoseconds: int) -> str:
    """``85 ms``, ``8.4 s``, ``1 min 23 s``, ``2 h 5 min``, ``3 d 4 h``."""
    if nanoseconds < 0:
        return f"-{duration(-nanoseconds)}"
    if nanoseconds < 10**9:
        return f"{nanoseconds // 10**6} ms"
    if nanoseconds < 60 * 10**9:
        return f"{nanoseconds // 10**8 / 10:.1f} s"
    seconds = nanoseconds // 10**9
    for large, small, step, unit in (
        ("d", "h", 24 * 3600, 3600),
        ("h", "min", 3600, 60),
        ("min", "s", 60, 1),
    ):
        if seconds >= step:
            return f"{seconds // step} {large} {seconds % step // unit} {small}"
    raise AssertionError("unreachable: a minute or more")


NO_TIME = "at a time that is not known"


def recorded(start_ns: int, duration_ns: int) -> str:
    """``2026-01-01 00:00:00 UTC for 8.4 s``; only the moment where a profile tells what is held
    then, and nothing where no time is known (0), as of a snapshot without a trace."""
    if not start_ns:
        return ""
    return f"{moment(start_ns)} for {duration(duration_ns)}" if duration_ns else moment(start_ns)


def moment(nanoseconds: int) -> str:
    """A wall clock time, ns since the epoch: ``2026-01-01 00:00:00 UTC``."""
    try:
        return f"{_EPOCH + timedelta(seconds=nanoseconds // 10**9):%Y-%m-%d %H:%M:%S} UTC"
    except OverflowError:
        return "at an unknown time"
