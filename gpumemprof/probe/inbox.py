"""Takes records out of the kernel's rings early and hands them on in order.

A stack that was never seen before takes milliseconds to unwind, time in which a busy program fills
a ring. So records are first moved here, which takes microseconds; the rings stay small, and this
grows only while there is a backlog. It is bounded in bytes: when it is full, records stay in the
rings, and what finds no room there is counted by the kernel. Events wait as the bytes they came as,
a third of what they take as values.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from gpumemprof.probe.events import CallEvent, Event, EventReader, StackEvent
from gpumemprof.probe.ringbuf import RingBuffer

MAX_STACK_BYTES = 16 << 20
MAX_EVENT_BYTES = 16 << 20
"""Of waiting events: 35,000."""
_EVER = 1 << 63
_EVENT_OVERHEAD = 56
"""Of a bytes object and its place in the queue."""
_STACK_OVERHEAD = 900
"""Of a StackEvent besides its bytes."""
MOVE_SECONDS = 0.001
"""How often the rings are emptied while new stacks are looked at."""
PAUSE_SECONDS = 0.0005
PAUSES = 400
"""How often, and how long each time, the writer of an unfinished record is waited for."""


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
        max_event_bytes: int = MAX_EVENT_BYTES,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        """``at_once`` is shown each stack as it is taken out: for what cannot wait."""
        self._at_once = at_once
        self._pause = pause
        self._event_ring, self._stack_ring, self._reader = events, stacks, reader
        self._max_stack_bytes, self._max_event_bytes = max_stack_bytes, max_event_bytes
        self._events: deque[bytes] = deque()
        self._event_bytes = 0
        self._blocked_at = -1
        """Where in the ring of stacks an unfinished record was waited for in vain."""
        self._stacks: dict[int, deque[StackEvent]] = {}
        self._stack_bytes = 0
        self._unread: deque[StackEvent] = deque()
        """Stacks that ``at_once`` was not shown yet."""
        self.records = 0
        """Records taken out of the rings since the start."""

    def __len__(self) -> int:
        """Events that wait."""
        return len(self._events)

    def collect(self) -> None:
        """Move what the rings hold here, as far as there is room; then show the new stacks, and
        move again what comes meanwhile: looking at one can take as long as hundreds of new ones
        take to come."""
        self._move()
        moved = time.monotonic()
        while self._unread:
            self._at_once(self._unread.popleft())
            now = time.monotonic()
            if now - moved > MOVE_SECONDS:
                self._move()
                moved = now
        if not self._events:
            self._let_go()

    def _move(self) -> None:
        # Stacks first: the stack of an event is always sent before the event.
        while self._stack_bytes < self._max_stack_bytes:
            if not self._stack_ring.drain(self._add_stack, limit=64):
                break
        while self._event_bytes < self._max_event_bytes:
            room = self._max_event_bytes - self._event_bytes
            taken = self._event_ring.drain(self._add_event, limit=min(256, 1 + room // 512))
            self.records += taken
            if not taken:
                break

    def next(self) -> Event | None:
        """The next event, None when none waits."""
        if not self._events:
            return None
        record = self._events.popleft()
        self._event_bytes -= len(record) + _EVENT_OVERHEAD
        return self._reader.event(memoryview(record))

    def stack(self, event: CallEvent) -> StackEvent | None:
        """The stack that was sent for ``event``; None if it is not there."""
        found = self._take(event)
        if found is None:
            # It came after the last look at the ring of stacks, but before its event.
            self._stack_ring.drain(self._add_stack)
            found = self._take(event)
        if found is None and self._stack_ring.blocked:
            found = self._wait_for(event)
        return found

    def _wait_for(self, event: CallEvent) -> StackEvent | None:
        """The stack may stand behind a record whose writer was interrupted before it was done: it
        is ready when that thread runs again. One such record is waited for only once."""
        place = self._stack_ring.position
        if place == self._blocked_at:
            return None
        for _ in range(PAUSES):
            self._pause(PAUSE_SECONDS)
            self._stack_ring.drain(self._add_stack)
            found = self._take(event)
            if found is not None or not self._stack_ring.blocked:
                return found
        self._blocked_at = self._stack_ring.position
        return None

    def discard(self, pid: int) -> int:
        """A process was switched off: let go of its calls and stacks that wait; how many calls.
        Its fork, exec and exit are still told."""
        reader = self._reader
        kept = deque(record for record in self._events if reader.caller(memoryview(record)) != pid)
        count = len(self._events) - len(kept)
        self._events = kept
        self._event_bytes = sum(len(record) + _EVENT_OVERHEAD for record in kept)
        self.forget(pid, _EVER)
        return count

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
        self._events.append(bytes(record))
        self._event_bytes += len(record) + _EVENT_OVERHEAD

    def _add_stack(self, record: memoryview) -> None:
        stack = self._reader.stack(record)
        self._stacks.setdefault(stack.tid, deque()).append(stack)
        self._stack_bytes += _size(stack)
        self.records += 1
        self._unread.append(stack)


def _size(stack: StackEvent) -> int:
    return len(stack.window) + len(stack.python_frames) + _STACK_OVERHEAD
