"""The trace played backwards from the snapshot: peaks, and what was where at any moment.

The snapshot is the state at the end, so each entry can be undone: what was allocated was not
there before, what was freed was. This is exact for as far as the trace reaches, also where its
beginning was overwritten. Sizes in the trace are as requested; blocks that live to the end have
their real size, others their request rounded up to 512 bytes, which leaves out rests that were
not split off.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from gpumemprof.ledger.ranges import RangeMap
from gpumemprof.snapshot.allocator import SMALL_SEGMENT, rounded
from gpumemprof.snapshot.model import Action, Event, Snapshot, State
from gpumemprof.stack.frames import Stack

_TOP = 1 << 66


@dataclass(slots=True)
class Live:
    """One block that is active at the moment. ``asked``: bytes requested."""

    size: int
    asked: int
    stack: Stack


@dataclass(frozen=True, slots=True)
class Range:
    """Addresses of one segment, or of what is mapped in one piece of an expandable segment."""

    start: int
    end: int
    stream: int
    small: bool
    expandable: bool
    private: bool = False

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.start


@dataclass(slots=True)
class Moment:
    """Everything on one device after ``index`` entries of its trace. ``segments`` and ``active``
    by address; ``requested``, ``active_bytes`` and ``reserved``: their sums in bytes; ``waiting``:
    addresses of blocks whose free waits for another stream."""

    index: int
    segments: RangeMap[Range] = field(default_factory=RangeMap)
    active: dict[int, Live] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)
    requested: int = 0
    active_bytes: int = 0
    reserved: int = 0

    def ranges(self) -> list[Range]:
        """All segments, by address."""
        found = self.segments.take_overlapping(0, _TOP)
        self.segments.add_all(found)
        return found

    def add(self, new: Range) -> None:
        """A segment that is there; pieces of an expandable one that touch become one."""
        self.reserved += new.size
        if new.expandable:
            for side in (new.start - 1, new.end):
                near = self.segments.covering(side)
                if near is not None and near.expandable and near.stream == new.stream:
                    self.segments.take_these([near])
                    new = replace(new, start=min(new.start, near.start), end=max(new.end, near.end))
        self.remove(new.start, new.end)  # where a file contradicts itself
        self.segments.add(new)

    def remove(self, start: int, end: int) -> None:
        """What is in [start, end) is not there; what stands out of it stays."""
        for old in self.segments.take_overlapping(start, end):
            self.reserved -= min(old.end, end) - max(old.start, start)
            if old.start < start:
                self.segments.add(replace(old, end=start))
            if old.end > end:
                self.segments.add(replace(old, start=end))


@dataclass(frozen=True, slots=True)
class Peak:
    """The moment at which most was active. ``requested``: bytes that tensors had asked for and not
    given back (PyTorch's ``requested_bytes.all.peak``); ``at``: entries of the trace before that
    moment; ``reserved_then``: bytes of segments then; ``live``: bytes by allocating stack.
    ``reserved``: most bytes of segments at any time. ``before`` and ``reserved_before``: bytes that
    were requested, and in segments, when the trace begins: if they are not 0, it began late or its
    beginning was overwritten, and an earlier peak is not in it."""

    requested: int
    at: int
    reserved_then: int
    live: dict[Stack, int]
    reserved: int
    before: int
    reserved_before: int


def end_of(snapshot: Snapshot, device: int) -> Moment:
    """The state in the snapshot."""
    moment = Moment(len(trace_of(snapshot, device)))
    for segment in snapshot.segments:
        if segment.device != device or not segment.size:
            continue
        moment.add(
            Range(
                segment.address,
                segment.address + segment.size,
                segment.stream,
                segment.small,
                segment.expandable,
                segment.pool_id != (0, 0),
            )
        )
        for block in segment.blocks:
            if block.state.active:
                moment.active[block.address] = Live(block.size, block.requested, block.stack)
                moment.requested += block.requested
                moment.active_bytes += block.size
            if block.state is State.AWAITING_FREE:
                moment.waiting.add(block.address)
    return moment


def trace_of(snapshot: Snapshot, device: int) -> tuple[Event, ...]:
    """The trace of one device, empty if none was recorded."""
    return snapshot.traces[device] if device < len(snapshot.traces) else ()


def backwards(snapshot: Snapshot, device: int, see: Callable[[Moment, Event], None]) -> Moment:
    """Undo the trace entry by entry; ``see`` is called with the state after each entry and the
    entry itself, last first. Returns the state before the first."""
    moment = end_of(snapshot, device)
    trace = trace_of(snapshot, device)
    for index in range(len(trace) - 1, -1, -1):
        see(moment, trace[index])
        _undo(moment, trace[index])
        moment.index = index
    return moment


def _undo(moment: Moment, event: Event) -> None:
    action = event.action
    if action is Action.ALLOC:
        live = moment.active.pop(event.address, None)
        if live is not None:
            moment.requested -= live.asked
            moment.active_bytes -= live.size
            moment.waiting.discard(event.address)
    elif action is Action.FREE_COMPLETED:
        size = rounded(event.size)
        if event.address not in moment.active:
            moment.active[event.address] = Live(size, event.size, event.stack)
            moment.requested += event.size
            moment.active_bytes += size
            moment.waiting.add(event.address)
    elif action is Action.FREE_REQUESTED:
        moment.waiting.discard(event.address)
    elif event.size and action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP):
        moment.remove(event.address, event.address + event.size)
    elif event.size and action in (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP):
        moment.add(
            Range(
                event.address,
                event.address + event.size,
                event.stream,
                event.size <= SMALL_SEGMENT,
                action is Action.SEGMENT_UNMAP,
            )
        )


def peak(snapshot: Snapshot, device: int) -> Peak | None:
    """The peaks of one device within its trace; None if nothing was traced."""
    trace = trace_of(snapshot, device)
    if not trace:
        return None
    most = (-1, 0, 0)  # requested, index, reserved then
    reserved = 0

    def see(moment: Moment) -> None:
        nonlocal most, reserved
        if moment.requested >= most[0]:  # the earliest of equals
            most = (moment.requested, moment.index, moment.reserved)
        reserved = max(reserved, moment.reserved)

    start = backwards(snapshot, device, lambda moment, event: see(moment))
    see(start)
    requested, at, then = most
    live = live_at(snapshot, device, [at])[at]
    return Peak(requested, at, then, live, reserved, start.requested, start.reserved)


def live_at(snapshot: Snapshot, device: int, moments: Iterable[int]) -> dict[int, dict[Stack, int]]:
    """Bytes by allocating stack, after so many entries of the trace.

    A block that was freed before the end was seen with the stack of its free: its allocation tells
    the right one, if it is in the trace."""
    wanted = set(moments)
    trace = trace_of(snapshot, device)
    found: dict[int, dict[Stack, int]] = {}
    allocated_at = _allocations(trace)

    def take(moment: Moment) -> None:
        if moment.index not in wanted:
            return
        sums: dict[Stack, int] = {}
        for address, live in moment.active.items():
            stack = allocated_at(address, moment.index, live.stack)
            sums[stack] = sums.get(stack, 0) + live.size
        found[moment.index] = sums

    take(backwards(snapshot, device, lambda moment, event: take(moment)))
    return found


def _allocations(trace: tuple[Event, ...]) -> Callable[[int, int, Stack], Stack]:
    """A function of address, moment and default: the stack of the last allocation there."""
    at: dict[int, list[int]] = {}
    for index, event in enumerate(trace):
        if event.action is Action.ALLOC:
            at.setdefault(event.address, []).append(index)

    def stack(address: int, moment: int, default: Stack) -> Stack:
        indexes = at.get(address, [])
        last = bisect.bisect_left(indexes, moment)
        return trace[indexes[last - 1]].stack if last else default

    return stack
