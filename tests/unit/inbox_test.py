"""Events in order and the stacks that belong to them, whatever was lost in between."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hooked_calls import OUT
from kernel_side import BUSY, PAGE, Ring, btf, call_record, record, stack_record

from gpumemprof.probe.calls import ROWS
from gpumemprof.probe.events import CallEvent, EventReader, EventType, ProcessEvent
from gpumemprof.probe.inbox import PAUSES, Inbox

READER = EventReader(btf().layout)


class Kernel:
    """The kernel's side of an inbox."""

    def __init__(self, **limits: Any) -> None:
        self.events, self.stacks = Ring(16 * PAGE), Ring(16 * PAGE)
        self.inbox = Inbox(self.events.reader, self.stacks.reader, READER, **limits)

    def close(self) -> None:
        self.events.close()
        self.stacks.close()

    def event(self) -> CallEvent:
        """The next event, a call."""
        event = self.inbox.next()
        assert isinstance(event, CallEvent)
        return event

    def window(self) -> bytes | None:
        """The stack of the next event."""
        stack = self.inbox.stack(self.event())
        return stack.window if stack else None


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    made = Kernel()
    yield made
    made.close()


# Records as values


def test_a_call_is_read_field_by_field(kernel: Kernel) -> None:
    kernel.events.send(
        record(
            "call_event", type=EventType.RETURN, time_ns=1, start_ns=2, pid=3, tid=4,
            call=ROWS["cudaMalloc"], context=5, result=6, args=OUT, stack_args=7, out1=8, out2=9,
            stack_id=10, stack_state=1, readable=15, file=12, **{"in": 13},
        )
    )  # fmt: skip
    kernel.inbox.collect()
    assert kernel.inbox.next() == CallEvent(
        EventType.RETURN, 1, 2, 3, 4, ROWS["cudaMalloc"], 5, 6, (OUT, 0, 0, 0, 0, 0), (7, 0, 0, 0),
        (13, 0, 0, 0, 0, 0, 0, 0), (8, 0, 0, 0), 9, 10, 1, 15, 12,
    )  # fmt: skip


def test_the_end_of_a_process_is_read_with_its_name(kernel: Kernel) -> None:
    data = record("process_event", type=EventType.EXIT, time_ns=1, start_ns=2, pid=3, tid=3)
    offset = btf().layout("process_event").fields["comm"].offset
    name = b"odd \xff(\x1b)\0left over"[:16]
    kernel.events.send(data[:offset] + name + data[offset + 16 :])
    kernel.inbox.collect()
    assert kernel.inbox.next() == ProcessEvent(EventType.EXIT, 1, 2, 3, 3, 0, 0, "odd �(\x1b)")


def test_calls_and_processes_are_told_apart_by_their_size() -> None:
    assert btf().layout("call_event").size != btf().layout("process_event").size


def test_a_stack_is_read_with_its_python_frames_and_its_window(kernel: Kernel) -> None:
    frames = bytes(range(48))
    data = stack_record(4, 1, 1, frames + b"window", py_frames=2, py_state=1, window_full=1, sp=99)
    fields = btf().layout("stack_event").fields["stack_len"]
    data = data[: fields.offset] + (6).to_bytes(4, "little") + data[fields.offset + 4 :]
    kernel.stacks.send(data)
    kernel.events.send(call_record(4, 2, stack_id=1))
    kernel.inbox.collect()
    stack = kernel.inbox.stack(kernel.event())
    assert stack
    assert (stack.python_frames, stack.window, stack.window_full) == (frames, b"window", True)
    assert (stack.python_state, stack.registers[1]) == (1, 99)


# Pairing


def test_each_event_gets_the_stack_that_was_sent_for_it(kernel: Kernel) -> None:
    for number, tid in ((1, 4), (2, 4), (1, 5)):
        kernel.stacks.send(stack_record(tid, 10 * number, number, b"%d of %d" % (number, tid)))
        kernel.events.send(call_record(tid, 10 * number + 1, stack_id=number))
    kernel.inbox.collect()
    assert [kernel.window() for _ in range(3)] == [b"1 of 4", b"2 of 4", b"1 of 5"]


def test_a_stack_that_comes_after_the_last_look_is_found(kernel: Kernel) -> None:
    kernel.events.send(call_record(4, 2, stack_id=1))
    kernel.inbox.collect()
    kernel.stacks.send(stack_record(4, 1, 1, b"late"))
    assert kernel.window() == b"late"


def test_the_stack_of_a_call_that_never_returned_is_passed_over(kernel: Kernel) -> None:
    kernel.stacks.send(stack_record(4, 10, 1, b"abandoned"))
    kernel.stacks.send(stack_record(4, 20, 2, b"returned"))
    kernel.events.send(call_record(4, 21, stack_id=2))
    kernel.inbox.collect()
    assert kernel.window() == b"returned"


def test_an_event_without_its_stack_leaves_later_ones_to_their_events(kernel: Kernel) -> None:
    kernel.events.send(call_record(4, 11, stack_id=1))
    kernel.stacks.send(stack_record(4, 20, 2, b"second"))
    kernel.events.send(call_record(4, 21, stack_id=2))
    kernel.inbox.collect()
    assert [kernel.window(), kernel.window()] == [None, b"second"]


def test_a_number_that_begins_again_after_exec_is_not_mistaken(kernel: Kernel) -> None:
    kernel.stacks.send(stack_record(4, 10, 1, b"before exec"))
    kernel.stacks.send(stack_record(4, 20, 1, b"after exec"))
    kernel.inbox.collect()
    kernel.inbox.forget(1, time_ns=15)
    kernel.events.send(call_record(4, 21, stack_id=1))
    kernel.inbox.collect()
    assert kernel.window() == b"after exec"


def test_a_thread_id_that_comes_again_in_another_process_is_not_mistaken(kernel: Kernel) -> None:
    kernel.stacks.send(stack_record(4, 10, 1, b"of the first", start_ns=500))
    kernel.stacks.send(stack_record(4, 20, 1, b"of the second", start_ns=900, pid=2))
    kernel.events.send(call_record(4, 21, stack_id=1, start_ns=900, pid=2))
    kernel.inbox.collect()
    assert kernel.window() == b"of the second"


def test_the_end_of_a_process_lets_go_of_its_stacks_only(kernel: Kernel) -> None:
    kernel.stacks.send(stack_record(4, 10, 1, b"ended", pid=1))
    kernel.stacks.send(stack_record(5, 10, 1, b"goes on", pid=2))
    kernel.inbox.collect()
    kernel.inbox.forget(1, time_ns=11)
    kernel.events.send(call_record(4, 12, stack_id=1, pid=1))
    kernel.events.send(call_record(5, 12, stack_id=1, pid=2))
    kernel.inbox.collect()
    assert [kernel.window(), kernel.window()] == [None, b"goes on"]


# Bounds


def test_events_beyond_the_bound_stay_in_the_ring() -> None:
    kernel = Kernel(max_event_bytes=1000)
    times = list(range(1, 11))
    for time_ns in times:
        kernel.events.send(call_record(4, time_ns))
    kernel.inbox.collect()
    assert 0 < len(kernel.inbox) < len(times)
    assert kernel.events.reader.waiting > 0
    seen = []
    while len(kernel.inbox):
        seen.append(kernel.event().time_ns)
        kernel.inbox.collect()
    assert seen == times
    kernel.close()


def test_a_full_inbox_takes_no_more_memory_than_it_is_allowed() -> None:
    kernel = Kernel(max_event_bytes=64 << 10)
    gc.collect()
    tracemalloc.start()
    for _ in range(40):
        while kernel.events.room > 1000:
            kernel.events.send(call_record(4, 1))
        kernel.inbox.collect()
    gc.collect()  # what making the records left behind
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kernel.events.reader.waiting > 0
    assert held < (64 << 10) * 1.3
    kernel.close()


def test_of_a_process_that_was_switched_off_only_its_end_is_still_told(kernel: Kernel) -> None:
    for pid in (1, 2):
        kernel.stacks.send(stack_record(pid, 1, 1, pid=pid))
        kernel.events.send(call_record(pid, 2, stack_id=1, pid=pid))
    kernel.events.send(record("process_event", type=EventType.EXIT, time_ns=3, pid=1, tid=1))
    kernel.inbox.collect()
    assert kernel.inbox.discard(1) == 1
    assert kernel.inbox.stack(kernel.event())
    end = kernel.inbox.next()
    assert isinstance(end, ProcessEvent)
    assert (end.pid, end.type) == (1, EventType.EXIT)
    assert kernel.inbox.next() is None


# Writers that are interrupted


class Interrupted(Kernel):
    """A writer was interrupted before its record of a stack was finished; another thread sent a
    whole stack, and its event, after that. ``pauses``: how long until it goes on, if it does."""

    def __init__(self, pauses: int | None) -> None:
        self.pauses, self.slept = pauses, 0
        super().__init__(pause=self.pause)
        self._unfinished = self.stacks.send(stack_record(9, 1, 1, b"late"), BUSY)
        self.stacks.send(stack_record(4, 2, 1, b"wanted"))
        self.events.send(call_record(4, 3, stack_id=1))

    def pause(self, _: float) -> None:
        self.slept += 1
        if self.slept == self.pauses:
            self.finish()

    def finish(self) -> None:
        """The writer goes on."""
        self.stacks.commit(self._unfinished)


def test_a_stack_behind_an_unfinished_one_is_waited_for() -> None:
    kernel = Interrupted(pauses=3)
    kernel.inbox.collect()
    assert kernel.window() == b"wanted"
    assert kernel.slept == 3
    kernel.events.send(call_record(9, 4, stack_id=1))
    kernel.inbox.collect()
    assert kernel.window() == b"late"
    kernel.close()


def test_an_unfinished_stack_is_waited_for_once_and_not_for_ever() -> None:
    kernel = Interrupted(pauses=None)
    kernel.inbox.collect()
    assert kernel.window() is None
    slept = kernel.slept
    assert 0 < slept <= PAUSES
    kernel.events.send(call_record(5, 4, stack_id=1))
    kernel.inbox.collect()
    assert kernel.window() is None
    assert kernel.slept == slept
    kernel.close()


def test_a_stack_that_was_lost_is_not_waited_for() -> None:
    kernel = Interrupted(pauses=None)
    kernel.finish()
    kernel.events.send(call_record(7, 5, stack_id=3))
    kernel.inbox.collect()
    assert [kernel.window(), kernel.window()] == [b"wanted", None]
    assert kernel.slept == 0
    kernel.close()


def test_stacks_beyond_the_bound_stay_in_the_ring_while_events_wait() -> None:
    kernel = Kernel(max_stack_bytes=1000)
    count = 200
    for number in range(1, count + 1):
        kernel.stacks.send(stack_record(4, 10 * number, number, b"%16d" % number))
        kernel.events.send(call_record(4, 10 * number + 1, stack_id=number))
    kernel.inbox.collect()
    assert kernel.stacks.reader.waiting > 0
    assert [kernel.window() for _ in range(count)] == [b"%16d" % n for n in range(1, count + 1)]
    kernel.close()


def test_stacks_of_calls_that_never_return_do_not_fill_it_for_ever() -> None:
    kernel = Kernel(max_stack_bytes=1000)
    for tid in range(100, 300):  # threads that ended inside a call
        kernel.stacks.send(stack_record(tid, 1, 1, b"orphan".ljust(16)))
    for _ in range(4):
        kernel.inbox.collect()
    assert kernel.stacks.reader.waiting == 0
    kernel.stacks.send(stack_record(4, 10, 1, b"wanted"))
    kernel.events.send(call_record(4, 11, stack_id=1))
    kernel.inbox.collect()
    assert kernel.window() == b"wanted"
    kernel.close()


def test_every_record_is_counted(kernel: Kernel) -> None:
    kernel.stacks.send(stack_record(4, 1, 1))
    kernel.events.send(call_record(4, 2, stack_id=1))
    kernel.inbox.collect()
    assert kernel.inbox.records == 2
