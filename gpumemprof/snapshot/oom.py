"""Why allocations failed although memory was free: each out-of-memory entry of the trace, with the
state of the allocator at that moment."""

from __future__ import annotations

from dataclasses import dataclass

from gpumemprof.snapshot.allocator import SMALL, rounded, segment_size
from gpumemprof.snapshot.model import Action, Event, Snapshot
from gpumemprof.snapshot.replay import Moment, Range, backwards
from gpumemprof.stack.frames import Stack

MAX_EVENTS = 100
"""Out-of-memory entries that are looked into, the last ones; all are counted."""


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """One failed allocation. Bytes: ``requested``; ``segment``, what PyTorch asked the driver for;
    ``device_free``, what the driver had then; ``reserved``, ``active`` and ``free`` inside
    PyTorch; ``largest``, the largest free block the request could have come from;
    ``elsewhere``, free for other streams, size classes or private pools; ``waiting``, freed but
    still used by another stream. ``pieces``: free blocks. ``index``: place in the trace."""

    device: int
    index: int
    time_us: int
    requested: int
    segment: int
    device_free: int | None
    reserved: int
    active: int
    free: int
    largest: int
    elsewhere: int
    waiting: int
    pieces: int
    stack: Stack


def out_of_memory(snapshot: Snapshot, device: int) -> list[OutOfMemory]:
    """The failures in the trace of one device, oldest first, at most the last ``MAX_EVENTS``."""
    found: list[OutOfMemory] = []

    def see(moment: Moment, event: Event) -> None:
        if event.action is Action.OOM and len(found) < MAX_EVENTS:
            found.append(_failure(device, moment, event))

    backwards(snapshot, device, see)
    return found[::-1]


def count(snapshot: Snapshot) -> int:
    """How many failures the traces have."""
    return sum(event.action is Action.OOM for trace in snapshot.traces for event in trace)


def _failure(device: int, moment: Moment, event: Event) -> OutOfMemory:
    need = rounded(event.size)
    small = need <= SMALL
    free = largest = elsewhere = pieces = 0
    for range_, gap in _gaps(moment):
        free += gap
        pieces += 1
        if range_.small == small and range_.stream == event.stream and not range_.private:
            largest = max(largest, gap)
        else:
            elsewhere += gap
    return OutOfMemory(
        device=device,
        index=moment.index - 1,
        time_us=event.time_us,
        requested=event.size,
        segment=segment_size(need),
        device_free=event.device_free,
        reserved=moment.reserved,
        active=moment.active_bytes,
        free=free,
        largest=largest,
        elsewhere=elsewhere,
        waiting=sum(moment.active[a].size for a in moment.waiting if a in moment.active),
        pieces=pieces,
        stack=event.stack,
    )


def _gaps(moment: Moment) -> list[tuple[Range, int]]:
    """Free pieces of all segments."""
    blocks = sorted((address, live.size) for address, live in moment.active.items())
    gaps: list[tuple[Range, int]] = []
    index = 0
    for range_ in moment.ranges():
        at = range_.start
        while index < len(blocks) and blocks[index][0] < range_.end:
            address, size = blocks[index]
            index += 1
            if address < range_.start:
                continue
            if address > at:
                gaps.append((range_, address - at))
            at = max(at, address + size)
        if at < range_.end:
            gaps.append((range_, range_.end - at))
    return gaps


def reasons(failure: OutOfMemory, *, expandable: bool) -> list[str]:
    """Why it failed, as sentences; ``expandable``: the allocator had expandable segments."""
    said = []
    pieces = "1 piece" if failure.pieces == 1 else f"{failure.pieces:,} pieces"
    if failure.largest < rounded(failure.requested):
        said.append(
            f"no free block that it could use was large enough: {failure.free:,} bytes were free "
            f"in {pieces}, the largest that fits its stream and pool {failure.largest:,}"
        )
    else:
        said.append(
            f"a free block of {failure.largest:,} bytes was there, but not for it: "
            "max_split_size_mb, or a pool of its own"
        )
    free = failure.device_free
    if free is not None and free < failure.segment:
        said.append(
            f"a new segment needs {failure.segment:,} bytes, and the driver had {free:,} left"
        )
    elif free is not None:
        said.append(
            f"the driver had {free:,} bytes left, enough for a segment of {failure.segment:,}: "
            "a limit of the program's own (set_per_process_memory_fraction), or another process "
            "that took and gave back memory meanwhile"
        )
    if failure.elsewhere:
        said.append(
            f"{failure.elsewhere:,} bytes of what was free belong to other streams, to the other "
            "size class or to private pools (CUDA graphs)"
        )
    if failure.waiting:
        said.append(
            f"{failure.waiting:,} bytes were freed already, but another stream still used them"
        )
    if failure.free >= failure.requested and not expandable:
        said.append(
            "enough was free in all: expandable_segments:True (PYTORCH_ALLOC_CONF) avoids most "
            "of this fragmentation"
        )
    return said
