"""Merged stacks are py-spy's: it looks at the very moment that the probes captured.

Python frames by function, file and line; native frames by name and file; and in the same order.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from python_layouts_interpreters import INTERPRETERS, Interpreter

from gpumemprof.stack.merge import FrameMode
from tests.integration.matrix import MATRIX
from tests.integration.recording import FAKES
from tests.integration.stacks_held import Compared, build_hold, watch
from tests.integration.stacks_pyspy import PY_SPY, Comparison, Shown, compare, ours, pyspy_stacks

HERE = Path(__file__).parent

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="not root"),
    pytest.mark.skipif(not PY_SPY.exists(), reason="needs py-spy"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc"),
]


@dataclass(frozen=True)
class Explained:
    """A difference that is known: ``pattern`` matches "ours | py-spy's" whole. ``root``: only where
    no frame of ours is left."""

    name: str
    pattern: str
    why: str
    root: bool = False


EXPLAINED = (
    Explained(
        "separate debug files",
        r"\S+ \((\S+)\) \| no name \(\1\)",
        "we read the debug files of the C library and the like, py-spy does not",
    ),
    Explained(
        "inlined functions",
        r" \| (_call_function_pointer|_CallPythonObject|task_step) \(_(ctypes|asyncio)\..*\)",
        "py-spy shows functions that the compiler inlined, from the debug information",
    ),
    Explained(
        "the interpreter's own code",
        r" \| thread_run \(libpython.*\)",
        "we leave out the interpreter's own functions, py-spy those that it knows by name",
    ),
    Explained(
        "start of threads and programs",
        r" \| no name \(libc\.so\.6\)",
        "we leave out the C library's frames below the outermost Python frame",
        root=True,
    ),
    Explained(
        "larger than the window",
        r"\[stack truncated\] \(\) \| ",
        "120 calls through C need more stack than is captured, up to 3.10: no native frames are "
        "hidden behind the note, since none but the interpreter's are there",
    ),
)
MISPLACED = {"sid"}
"""Stripped executables, in which py-spy does not find the interpreter loop: it shows all Python
frames below all native ones. Their order among themselves is compared, and of native frames."""

CASES = (
    "gil_released", "gil_held", "closure", "through_lambda", "comprehension", "generator",
    "nested_generators", "coroutine", "through_c", "twice_through_c", "callback_from_c", "partial",
    "decorated", "recursion", "multi_line_call", "in_except_block", "non_ascii", "long_function",
    "generator_throw", "threads", "thread_of_c",
)  # fmt: skip


def explain(pair: str, root: bool) -> str:
    for one in EXPLAINED:
        if (root or not one.root) and re.fullmatch(one.pattern, pair):
            return one.name
    return ""


def of_kind(frames: Sequence[Shown], python: bool) -> list[Shown]:
    return [frame for frame in frames if (frame.kind == "python") == python]


def compared(interpreter: Interpreter, stack: Compared[list[Shown]]) -> Comparison:
    mine, theirs = ours(stack.stack), stack.other
    if interpreter.label not in MISPLACED:
        return compare(mine, theirs, explain)
    result = compare(of_kind(mine, False), of_kind(theirs, False), explain)
    result += compare(of_kind(mine, True), of_kind(theirs, True), explain)
    return result


@pytest.fixture(scope="session")
def hold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_hold(tmp_path_factory.mktemp("hold"))


@pytest.mark.parametrize("interpreter", INTERPRETERS, ids=lambda i: i.id)
def test_merged_stacks_are_those_of_py_spy(interpreter: Interpreter, hold: Path) -> None:
    files = [HERE / "stacks_python_program.py", HERE / "python_cases.py"]
    program, libraries, inside = files[0], FAKES, None
    if interpreter.root != Path("/"):
        libraries, inside = interpreter.root / "tmp" / "cases", Path("/tmp/cases")
        libraries.mkdir(exist_ok=True)
        for file in (*files, FAKES / "libcuda.so.1", FAKES / "libcudart.so.12"):
            shutil.copy(file, libraries)
        program = inside / program.name
    stacks = watch(
        [*interpreter.command, str(program), *CASES],
        pyspy_stacks,
        hold,
        frames=FrameMode.MIXED,
        libraries=libraries,
        inside=inside,
        PYTHONDONTWRITEBYTECODE="1",
        PYTHONIOENCODING="utf-8",
    )
    total = Comparison()
    for stack in stacks:
        total += compared(interpreter, stack)
    cells = {
        "stacks": len(stacks),
        "frames": total.frames,
        "of them Python": total.python,
        "equal": total.equal,
        **{one.name: total.explained[one.name] for one in EXPLAINED},
    }
    for column, number in cells.items():
        MATRIX.add("py-spy", interpreter.id, column, str(number))
    assert not total.unlike, "\n".join(total.unlike)
    assert len(stacks) >= len(CASES)


FRAMES = [Shown("native", "call", "lib.so"), *(Shown("python", n, f"{n}.py:3") for n in "abc")]


@pytest.mark.parametrize(
    "other",
    [
        FRAMES[:3],
        [*FRAMES, FRAMES[1]],
        [FRAMES[0], FRAMES[2], FRAMES[1], FRAMES[3]],
        [*FRAMES[1:], FRAMES[0]],
        [*FRAMES[:3], Shown("python", "c", "c.py:4")],
        [*FRAMES[:3], Shown("python", "d", "c.py:3")],
        [Shown("native", "calls", "lib.so"), *FRAMES[1:]],
        [Shown("native", "call", "other.so"), *FRAMES[1:]],
        [FRAMES[0], Shown("native", "", "libc.so.6"), *FRAMES[1:]],
    ],
    ids=["cut", "longer", "Python frames exchanged", "native frame moved", "line", "function",
         "native name", "native file", "C library's frame in between"],
)  # fmt: skip
def test_the_comparison_sees_what_differs(other: list[Shown]) -> None:
    assert compare(FRAMES, FRAMES, explain).equal == len(FRAMES)
    assert compare(FRAMES, other, explain).unlike
