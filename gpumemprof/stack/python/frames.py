"""From the interpreter frames that the kernel sent to Python frames, call by call.

A *run* is the Python frames that one call of ``_PyEval_EvalFrameDefault`` executes, innermost
first: from 3.11 on, Python functions that call Python functions share one such call.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from gpumemprof.errors import RemoteDataError
from gpumemprof.stack.frames import Frame, FrameKind
from gpumemprof.stack.python.code import Code, CodeReader, CodeReusedError, NotCodeError
from gpumemprof.stack.python.layouts import Entry, Layout
from gpumemprof.stack.python.lru import Lru
from gpumemprof.stack.python.memory import Memory

MAX_FRAMES = 256  # MAX_PY_FRAMES of bpf/events.h

CACHED_FRAMES = 16_384
CACHED_CODE_BYTES = 8 << 20
"""Bounds of what is remembered of one process."""
MAX_DECODED = 1 << 20
"""Bytes of line tables decoded for one stack (0.5 s of work), but one table whatever its size;
the lines of further frames are unknown. 256 usual functions have 0.1 MB."""
_CODE_COST = 512  # bytes of a cached code object besides its line table, about

REUSED = Frame.note("python code object reused")
UNREADABLE = Frame.note("python code object unreadable")
TRUNCATED = Frame.note("python frames truncated")
UNFINISHED = Frame.note("python frames unreadable")

_RAW = struct.Struct("<QQIBBH")  # struct python_frame of bpf/events.h


class RawFrame(NamedTuple):
    """``struct python_frame`` of bpf/events.h: one frame as the interpreter holds it."""

    code: int
    instruction: int
    fingerprint: int
    owner: int
    is_entry: int
    tlbc_index: int


Run: TypeAlias = "tuple[Frame, ...]"


@dataclass(slots=True)
class Counts:
    """What could not be told of Python frames, for the profile's completeness counters."""

    reused: int = 0
    unreadable: int = 0
    not_code: int = 0
    lines_unknown: int = 0


def unpack(data: bytes | memoryview) -> list[RawFrame]:
    """Frames from the bytes of an event, innermost first; RemoteDataError on a torn array."""
    if len(data) % _RAW.size or len(data) > _RAW.size * MAX_FRAMES:
        raise RemoteDataError(f"{len(data)} bytes of Python frames")
    return [RawFrame(*fields) for fields in _RAW.iter_unpack(data)]


def runs(frames: Sequence[RawFrame], layout: Layout) -> list[list[RawFrame]]:
    """Frames of each call of the interpreter loop, innermost call first.

    A run is empty where a call has already left its last Python frame (or not entered its
    first), which happens when objects are destroyed. Frames without Python code mark the
    ends of runs and are not in them.
    """
    if layout.entry is Entry.EVERY_FRAME:
        return [[frame] for frame in frames]
    found: list[list[RawFrame]] = []
    current: list[RawFrame] = []
    for frame in frames:
        shim = frame.owner >= layout.first_shim_owner
        if not shim:
            current.append(frame)
        if shim or (layout.entry is Entry.FLAG and frame.is_entry):
            found.append(current)
            current = []
    if current:  # the root end was cut
        found.append(current)
    # 3.14 puts one more frame without code below all others, which no call belongs to.
    while found and not found[-1]:
        found.pop()
    return found


class PythonFrames:
    """Names the Python frames of one process. Not for use by several threads at once."""

    def __init__(
        self,
        memory: Memory,
        layout: Layout,
        code_type: int = 0,
        none: int = 0,
        *,
        code_bytes: int = CACHED_CODE_BYTES,
    ) -> None:
        """``code_type``, ``none``: addresses of ``PyCode_Type`` and of None, 0 if not known.
        ``code_bytes``: of code objects that are remembered."""
        self.counts = Counts()
        self._layout = layout
        self._none = none
        self._reader = CodeReader(memory, layout, code_type)
        self._codes: Lru[tuple[int, int], Code] = Lru(code_bytes)
        self._frames: Lru[tuple[int, int, int], Frame] = Lru(CACHED_FRAMES)
        self._left = 0  # of MAX_DECODED, for the stack at hand

    def resolve(
        self, frames: Sequence[RawFrame], *, truncated: bool = False, unreadable: bool = False
    ) -> list[Run]:
        """Runs of named frames, innermost first.

        ``truncated``: the kernel stopped at its limit (PY_TRUNCATED); ``unreadable``: at a frame
        it could not read (PY_UNREADABLE). Either is said by a note at the root end.
        """
        self._left = MAX_DECODED
        resolved = [
            tuple(named for frame in run if (named := self._resolve(frame)) is not None)
            for run in runs(frames, self._layout)
        ]
        for cut, note in ((truncated, TRUNCATED), (unreadable, UNFINISHED)):
            if cut:
                resolved = [*resolved[:-1], (*(resolved[-1] if resolved else ()), note)]
        return resolved

    def read(self, frames: Sequence[RawFrame]) -> None:
        """Read the code objects of frames now, for ``resolve`` later: code may be freed, or the
        process end, in between. What cannot be read is told by ``resolve``."""
        for raw in frames:
            address = raw.code & ~self._layout.code_tag_mask
            if address not in (0, self._none):
                with contextlib.suppress(RemoteDataError):
                    self._code(address, raw.fingerprint)

    def _resolve(self, raw: RawFrame) -> Frame | None:
        """The frame's name and line, a note, or None for one that runs no Python code."""
        address = raw.code & ~self._layout.code_tag_mask
        if address in (0, self._none):
            return None
        key = (address, raw.fingerprint, raw.instruction)
        frame = self._frames.get(key)
        if frame is not None:
            return frame
        try:
            code = self._code(address, raw.fingerprint)
        except NotCodeError:
            self.counts.not_code += 1
            return UNREADABLE
        except CodeReusedError:
            self.counts.reused += 1
            return REUSED
        except RemoteDataError:
            self.counts.unreadable += 1
            return UNREADABLE
        size = len(code.table or b"")
        line = 0
        if size <= self._left or self._left == MAX_DECODED:
            self._left -= size
            line = self._reader.line(code, raw.instruction, raw.tlbc_index)
        if not line:
            self.counts.lines_unknown += 1
        frame = Frame(name=code.name, kind=FrameKind.PYTHON, file=code.file, line=line)
        if raw.fingerprint:
            self._frames.put(key, frame)
        return frame

    def _code(self, address: int, fingerprint: int) -> Code:
        key = (address, fingerprint)
        code = self._codes.get(key)
        if code is None:
            code = self._reader.read(address, fingerprint)
            if fingerprint:
                self._codes.put(key, code, _CODE_COST + len(code.table or b""))
        return code
