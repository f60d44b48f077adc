"""A snapshot as a profile, so that report, diff and flame graphs work on it.

- in use: the blocks that are active, by the stack that allocated them, and a note for what is
  reserved but free, so that the total is what the process holds of the GPU.
- at the peak: what was active at the moment of most requested bytes within the trace (where
  nothing was traced: what is in use).
- allocated: allocations in the trace, as requested, by stack.
- failures: out-of-memory entries of the trace, with what was live then.

The snapshot does not say which process it is from, so there is no pid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpumemprof.ledger.events import MemoryKind
from gpumemprof.profile.model import Failure, Labels, Profile, Sample, Values
from gpumemprof.snapshot.model import Action, Snapshot
from gpumemprof.snapshot.oom import OutOfMemory, out_of_memory
from gpumemprof.snapshot.replay import live_at, peak, trace_of
from gpumemprof.stack.frames import Frame, Stack

SOURCE = "PyTorch memory snapshot"
"""What ``about`` says of such a profile."""
FREE = (Frame.note("reserved by PyTorch, not in use"),)
"""Stands for free blocks."""
NO_STACK = (Frame.note("no stack recorded"),)
OUT_OF_MEMORY = 2
"""cudaErrorMemoryAllocation."""
_MAX_LIVE = 100


def profile(snapshot: Snapshot) -> Profile:
    """The profile of all devices."""
    samples: dict[tuple[Stack, Labels], list[int]] = {}
    failures: list[Failure] = []
    devices = {segment.device for segment in snapshot.segments}
    devices |= {device for device, trace in enumerate(snapshot.traces) if trace}
    for device in sorted(devices):
        _device(snapshot, device, samples, failures)
    times = [e.time_us for trace in snapshot.traces for e in trace if e.time_us]
    start = min(times, default=0)
    return Profile(
        samples=tuple(Sample(s, labels, Values(*v)) for (s, labels), v in samples.items()),
        time_ns=start * 1000,
        duration_ns=(max(times, default=0) - start) * 1000,
        failures=tuple(failures),
        about={"source": SOURCE},
    )


def _labels(device: int) -> Labels:
    return (("device", str(device)), ("kind", MemoryKind.DEVICE.value))


def _device(
    snapshot: Snapshot,
    device: int,
    samples: dict[tuple[Stack, Labels], list[int]],
    failures: list[Failure],
) -> None:
    labels = _labels(device)

    def row(stack: Stack) -> list[int]:
        return samples.setdefault((stack or NO_STACK, labels), [0] * 5)

    reserved = active = 0
    for segment in snapshot.segments:
        if segment.device == device:
            reserved += segment.size
            for block in segment.blocks:
                if block.state.active:
                    active += block.size
                    values = row(block.stack)
                    values[2] += 1
                    values[3] += block.size
    if reserved > active:
        row(FREE)[3] += reserved - active
    for event in trace_of(snapshot, device):
        if event.action is Action.ALLOC:
            values = row(event.stack)
            values[0] += 1
            values[1] += event.size
    _peak(snapshot, device, samples, row)
    _failures(snapshot, device, samples, failures)


def _peak(
    snapshot: Snapshot,
    device: int,
    samples: dict[tuple[Stack, Labels], list[int]],
    row: Callable[[Stack], list[int]],
) -> None:
    most = peak(snapshot, device)
    if most is None:
        for (_, of), values in samples.items():
            if of == _labels(device):
                values[4] = values[3]
        return
    for stack, size in most.live.items():
        row(stack)[4] += size
    free = most.reserved_then - sum(most.live.values())
    if free > 0:
        row(FREE)[4] += free


def _failures(
    snapshot: Snapshot,
    device: int,
    samples: dict[tuple[Stack, Labels], list[int]],
    failures: list[Failure],
) -> None:
    found = out_of_memory(snapshot, device)
    if not found:
        return
    labels = _labels(device)
    live = live_at(snapshot, device, [one.index for one in found])
    for one in found:
        for stack in live[one.index]:
            samples.setdefault((stack or NO_STACK, labels), [0] * 5)
    index = {key: at for at, key in enumerate(samples)}
    for one in found:
        by_sample = {
            index[stack or NO_STACK, labels]: size for stack, size in live[one.index].items()
        }
        failures.append(_failure(one, labels, by_sample))


def _failure(one: OutOfMemory, labels: Labels, live: Mapping[int, int]) -> Failure:
    largest = sorted(live.items(), key=lambda pair: -pair[1])
    return Failure(
        time_ns=one.time_us * 1000,
        labels=labels,
        error=OUT_OF_MEMORY,
        requested=one.requested,
        free=one.device_free,
        total=None,
        in_use=one.reserved,
        stack=one.stack or NO_STACK,
        live=tuple(largest[:_MAX_LIVE]),
        live_omitted=sum(size for _, size in largest[_MAX_LIVE:]) + one.reserved - one.active,
    )
