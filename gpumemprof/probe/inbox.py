"""Takes records out of the kernel's rings early and hands them on in order.

A stack that was never seen before takes milliseconds to unwind, time in which a busy program fills
a ring. So records are first moved here, which takes microseconds; the rings stay small, and this
grows only while there is a backlog. It is bounded: when it is full, records stay in the rings, and
what finds no room there is counted by the kernel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from gpumemprof.probe.events import CallEvent, Event, EventReader, StackEvent
from gpumemprof.probe.ringbuf import RingBuffer

MAX_STACK_BYTES = 64 << 20
MAX_EVENTS = 1 << 18


class Inbox:
    """Events in the kernel's order, and the stacks that belong to them."""

    def __init__(
        self,
        events: RingBuffer,
        stacks: RingBuffer,
        reader: EventReader,
        *,
        at_once: Callable[[StackEvent], None] = lambda _: None,
        max_stack_bytes: int = MAX_STACK_BYTES,
        max_events: int = MAX_EVENTS,
    ) -> None:
        """``at_once`` is shown each stack as it is taken out: for what cannot wait."""
        self._at_once = at_once
        self._event_ring, self._stack_ring, self._reader = events, stacks, reader
        self._max_stack_bytes, self._max_events = max_stack_bytes, max_events
        self._events: deque[Event] = deque()
        self._stacks: dict[int, deque[StackEvent]] = {}
        self._stack_bytes = 0
        self.records = 0
        """Records taken out of the rings since the start."""

    def __len__(self) -> int:
        """Events that wait."""
        return len(self._events)

    def collect(self) -> None:
        """Move what the rings hold here, as far as there is room."""
        # Stacks first: the stack of an event is always sent before the event.
        while self._stack_bytes < self._max_stack_bytes:
            if not self._stack_ring.drain(self._add_stack, limit=64):
                break
        room = self._max_events - len(self._events)
        if room > 0:
            self.records += self._event_ring.drain(self._add_event, limit=room)
        if not self._events:
            self._let_go()

    def next(self) -> Event | None:
        """The next event, None when none waits."""
        return self._events.popleft() if self._events else None

    def stack(self, event: CallEvent) -> StackEvent | None:
        """The stack that was sent for ``event``; None if it is not there."""
        found = self._take(event)
        if found is None:
            # It came after the last look at the ring of stacks, but before its event.
            self._stack_ring.drain(self._add_stack)
            found = self._take(event)
        return found

    def forget(self, pid: int, time_ns: int) -> None:
        """The program that was process ``pid`` ended at ``time_ns``: stacks of its calls that never
        returned are of no use. Stacks of a later program may be here already, and stay."""
        for tid, queue in list(self._stacks.items()):
            while queue and queue[0].pid == pid and queue[0].time_ns <= time_ns:
                self._stack_bytes -= _size(queue.popleft())
            if not queue:
                del self._stacks[tid]

    def _take(self, event: CallEvent) -> StackEvent | None:
        queue = self._stacks.get(event.tid)
        found = None
        # Those of calls that never returned are older; what is newer belongs to later events.
        while queue and found is None and queue[0].time_ns <= event.time_ns:
            stack = queue.popleft()
            self._stack_bytes -= _size(stack)
            if stack.stack_id == event.stack_id and stack.start_ns == event.start_ns:
                found = stack
        if queue is not None and not queue:
            del self._stacks[event.tid]
        return found

    def _let_go(self) -> None:
        """No event waits: stacks are still here only for calls that are under way or never return.
        Beyond the bound the oldest go, or no new one would ever be taken."""
        while self._stack_bytes >= self._max_stack_bytes:
            tid = next(iter(self._stacks))
            for stack in self._stacks.pop(tid):
                self._stack_bytes -= _size(stack)

    def _add_event(self, record: memoryview) -> None:
        self._events.append(self._reader.event(record))

    def _add_stack(self, record: memoryview) -> None:
        stack = self._reader.stack(record)
        self._stacks.setdefault(stack.tid, deque()).append(stack)
        self._stack_bytes += _size(stack)
        self.records += 1
        self._at_once(stack)


def _size(stack: StackEvent) -> int:
    return len(stack.window) + len(stack.python_frames)
