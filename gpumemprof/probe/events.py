"""Records of the rings as values. The layouts come from the object's BTF (bpf/events.h)."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from gpumemprof.probe.btf import Layout


class EventType(enum.IntEnum):
    """``enum event_type``."""

    RETURN = 1
    ENTRY = 2
    FREE_FAILED = 3
    FORK = 4
    EXEC = 5
    EXIT = 6
    STACK = 7


class StackState(enum.IntEnum):
    """``enum stack_state``: what became of the stack of an allocation."""

    NONE = 0
    SENT = 1
    RING_FULL = 2
    NO_BUFFER = 3


class PythonState(enum.IntEnum):
    """``enum python_state``: what became of the Python part of a stack."""

    NOT_PYTHON = 0
    WALKED = 1
    NO_THREAD_STATE = 2
    UNREADABLE = 3
    NOT_INITIALIZED = 4
    TRUNCATED = 5


class CallEvent(NamedTuple):
    """A hooked call was entered or returned; ``call`` is its row of the table of calls.

    ``args``: the six register arguments at entry; ``stack_args``: four words that were passed
    in memory; ``in_words``, ``out1``, ``out2``: what was copied through pointers; ``readable``
    bits 0 to 3: which of in, out1, out2 and stack_args could be read.
    """

    type: int
    time_ns: int
    start_ns: int
    pid: int
    tid: int
    call: int
    context: int
    result: int
    args: tuple[int, ...]
    stack_args: tuple[int, ...]
    in_words: tuple[int, ...]
    out1: tuple[int, ...]
    out2: int
    stack_id: int
    stack_state: int
    readable: int
    file: int

    @property
    def error(self) -> int:
        """The call's CUresult or cudaError_t, an int: the upper half of the register is noise."""
        return self.result & 0xFFFFFFFF


class ProcessEvent(NamedTuple):
    """Fork (``child`` and ``child_start_ns`` set), exec or exit of a process."""

    type: int
    time_ns: int
    start_ns: int
    pid: int
    tid: int
    child: int
    child_start_ns: int
    comm: str


class StackEvent(NamedTuple):
    """The stack of a call as it was at entry: raw, to be unwound.

    ``registers``: ip, sp, bp, bx, r12, r13, r14, r15; sp points to the return address.
    ``window``: the stack's bytes from sp upwards; ``window_full``: it went on above.
    ``python_frames``: ``struct python_frame`` records, innermost first.
    """

    time_ns: int
    start_ns: int
    pid: int
    tid: int
    call: int
    stack_id: int
    registers: tuple[int, ...]
    fs_base: int
    python_state: int
    python_frames: bytes
    window: bytes
    window_full: bool


Event: TypeAlias = CallEvent | ProcessEvent


class EventReader:
    """Turns records of either ring into values."""

    def __init__(self, layout_of: Callable[[str], Layout]) -> None:
        """``layout_of``: layouts by structure name, as ``Probes.layout``."""
        header = ("h.time_ns", "h.start_ns", "h.pid", "h.tid", "h.type", "h.call")
        self._call = layout_of("call_event").unpacker(
            *header, "context", "result", "args", "stack_args", "in", "out1", "out2",
            "stack_id", "stack_state", "readable", "file",
        )  # fmt: skip
        self._process = layout_of("process_event").unpacker(
            *header, "child", "child_start_ns", "comm"
        )
        self._stack = layout_of("stack_event").unpacker(
            *header, "ip", "sp", "bp", "bx", "r12", "r13", "r14", "r15", "fs_base",
            "stack_id", "stack_len", "py_frames", "py_state", "window_full",
        )  # fmt: skip
        self._stack_header = layout_of("stack_event").size
        self._frame_size = layout_of("python_frame").size
        self._process_size = layout_of("process_event").size

    def caller(self, record: memoryview) -> int:
        """The pid of a record of a call; -1 for one of the fork, exec or exit of a process."""
        if len(record) == self._process_size:
            return -1
        return int(self._call.unpack_from(record)[2])

    def event(self, record: memoryview) -> Event:
        """A record of the ring of events."""
        if len(record) == self._process_size:
            p = self._process.unpack_from(record)
            comm = bytes(p[8:]).split(b"\0")[0].decode(errors="replace")
            return ProcessEvent(p[4], p[0], p[1], p[2], p[3], p[6], p[7], comm)
        t = self._call.unpack_from(record)
        return CallEvent(
            t[4], t[0], t[1], t[2], t[3], t[5], t[6], t[7],
            t[8:14], t[14:18], t[18:26], t[26:30],
            t[30], t[31], t[32], t[33], t[34],
        )  # fmt: skip

    def stack(self, record: memoryview) -> StackEvent:
        """A record of the ring of stacks. Its bytes are copied: they outlive the record."""
        t = self._stack.unpack_from(record)
        frames_end = self._stack_header + t[17] * self._frame_size
        return StackEvent(
            t[0], t[1], t[2], t[3], t[5], t[15], t[6:14], t[14], t[18],
            bytes(record[self._stack_header : frames_end]),
            bytes(record[frames_end : frames_end + t[16]]),
            bool(t[19]),
        )  # fmt: skip
