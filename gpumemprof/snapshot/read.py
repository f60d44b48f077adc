"""From a file to a Snapshot: unpacked with limits, unpickled without code, every value checked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpumemprof.errors import UsageError
from gpumemprof.profile import gzipped
from gpumemprof.profile.text import printable
from gpumemprof.snapshot.model import Action, Block, Event, Segment, Snapshot, State
from gpumemprof.snapshot.unpickle import loads
from gpumemprof.stack.frames import Frame, FrameKind, Stack

MAX_FILE = 2 << 30
"""Bytes of a snapshot, packed or not."""
_MAX_BLOCKS = 20_000_000
_MAX_FRAMES = 50_000_000
_MAX_STACK = 4_096
_MAX_DEVICES = 1_024
_TOP = 1 << 64
_MOST = 1 << 53
"""Of a size in bytes, and of microseconds: 8 PiB, the year 2255."""
_WARNINGS = 20

_STATES = {state.value: state for state in State} | {"active_pending_free": State.AWAITING_FREE}
_ACTIONS = {action.value: action for action in Action if action.value}


def load(path: Path) -> Snapshot:
    """The snapshot in the file ``path``, gzipped or not.

    Raises UsageError, with the file and the reason, if it cannot be read, is no snapshot, exceeds
    a limit, or would run code."""
    name = printable(str(path))
    try:
        if path.exists() and not path.is_file():  # a pipe without a writer would never answer
            raise UsageError(f"{name} is no plain file")
        with path.open("rb") as file:
            data = file.read(MAX_FILE + 1)
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror or error}") from error
    try:
        return decode(data)
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from error


def decode(data: bytes) -> Snapshot:
    """The snapshot in ``data``. Raises UsageError as ``load`` does."""
    if len(data) > MAX_FILE:
        raise UsageError(f"it has more than {MAX_FILE:,} bytes, the limit")
    if gzipped.is_gzip(data):
        data = _unpacked(data)
    if data[:2] == b"PK":
        raise UsageError("it is a zip archive, as torch.save writes; a snapshot is a pickle")
    return _Reader().snapshot(loads(data))


def _unpacked(data: bytes) -> bytes:
    try:
        return gzipped.decompress(data, MAX_FILE)
    except UsageError as error:
        raise UsageError(str(error).replace("the profile", "it")) from error


class _Reader:
    """Checks plain values. Stacks that many blocks and events share are made once."""

    def __init__(self) -> None:
        self._stacks: dict[int, Stack] = {}
        self._frames: dict[tuple[str, str, int], Frame] = {}
        self._blocks = 0
        self._entries = 0
        self._read_frames = 0
        self._warnings: list[str] = []

    def snapshot(self, value: Any) -> Snapshot:
        if isinstance(value, list):  # torch.cuda.memory_snapshot() is the segments alone
            value = {"segments": value}
        if not isinstance(value, dict) or not isinstance(value.get("segments"), list):
            raise UsageError("it is a pickle, but no memory snapshot: it has no segments")
        traces = value.get("device_traces", [])
        if not isinstance(traces, list) or len(traces) > _MAX_DEVICES:
            raise UsageError("its device_traces are no list of devices")
        return Snapshot(
            tuple(self._segment(one) for one in value["segments"]),
            tuple(self._trace(one) for one in traces),
            _settings(value.get("allocator_settings")),
            tuple(self._warnings),
        )

    def _segment(self, value: object) -> Segment:
        segment = _mapping(value, "a segment")
        address, size = _number(segment, "address"), _number(segment, "total_size")
        listed = segment.get("blocks")
        if not isinstance(listed, list):
            raise UsageError("a segment has no blocks")
        blocks: list[Block] = []
        at = address
        for one in listed:
            block = self._block(one, at)
            blocks.append(block)
            at = block.address + block.size
        pool = segment.get("segment_pool_id", (0, 0))
        if not isinstance(pool, (list, tuple)) or len(pool) != 2:
            raise UsageError("the segment_pool_id of a segment is no pair")
        made = Segment(
            device=_number(segment, "device", 0),
            address=address,
            size=size,
            allocated=_number(segment, "allocated_size", 0),
            active=_number(segment, "active_size", 0),
            requested=_number(segment, "requested_size", 0),
            stream=_number(segment, "stream", 0),
            small=segment.get("segment_type") == "small",
            pool_id=(_whole(pool[0], "segment_pool_id"), _whole(pool[1], "segment_pool_id")),
            expandable=segment.get("is_expandable") is True,
            blocks=tuple(blocks),
            stack=self._stack(segment.get("frames")),
        )
        self._compare(made)
        return made

    def _compare(self, segment: Segment) -> None:
        """What a segment says of itself, and what its blocks add up to."""
        at = segment.address
        for block in segment.blocks:
            if block.address != at:
                self._warn(segment, f"a block is at {block.address:#x}, not at {at:#x}")
                break
            at += block.size
        sums = {
            "total_size": (segment.size, sum(b.size for b in segment.blocks)),
            "allocated_size": (
                segment.allocated,
                sum(b.size for b in segment.blocks if b.state is State.ALLOCATED),
            ),
            "active_size": (
                segment.active, sum(b.size for b in segment.blocks if b.state.active),
            ),
        }  # fmt: skip
        for key, (said, found) in sums.items():
            if said != found:
                self._warn(segment, f"{key} is {said:,}, its blocks add up to {found:,}")

    def _warn(self, segment: Segment, text: str) -> None:
        if len(self._warnings) < _WARNINGS:
            self._warnings.append(f"segment {segment.address:#x}: {text}")

    def _block(self, value: object, expected: int) -> Block:
        self._blocks += 1
        if self._blocks > _MAX_BLOCKS:
            raise UsageError(f"it has more than {_MAX_BLOCKS:,} blocks, the limit")
        block = _mapping(value, "a block")
        name = block.get("state")
        state = _STATES.get(name) if isinstance(name, str) else None
        if state is None:
            raise UsageError("a block is in a state that is not known")
        size = _number(block, "size")
        return Block(
            _number(block, "address", expected),
            size,
            _number(block, "requested_size", size if state.active else 0),
            state,
            self._stack(block.get("frames")),
        )

    def _trace(self, value: object) -> tuple[Event, ...]:
        if not isinstance(value, list):
            raise UsageError("the trace of a device is no list")
        self._entries += len(value)
        if self._entries > _MAX_BLOCKS:
            raise UsageError(f"it has more than {_MAX_BLOCKS:,} trace entries, the limit")
        return tuple(self._event(one) for one in value)

    def _event(self, value: object) -> Event:
        event = _mapping(value, "a trace entry")
        name = event.get("action")
        action = _ACTIONS.get(name, Action.OTHER) if isinstance(name, str) else Action.OTHER
        free = _number(event, "device_free", 0) if "device_free" in event else None
        return Event(
            action,
            _number(event, "addr", 0),
            _number(event, "size", 0),
            _number(event, "stream", 0),
            _number(event, "time_us", 0),
            free,
            self._stack(event.get("frames")),
        )

    def _stack(self, value: object) -> Stack:
        """Innermost frame first, as in the file."""
        if value is None:
            return ()
        if not isinstance(value, list):
            raise UsageError("the frames of a stack are no list")
        known = self._stacks.get(id(value))
        if known is None:
            self._read_frames += len(value)
            if self._read_frames > _MAX_FRAMES:
                raise UsageError(f"it has more than {_MAX_FRAMES:,} frames, the limit")
            known = self._stacks[id(value)] = tuple(map(self._frame, value[:_MAX_STACK]))
        return known

    def _frame(self, value: object) -> Frame:
        frame = _mapping(value, "a frame")
        name, file, line = frame.get("name"), frame.get("filename"), frame.get("line", 0)
        if not isinstance(name, str) or not isinstance(file, str) or type(line) is not int:
            raise UsageError("a frame has no name, filename and line")
        line = line if 0 <= line < 1 << 31 else 0
        key = (name, file, line)
        made = self._frames.get(key)
        if made is None:
            made = self._frames[key] = _made(name, file, line)
        return made


def _made(name: str, file: str, line: int) -> Frame:
    if file.endswith((".py", ".pyx")) or file.startswith("<"):
        return Frame(name, FrameKind.PYTHON, file, line)
    if file in ("", "??"):
        return Frame(name or "??", FrameKind.NATIVE)
    if ".so" in file.rpartition("/")[2]:
        return Frame(name or "??", FrameKind.NATIVE, module=file)
    return Frame(name or "??", FrameKind.NATIVE, file, line)


def _mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{what} is no dictionary")
    return value


def _number(values: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = values.get(key, default)
    if value is None:
        raise UsageError(f"{key} is missing")
    return _whole(value, key)


def _whole(value: object, key: str) -> int:
    if type(value) is not int or not -_TOP < value < _TOP:
        raise UsageError(f"{key} is no whole number of 64 bits")
    if key in ("stream", "addr", "address"):
        return value % _TOP  # some are written as signed numbers
    if not 0 <= value < _MOST:
        raise UsageError(f"{key} is {'negative' if value < 0 else 'too large'}")
    return value


def _settings(value: object) -> dict[str, str]:
    """Plain values as text; what is nested stays out."""
    if not isinstance(value, dict):
        return {}
    return {
        printable(key[:60]): printable(str(one)[:200])
        for key, one in list(value.items())[:100]
        if isinstance(one, (str, bool, int, float))
    }
