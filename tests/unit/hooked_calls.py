"""Events of hooked calls as the kernel side tells them, written as the calls a program makes."""

from __future__ import annotations

from collections.abc import Sequence

from gpumemprof.probe.calls import ROWS
from gpumemprof.probe.events import CallEvent, EventType, StackState

READ_IN, READ_OUT1, READ_OUT2, READ_STACK = 1, 2, 4, 8
EVERYTHING = READ_IN | READ_OUT1 | READ_OUT2 | READ_STACK
OUT = 0x1000
"""Where a program's out parameters are: an address that means nothing here."""
NOISE = 0xDEAD_BEEF << 32
"""What the upper half of a register may hold when the argument is 32 bits wide."""


def words(data: bytes) -> tuple[int, ...]:
    """The eight words that were copied from a structure."""
    padded = data.ljust(64, b"\0")
    return tuple(int.from_bytes(padded[i : i + 8], "little") for i in range(0, 64, 8))


def returned(
    name: str,
    *args: int,
    out: Sequence[int] = (),
    out2: int = 0,
    error: int = 0,
    read: bytes = b"",
    in_memory: Sequence[int] = (),
    context: int = 0,
    tid: int = 7,
    readable: int | None = None,
) -> CallEvent:
    """``name(*args)`` returned ``error`` and wrote ``out`` and ``out2`` through its pointers.

    ``read``: the structure it was given by pointer. ``in_memory``: arguments passed on the stack.
    """
    if readable is None:
        readable = EVERYTHING if not error else READ_IN | READ_STACK
    return CallEvent(
        type=EventType.RETURN, time_ns=1000, start_ns=0, pid=7, tid=tid, call=ROWS[name],
        context=context, result=error, args=_padded(args, 6), stack_args=_padded(in_memory, 4),
        in_words=words(read), out1=_padded(out, 4), out2=out2, stack_id=0,
        stack_state=StackState.NONE, readable=readable, file=1,
    )  # fmt: skip


def entered(name: str, *args: int, tid: int = 7, context: int = 0) -> CallEvent:
    """``name(*args)`` was entered."""
    event = returned(name, *args, tid=tid, context=context, readable=0)
    return event._replace(type=EventType.ENTRY)


def free_failed(name: str, *args: int, error: int, tid: int = 7) -> CallEvent:
    """The free ``name(*args)`` returned an error."""
    return returned(name, *args, error=error, tid=tid)._replace(type=EventType.FREE_FAILED)


def _padded(values: Sequence[int], length: int) -> tuple[int, ...]:
    return (*values, *(0,) * (length - len(values)))
