"""What the kernel captured is what Python itself shows, in every CPython that is here.

The oracle is the profiled program: at the line of each allocation it walks its own frames.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from python_layouts_interpreters import INTERPRETERS, Interpreter

from gpumemprof.process.launch import Command
from gpumemprof.profile.model import Profile
from gpumemprof.recorder import Recorder
from gpumemprof.stack.frames import FrameKind, Stack
from tests.integration.matrix import MATRIX
from tests.integration.recording import FAKES, environment, options, standard_output, until

HERE = Path(__file__).parent
PROGRAM = HERE / "python_cases.py"


def _command(interpreter: Interpreter) -> tuple[list[str], str]:
    """The command that runs the cases in an interpreter, and its LD_LIBRARY_PATH."""
    if interpreter.root == Path("/"):
        return [*interpreter.command, str(PROGRAM)], str(FAKES)
    inside = interpreter.root / "tmp" / "cases"
    inside.mkdir(exist_ok=True)
    for file in (PROGRAM, FAKES / "libcuda.so.1", FAKES / "libcudart.so.12"):
        shutil.copy(file, inside)
    return [*interpreter.command, f"/tmp/cases/{PROGRAM.name}"], "/tmp/cases"


def _record(interpreter: Interpreter, tmp_path: Path) -> tuple[Profile, Mapping[str, Any]]:
    out = tmp_path / "out"
    command, library_path = _command(interpreter)
    settings = {
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONIOENCODING": "utf-8",
        "PYTHONPATH": "",
    }
    with environment(**settings), Recorder(options()) as recorder, out.open("wb") as stdout:
        os.environ["LD_LIBRARY_PATH"] = library_path
        with standard_output(stdout.fileno()):
            held = Command(command)
        recorder.add(held.pid)
        held.go()
        until(lambda: out.stat().st_size > 0 or held.poll() is not None, recorder.step)
        profile = recorder.profile()
        until(lambda: held.poll() is not None, recorder.step)
        held.close()
    assert out.stat().st_size, f"it ended with {held.poll()}"
    told: Mapping[str, Any] = json.loads(out.read_text())
    return profile, told


def _python(stack: Stack) -> list[list[object]]:
    return [[f.name, f.file, f.line] for f in stack if f.kind is FrameKind.PYTHON]


def _found(profile: Profile, case: Mapping[str, Any]) -> list[Stack]:
    if case.get("failed"):
        return [f.stack for f in profile.failures if f.requested == case["size"]]
    return [s.stack for s in profile.samples if s.values.alloc_space == case["size"]]


@pytest.mark.parametrize("interpreter", INTERPRETERS, ids=lambda i: i.id)
def test_stacks_are_those_that_python_shows(interpreter: Interpreter, tmp_path: Path) -> None:
    profile, told = _record(interpreter, tmp_path)
    wrong = {}
    for name, case in told["cases"].items():
        stacks = [_python(stack) for stack in _found(profile, case)]
        wanted = case["stack"]
        right = len(stacks) == 1 and (
            stacks[0][: len(wanted)] == wanted if case.get("prefix") else stacks[0] == wanted
        )
        MATRIX.add("Python", name, interpreter.id, "ok" if right else "wrong")
        if not right:
            wrong[name] = {"python": wanted, "gpumemprof": stacks}
    for name, why in told["skipped"].items():
        MATRIX.add("Python", name, interpreter.id, f"not run: {why}")
    assert not wrong, json.dumps(wrong, indent=1, ensure_ascii=False)
    assert len(told["cases"]) > 30
