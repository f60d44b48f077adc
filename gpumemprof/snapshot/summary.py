"""Everything the snapshot's answer shows, as one value, and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from gpumemprof.snapshot import analyse, oom, replay
from gpumemprof.snapshot.analyse import Pool, Totals, Unusable
from gpumemprof.snapshot.model import Snapshot
from gpumemprof.snapshot.oom import OutOfMemory
from gpumemprof.snapshot.replay import Peak
from gpumemprof.stack.frames import Stack


@dataclass(frozen=True, slots=True)
class StackRow:
    """Active blocks of one allocating stack on one device; ``size``: bytes."""

    device: int
    stack: Stack
    size: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Summary:
    """``request``: bytes that fragmentation is judged by; ``unusable``: the segments where that
    request finds free memory it cannot use, by device; ``failures``: the last ones; ``failed``:
    how many there were. ``peaks``: by device, None without a trace."""

    snapshot: Snapshot
    devices: dict[int, Totals]
    pools: dict[Pool, Totals]
    stacks: list[StackRow]
    peaks: dict[int, Peak | None]
    failures: list[OutOfMemory]
    failed: int
    request: int
    unusable: dict[int, list[Unusable]]


def summarise(snapshot: Snapshot, request: int | None = None) -> Summary:
    """The summary. ``request``: bytes; by default what the last failure asked for, else the
    largest block that is active."""
    devices = analyse.by_device(snapshot)
    traced = [device for device, trace in enumerate(snapshot.traces) if trace]
    for device in traced:
        devices.setdefault(device, Totals())
    failures = [f for device in traced for f in oom.out_of_memory(snapshot, device)]
    failures.sort(key=lambda failure: failure.time_us)
    if request is None:
        active = (b.size for s in snapshot.segments for b in s.blocks if b.state.active)
        request = failures[-1].requested if failures else max(active, default=1 << 20)
    return Summary(
        snapshot,
        devices,
        analyse.by_pool(snapshot),
        _stacks(snapshot),
        {device: replay.peak(snapshot, device) for device in devices},
        failures,
        oom.count(snapshot),
        request,
        {device: analyse.for_request(snapshot, request, device) for device in devices},
    )


def _stacks(snapshot: Snapshot) -> list[StackRow]:
    sums: dict[tuple[int, Stack], list[int]] = {}
    for segment in snapshot.segments:
        for block in segment.blocks:
            if block.state.active:
                row = sums.setdefault((segment.device, block.stack), [0, 0])
                row[0] += block.size
                row[1] += 1
    rows = [StackRow(device, stack, *row) for (device, stack), row in sums.items()]
    return sorted(rows, key=lambda row: -row.size)


def has_expandable(summary: Summary) -> bool:
    """Whether the allocator had expandable segments."""
    return any(segment.expandable for segment in summary.snapshot.segments)


def as_json(summary: Summary, limit: int | None = None) -> dict[str, Any]:
    """For scripts; sizes are bytes. ``limit``: rows of each list."""
    return {
        "devices": {str(device): asdict(total) for device, total in summary.devices.items()},
        "pools": [
            {
                "device": pool.device, "pool_id": list(pool.pool_id),
                "small": pool.small, "stream": pool.stream, **asdict(total),
            }
            for pool, total in summary.pools.items()
        ],
        "peaks": {
            str(device): None if peak is None else {
                "requested": peak.requested, "reserved": peak.reserved,
                "reserved_then": peak.reserved_then, "requested_before": peak.before,
                "reserved_before": peak.reserved_before,
                "entries_before": peak.at,
            }
            for device, peak in summary.peaks.items()
        },
        "request": summary.request,
        "unusable": {
            str(device): {
                "free": sum(row.free for row in rows),
                "usable": sum(row.usable for row in rows),
                "segments": [
                    {"address": row.segment.address, "size": row.segment.size, "free": row.free,
                     "usable": row.usable, "largest_free": row.segment.largest_free}
                    for row in rows[:limit]
                ],
            }
            for device, rows in summary.unusable.items()
        },
        "out_of_memory_count": summary.failed,
        "out_of_memory": [
            {
                **{key: getattr(one, key) for key in _FAILURE_KEYS},
                "reasons": oom.reasons(one, expandable=has_expandable(summary)),
                "stack": _frames(one.stack),
            }
            for one in summary.failures[-limit if limit else 0 :]
        ],
        "stacks": [
            {"device": row.device, "size": row.size, "blocks": row.blocks,
             "stack": _frames(row.stack)}
            for row in summary.stacks[:limit]
        ],
        "settings": dict(summary.snapshot.settings),
        "warnings": list(summary.snapshot.warnings),
    }  # fmt: skip


_FAILURE_KEYS = (
    "device", "index", "time_us", "requested", "segment", "device_free", "reserved", "active",
    "free", "largest", "elsewhere", "waiting", "pieces",
)  # fmt: skip


def _frames(stack: Stack) -> list[dict[str, Any]]:
    return [{"name": f.name, "file": f.file or f.module, "line": f.line} for f in stack]
