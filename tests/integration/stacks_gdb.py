"""The stacks of a running process by gdb, and how ours are compared with them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpumemprof.stack.frames import Frame, FrameKind

_SCRIPT = """
import gdb, json
gdb.execute("set backtrace past-main on")
gdb.execute("set backtrace past-entry on")
found = {}
for thread in gdb.selected_inferior().threads():
    thread.switch()
    frame, frames, end = gdb.newest_frame(), [], ""
    while frame is not None:
        if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
            frames.append([frame.pc(), frame.name(), frame.type() == gdb.SIGTRAMP_FRAME])
        end = gdb.frame_stop_reason_string(frame.unwind_stop_reason())
        try:
            frame = frame.older()
        except gdb.error as error:
            end, frame = str(error), None
    found[thread.ptid[1]] = [frames, end]
print("STACKS", json.dumps(found))
"""
_ADDRESS = " (another address)"


@dataclass(frozen=True)
class GdbFrame:
    """One physical frame. ``signal``: a signal handler returns to it."""

    pc: int
    name: str | None
    signal: bool


@dataclass(frozen=True)
class GdbStack:
    """Leaf first, from the hooked call on; ``end``: why gdb stopped."""

    frames: tuple[GdbFrame, ...]
    end: str


@dataclass(frozen=True)
class Difference:
    """Where one stack is not the other. ``ours``, ``theirs``: "" where there is no frame."""

    place: int
    ours: str
    theirs: str
    same_address: bool = False

    def __str__(self) -> str:
        return f"{self.ours} | {self.theirs}"


def gdb_stacks(
    pid: int, threads: Sequence[int], directory: Path, call: str = "cudaMalloc"
) -> dict[int, GdbStack]:
    """What gdb sees of threads that are inside ``call``."""
    script = directory / "stacks_gdb_script.py"
    script.write_text(_SCRIPT)
    done = subprocess.run(
        ["gdb", "-nx", "-batch", "-iex", "set debuginfod enabled off",
         "-p", str(pid), "-x", script],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("STACKS ")]
    assert lines, done.stdout + done.stderr
    found = {}
    for thread, (raw, end) in json.loads(lines[0][7:]).items():
        if int(thread) not in threads:
            continue
        frames = [GdbFrame(*frame) for frame in raw]
        while frames and frames[0].name != call:
            frames.pop(0)
        assert frames, f"gdb does not see {call}: {raw}"
        found[int(thread)] = GdbStack(tuple(frames), end)
    return found


def differences(
    stack: Sequence[Frame], lookups: Sequence[int], other: GdbStack
) -> list[Difference]:
    """Frame by frame: the address that was looked up, and the name where there is one.

    A place without a symbol is one for both. What follows a note of ours is one difference.
    """
    found = []
    for place in range(max(len(stack), len(other.frames))):
        if place == len(stack):
            found.append(Difference(place, "", _told(other.frames[place])))
            break
        mine = stack[place]
        if place >= len(other.frames) or mine.kind is FrameKind.NOTE:
            rest = other.frames[place:]
            found.append(Difference(place, mine.name, _told(rest[0]) if rest else ""))
            break
        theirs = other.frames[place]
        same_address = place == 0 or lookups[place] == _lookup(other, place)
        same_name = mine.name == theirs.name or (theirs.name is None and "+0x" in mine.name)
        if not (same_address and same_name):
            said = _told(theirs) + ("" if same_address else _ADDRESS)
            found.append(Difference(place, mine.name, said, same_address))
    return found


def _lookup(stack: GdbStack, place: int) -> int:
    """Where to look a frame of gdb up: in the calling instruction, unless none called. (At the leaf
    we have the entry of the call, and gdb has where it stands now.)"""
    frame = stack.frames[place]
    exact = frame.signal or stack.frames[place - 1].signal
    return frame.pc if exact else frame.pc - 1


def _told(frame: GdbFrame) -> str:
    return frame.name or "no name"
