"""The stacks of a running process by py-spy, and how ours are compared with them."""

from __future__ import annotations

import json
import posixpath
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from gpumemprof.stack.frames import Frame, FrameKind

PY_SPY = Path(sys.executable).parent / "py-spy"


class PySpyError(Exception):
    """What py-spy says when it cannot."""


class Shown(NamedTuple):
    """A frame as both tools show it. ``place``: of Python "file:line", of native code the name of
    its file. ``name``: "" for a native frame without a symbol."""

    kind: str
    name: str
    place: str

    def __str__(self) -> str:
        return f"{self.name or 'no name'} ({self.place})"


def pyspy_stacks(
    pid: int, threads: Sequence[int], call: str = "cudaMalloc"
) -> dict[int, list[Shown]]:
    """What py-spy sees of threads that are inside ``call``, leaf first, from the call on."""
    done = subprocess.run(
        [PY_SPY, "dump", "--native", "--json", "--full-filenames", "--pid", str(pid)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    if done.returncode:
        raise PySpyError(done.stderr.strip())
    found = {}
    for thread in json.loads(done.stdout):
        if thread["os_thread_id"] not in threads:
            continue
        frames = [_theirs(frame) for frame in thread["frames"]]
        while frames and frames[0].name != call:
            frames.pop(0)
        found[thread["os_thread_id"]] = frames
    return found


def _theirs(frame: dict[str, object]) -> Shown:
    name, module = str(frame["name"]), frame["module"]
    if module is None:
        file = posixpath.basename(str(frame["filename"]))
        return Shown("python", name, f"{file}:{frame['line']}")
    return Shown(
        "native", "" if re.fullmatch("0x[0-9a-f]+", name) else name, posixpath.basename(str(module))
    )


def ours(stack: Sequence[Frame]) -> list[Shown]:
    """Our frames in the same form."""
    found = []
    for frame in stack:
        if frame.kind is FrameKind.PYTHON:
            file = posixpath.basename(frame.file)
            found.append(Shown("python", frame.name, f"{file}:{frame.line}"))
        elif frame.kind is FrameKind.NOTE:
            found.append(Shown("note", frame.name, ""))
        else:
            module = posixpath.basename(frame.module)
            name = "" if frame.name.startswith(f"{module}+0x") else frame.name
            found.append(Shown("native", name, module))
    return found


@dataclass
class Comparison:
    """What came of one stack. ``unlike``: "ours | py-spy's" of differences without an explanation;
    ``explained``: how often each explanation was needed."""

    frames: int = 0
    python: int = 0
    equal: int = 0
    explained: Counter[str] = field(default_factory=Counter)
    unlike: list[str] = field(default_factory=list)

    def __iadd__(self, other: Comparison) -> Comparison:
        self.frames += other.frames
        self.python += other.python
        self.equal += other.equal
        self.explained += other.explained
        self.unlike += other.unlike
        return self


def compare(
    mine: Sequence[Shown], theirs: Sequence[Shown], explain: Callable[[str, bool], str]
) -> Comparison:
    """Frame by frame from the leaf; every frame of either has its like in the other, or an
    explanation: ``explain`` ("ours | py-spy's", whether only root frames of py-spy are left) tells
    its name, "" if there is none. One side is empty for a frame that the other does not show.
    """
    result = Comparison(frames=len(theirs), python=sum(f.kind == "python" for f in theirs))
    left, right = list(mine), list(theirs)
    while left or right:
        pair = f"{left[0] if left else ''} | {right[0] if right else ''}"
        if left and right and left[0] == right[0]:
            result.equal += 1
        elif left and right and (why := explain(pair, False)):
            result.explained[why] += 1
        elif right and (why := explain(f" | {right[0]}", not left)):
            result.explained[why] += 1
            del right[0]
            continue
        elif left and (why := explain(f"{left[0]} | ", False)):
            result.explained[why] += 1
            del left[0]
            continue
        else:
            result.unlike.append(pair)
        del left[:1], right[:1]
    return result
