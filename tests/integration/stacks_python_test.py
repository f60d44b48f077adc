"""What the kernel captured is what Python itself shows, in every CPython that is here.

The oracle is the profiled program: at the line of each allocation it walks its own frames.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from python_layouts_interpreters import INTERPRETERS, Interpreter

from gpumemprof.ledger.events import Allocated, AllocationFailed, LedgerEvent
from gpumemprof.process.launch import Command
from gpumemprof.recorder import Recorder
from gpumemprof.stack.frames import FrameKind, Stack
from gpumemprof.stack.python.frames import REUSED, UNREADABLE
from tests.integration.matrix import MATRIX
from tests.integration.recording import FAKES, environment, options, standard_output, until

HERE = Path(__file__).parent
PROGRAM = HERE / "python_cases.py"
_OWN = f"system-{sys.version_info[0]}.{sys.version_info[1]}"
_SITE = sysconfig.get_path("purelib")


def _prepare(interpreter: Interpreter) -> tuple[list[str], str, Path]:
    """The command that runs the cases in an interpreter, its LD_LIBRARY_PATH, and where the
    libraries are for us."""
    if interpreter.root == Path("/"):
        return [*interpreter.command, str(PROGRAM)], str(FAKES), FAKES
    inside = interpreter.root / "tmp" / "cases"
    inside.mkdir(exist_ok=True)
    for file in (PROGRAM, FAKES / "libcuda.so.1", FAKES / "libcudart.so.12"):
        shutil.copy(file, inside)
    return [*interpreter.command, f"/tmp/cases/{PROGRAM.name}"], "/tmp/cases", inside


@dataclass
class Recorded:
    """Stacks by the size that was asked for, and what the program told."""

    stacks: dict[int, list[Stack]]
    told: Mapping[str, Any]


def _record(interpreter: Interpreter, tmp_path: Path) -> Recorded:
    out = tmp_path / "out"
    command, library_path, libraries = _prepare(interpreter)
    settings = {
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONIOENCODING": "utf-8",
        # Extensions of the environment that runs this fit interpreters of its version.
        "PYTHONPATH": _SITE if interpreter.id == _OWN else "",
    }
    ids: dict[int, list[int]] = defaultdict(list)
    with (
        environment(**settings),
        Recorder(replace(options(), library_path=str(libraries))) as recorder,
        out.open("wb") as stdout,
    ):
        os.environ["LD_LIBRARY_PATH"] = library_path
        apply = recorder.ledger.apply

        def listen(event: LedgerEvent) -> None:
            if isinstance(event, Allocated):
                ids[event.size].append(event.stack)
            elif isinstance(event, AllocationFailed):
                ids[event.requested].append(event.stack)
            apply(event)

        recorder.ledger.apply = listen  # type: ignore[method-assign]
        with standard_output(stdout.fileno()):
            held = Command(command)
        recorder.add(held.pid)
        held.go()
        until(lambda: out.stat().st_size > 0 or held.poll() is not None, recorder.step)
        recorder.drain()
        stacks = {
            size: [recorder.stacks.resolve(one) for one in found] for size, found in ids.items()
        }
        until(lambda: held.poll() is not None, recorder.step)
        held.close()
    assert out.stat().st_size, f"it ended with {held.poll()}"
    return Recorded(stacks, json.loads(out.read_text()))


def _python(stack: Stack) -> list[list[object]]:
    return [[f.name, f.file, f.line] for f in stack if f.kind is FrameKind.PYTHON]


def _is_right(case: Mapping[str, Any], stacks: list[Stack]) -> bool:
    """Whether there is one stack and it is what the program saw.

    ``prefix``: what the program saw ends inside an interpreter of its own. ``gone``: code that may
    be gone when its name is read: then a note has to say so, or its line is not told: never another
    name or line.
    """
    if len(stacks) != 1:
        return False
    wanted, found = case["stack"], _python(stacks[0])
    if case.get("prefix"):
        return bool(found) and found[0][0] == wanted[0][0] and found[0][2] in (wanted[0][2], 0)
    gone = case.get("gone")
    if gone and any(note in stacks[0] for note in (REUSED, UNREADABLE)):
        return found == [frame for frame in wanted if frame[1] != gone]
    if gone and any(frame[1] == gone and not frame[2] for frame in found):
        return [f[:2] for f in found] == [f[:2] for f in wanted]
    return found == wanted


@pytest.mark.parametrize("interpreter", INTERPRETERS, ids=lambda i: i.id)
def test_stacks_are_those_that_python_shows(interpreter: Interpreter, tmp_path: Path) -> None:
    recorded = _record(interpreter, tmp_path)
    wrong = {}
    cases = recorded.told["cases"]
    for name, case in cases.items():
        stacks = recorded.stacks.get(case["size"], [])
        right = _is_right(case, stacks)
        MATRIX.add("Python", name, interpreter.id, "ok" if right else "wrong")
        if not right:
            wrong[name] = {"python": case["stack"], "gpumemprof": [_python(s) for s in stacks]}
    for name, why in recorded.told["skipped"].items():
        MATRIX.add("Python", name, interpreter.id, f"not run: {why}")
    assert not wrong, json.dumps(wrong, indent=1, ensure_ascii=False)
    assert len(cases) > 40
