"""From the ledger's snapshot to a profile: stack ids become frames, process ids become labels."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from gpumemprof.ledger.events import UNKNOWN_DEVICE, MemoryKind
from gpumemprof.ledger.model import (
    LET_GO_STACK,
    OVERFLOW_STACK,
    Aggregate,
    AggregateKey,
    LedgerSnapshot,
    ProcessSnapshot,
    Usage,
)
from gpumemprof.ledger.model import Failure as LedgerFailure
from gpumemprof.ledger.series import Points, SeriesKey
from gpumemprof.process.identity import ProcessId
from gpumemprof.process.table import Process
from gpumemprof.profile.model import (
    Failure,
    History,
    Labels,
    ProcessInfo,
    Profile,
    Sample,
    Series,
    Values,
)
from gpumemprof.stack.frames import Frame, Stack

_NOTES: Mapping[int, Stack] = {
    OVERFLOW_STACK: (Frame.note("stacks beyond the limit"),),
    LET_GO_STACK: (Frame.note("stacks of which nothing is held any more"),),
}

MAX_HISTORIES = 64

Resolve = Callable[[int], Stack]
PlaceLabels = Callable[[ProcessId, int], Labels]
"""More labels for what a process holds on a device, by its CUDA ordinal; not for host memory."""
_PINNED = MemoryKind.PINNED_HOST.value


def build(
    snapshot: LedgerSnapshot,
    processes: Iterable[Process],
    resolve: Resolve,
    *,
    started_ns: int,
    duration_ns: int,
    completeness: Mapping[str, int],
    about: Mapping[str, str],
    driver_bytes: Mapping[ProcessId, int] | None = None,
    before_attach: Mapping[ProcessId, int] | None = None,
    labels: PlaceLabels = lambda _process, _device: (),
    series: Mapping[SeriesKey, Points] | None = None,
    histories: Mapping[AggregateKey, Points] | None = None,
) -> Profile:
    """The profile of a recording.

    ``resolve``: frames of a stack id. ``started_ns``: wall clock. ``driver_bytes``: what NVML
    attributes to a process now; ``before_attach``: bytes it held when recording began. ``labels``
    adds to those of the samples. ``series``: what processes held over time,
    ``histories``: what stacks held; of those the ``MAX_HISTORIES`` that grew most are kept.
    """
    known = {process.id: process for process in processes}
    samples: list[Sample] = []
    index: dict[AggregateKey, int] = {}
    for aggregate in snapshot.aggregates:
        index[aggregate.key] = len(samples)
        samples.append(_sample(aggregate, known, resolve, labels))
    for process, size in (before_attach or {}).items():
        if size > 0:
            told = _labels(known, process, "", "device", UNKNOWN_DEVICE, labels)
            stack = (Frame.note("before attach"),)
            samples.append(Sample(stack, told, Values(0, 0, 0, size, size)))
    wall_offset = time.time_ns() - time.monotonic_ns()
    return Profile(
        samples=tuple(samples),
        time_ns=started_ns,
        duration_ns=duration_ns,
        processes=_processes(snapshot, known, driver_bytes or {}, before_attach or {}),
        failures=tuple(
            _failure(failure, known, resolve, index, wall_offset, labels)
            for failure in snapshot.failures
        ),
        completeness={
            **completeness,
            **{count.value: number for count, number in snapshot.counters.items()},
        },
        about=about,
        series=tuple(
            Series(
                _labels(known, key.process, "", key.kind.value, key.device, labels),
                tuple((time_ns + wall_offset, size) for time_ns, size in points),
            )
            for key, points in (series or {}).items()
        ),
        histories=tuple(_histories(histories or {}, snapshot, index, wall_offset)),
    )


def _histories(
    histories: Mapping[AggregateKey, Points],
    snapshot: LedgerSnapshot,
    index: Mapping[AggregateKey, int],
    wall_offset: int,
) -> Iterator[History]:
    """Of each process until before its end, when it may give back what it leaked."""
    ended = {process.process: process.ended_ns for process in snapshot.processes}
    grown: list[tuple[int, AggregateKey, Points]] = []
    for key, points in histories.items():
        end = ended.get(key.process)
        lived = points if end is None else tuple(p for p in points if p[0] < end)[:-1]
        growth = lived[-1][1] - min(size for _, size in lived) if lived else 0
        if growth > 0 and key in index:
            grown.append((growth, key, lived))
    for _, key, lived in heapq.nlargest(MAX_HISTORIES, grown, key=lambda each: each[0]):
        yield History(index[key], tuple((when + wall_offset, size) for when, size in lived))


def _labels(
    known: Mapping[ProcessId, Process],
    process: ProcessId,
    call: str,
    kind: str,
    device: int,
    more: PlaceLabels,
) -> Labels:
    found = known.get(process)
    labels = {
        **(dict(more(process, device)) if kind != _PINNED else {}),
        "pid": str(process.pid),
        "comm": found.comm if found else "",
        "call": call,
        "kind": kind,
        "device": "unknown" if device == UNKNOWN_DEVICE else str(device),
    }
    return tuple(sorted((key, value) for key, value in labels.items() if value))


def _sample(
    aggregate: Aggregate,
    known: Mapping[ProcessId, Process],
    resolve: Resolve,
    labels: PlaceLabels,
) -> Sample:
    key = aggregate.key
    return Sample(
        stack=_NOTES.get(key.stack) or resolve(key.stack),
        labels=_labels(known, key.process, key.call, key.kind.value, key.device, labels),
        values=Values(
            aggregate.alloc_count,
            aggregate.alloc_bytes,
            aggregate.inuse_count,
            aggregate.inuse_bytes,
            aggregate.peak_bytes,
        ),
    )


def _processes(
    snapshot: LedgerSnapshot,
    known: Mapping[ProcessId, Process],
    driver_bytes: Mapping[ProcessId, int],
    before_attach: Mapping[ProcessId, int],
) -> tuple[ProcessInfo, ...]:
    """Those that made a call, and those that were asked for and made none."""
    told = [
        _process(process, known[process.process], driver_bytes)
        for process in snapshot.processes
        if process.process in known
    ]
    seen = {process.process for process in snapshot.processes}
    for process in before_attach:
        # A command is asked for before it calls exec, as a copy of us.
        if process in known and process not in seen and known[process].end_reason != "exec":
            silent = ProcessSnapshot(process, 0, None, "", Usage(), Usage(), 0, (), {})
            told.append(_process(silent, known[process], driver_bytes))
    return tuple(told)


def _process(
    process: ProcessSnapshot, found: Process, driver_bytes: Mapping[ProcessId, int]
) -> ProcessInfo:
    return ProcessInfo(
        pid=process.process.pid,
        comm=found.comm,
        command=found.command,
        started=found.started,
        ended=found.ended,
        end_reason=found.end_reason,
        in_use=process.gpu.in_use,
        peak=process.gpu.peak,
        pinned_in_use=process.pinned.in_use,
        pinned_peak=process.pinned.peak,
        driver=driver_bytes.get(process.process),
    )


def _failure(
    failure: LedgerFailure,
    known: Mapping[ProcessId, Process],
    resolve: Resolve,
    index: Mapping[AggregateKey, int],
    wall_offset: int,
    labels: PlaceLabels,
) -> Failure:
    memory = failure.memory
    return Failure(
        time_ns=failure.time_ns + wall_offset,
        labels=_labels(
            known, failure.process, failure.call, failure.kind.value, failure.device, labels
        ),
        error=failure.error,
        requested=failure.requested,
        free=memory.free if memory else None,
        total=memory.total if memory else None,
        in_use=failure.in_use if failure.kind.on_gpu else failure.pinned_in_use,
        stack=resolve(failure.stack),
        live=tuple((index[key], size) for key, size in failure.live if key in index),
        live_omitted=failure.live_omitted
        + sum(size for key, size in failure.live if key not in index),
    )
