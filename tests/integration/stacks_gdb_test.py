"""Native stacks are the debugger's: gdb looks at the very moment that the probes captured.

A call of the stand-in libraries is held; gdb attaches and unwinds; then the call goes on and what
was captured at its entry is compared, address and name of every frame, from the call outwards.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from native_programs import build_library
from python_layouts_interpreters import INTERPRETERS, Interpreter

from gpumemprof.stack.frames import Frame, FrameKind
from tests.integration.matrix import MATRIX
from tests.integration.stacks_gdb import Difference, GdbFrame, GdbStack, differences, gdb_stacks
from tests.integration.stacks_held import Compared, build_hold, watch
from tests.integration.stacks_programs import PROGRAMS

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="not root"),
    pytest.mark.skipif(shutil.which("gdb") is None, reason="needs gdb"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc"),
]


@dataclass(frozen=True)
class Explained:
    """A difference that is known: ``pattern`` matches "ours | gdb's" whole, in cases that ``case``
    matches. Names may differ only for the same address."""

    name: str
    pattern: str
    why: str
    case: str = ""

    def covers(self, case: str, difference: Difference) -> bool:
        return bool(
            re.search(self.case, case) and re.fullmatch(self.pattern, str(difference), re.DOTALL)
        )


EXPLAINED = (
    Explained(
        "alias",
        r"(?:__)?(\w+) \| (?:__GI_)?(?:__)?\1(?:_impl)?",
        "another name of the same function, at the same address: gdb prefers that of the C "
        "library's debug information",
    ),
    Explained(
        "compiler's part",
        r"(.+?)(\.(?:part|isra|constprop)\.\d+)+ \| \1(\.(?:part|isra|constprop))?",
        "a part or copy that the compiler made: gdb leaves its number out",
    ),
    Explained(
        "cold part",
        r"(.+)\.cold \| \1(\[cold\])?",
        "the part of a function that the compiler put elsewhere: gdb writes it in another way, and "
        "not at all where there is debug information",
    ),
    Explained(
        "names without arguments",
        r"(?:\w+ )?(.+)\(.*\)( const)? \| \1",
        "gdb takes names from the debug information, without arguments",
        case="-g",
    ),
    Explained(
        "another stack",
        r"\[unwind failed: the frames below the signal are on another stack\] \| __GI_raise",
        "only the stack that the call was made on is captured: what is said by a note",
        case="altstack",
    ),
    Explained(
        "no call-frame information",
        r"\[unwind failed: no call-frame information: gcc_-O2\] \| .*",
        "gdb reads the instructions and guesses; we do not guess",
        case="asm_without_cfi",
    ),
    Explained(
        "no call-frame information",
        r"\[code made at run time\] \| no name.*",
        "gdb has no name for it",
        case="jit",
    ),
    Explained(
        "no call-frame information",
        r"\[unwind failed: .*\] \| no name.*",
        "gdb guesses the frame of code without call-frame information",
        case="jit",
    ),
    Explained(
        "begin of a coroutine",
        r"\[unwind failed: no call-frame information: libc\.so\.6\] \| no name",
        "the stack begins at makecontext: gdb takes what lies above for a frame",
        case="coroutine",
    ),
    Explained(
        "untouched page",
        r"\[unwind failed: the captured part of the stack ends here\] \| main",
        "a page of a large frame that was never touched is no memory that a probe can read",
        case="hardly touched",
    ),
    Explained(
        "larger than the window",
        r"\[stack truncated\] \| main",
        "the frame is larger than what is captured of a stack",
        case="frame of 40 kB",
    ),
)


def explanation(case: str, difference: Difference) -> str:
    return next((one.name for one in EXPLAINED if one.covers(case, difference)), "")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stacks")


@pytest.fixture(scope="session")
def hold(built: Path) -> Path:
    return build_hold(built)


KINDS = {
    "gcc -O2": [
        "chain", "variable", "aligned", "recursion", "libc", "signal", "altstack", "asm",
        "asm_without_cfi", "jit", "thread:aligned", "thread:signal",
    ],
    "gcc -O2, lazy binding, control-flow protection": ["chain", "libc"],
    "gcc -O2 -g": ["chain", "aligned"],
    "gcc -O0": ["variable", "signal"],
    "clang -O2": ["aligned", "recursion", "libc", "signal"],
    "gcc -O2, stripped": ["chain", "libc", "signal"],
    "gcc -O2, fixed addresses": ["chain", "signal"],
    "gcc -O2, no search table": ["chain", "aligned"],
    "more, gcc -O2": [
        "bsearch", "last call", "cold part", "jump", "arguments on the stack", "frame of 40 kB",
        "frame of 24 kB, hardly touched",
        "signal in a signal", "trap", "vDSO", "coroutine", "after longjmp", "exit handler",
        "end of a thread", "pthread_once", "8 threads",
    ],
    "more, clang -O2": ["last call", "cold part", "jump", "trap"],
    "exceptions, g++ -O2": ["destructor", "catch"],
    "C++, g++ -O2": [
        "templates", "thunk", "constructor", "co_await", "function as template argument",
        "rethrown", "noexcept", "std::sort", "std::thread", "operator new", "before main",
    ],
    "C++, g++ -O2 -g": ["constructor", "rethrown"],
}  # fmt: skip


def check(case: str, stacks: Sequence[Compared[GdbStack]]) -> None:
    """Every difference is explained; tells the table what was compared."""
    assert stacks
    wrong = []
    explained: dict[str, int] = {}
    frames = addresses = names = 0
    for compared in stacks:
        found = differences(compared.stack, compared.lookups, compared.other)
        count = sum(frame.kind is not FrameKind.NOTE for frame in compared.stack)
        frames += count
        names += count - sum(d.place < count for d in found)
        addresses += count - sum(d.place < count and not d.same_address for d in found)
        for difference in found:
            why = explanation(case, difference)
            explained[why] = explained.get(why, 0) + 1
            if not why:
                wrong.append(str(difference))
    told = ", ".join(f"{why} {number}" for why, number in explained.items())
    cells = {
        "stacks": len(stacks), "frames": frames, "same address": addresses, "same name": names,
        "explained": told,
    }  # fmt: skip
    for column, cell in cells.items():
        MATRIX.add("gdb", case, column, str(cell))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("program", "kind"), [(program, kind) for program, kinds in KINDS.items() for kind in kinds]
)
def test_every_frame_is_the_debuggers(program: str, kind: str, built: Path, hold: Path) -> None:
    if shutil.which(PROGRAMS[program].compiler) is None:
        pytest.skip(f"needs {PROGRAMS[program].compiler}")
    path = PROGRAMS[program].build(built, program)
    settings = {"STACKS_EARLY": "1"} if kind == "before main" else {}
    stacks = watch([str(path), kind], lambda *held: gdb_stacks(*held, built), hold, **settings)
    check(f"{program}: {kind}", stacks)


def _stay(_library: Path) -> None:
    pass


def _remove(library: Path) -> None:
    library.unlink()


def _replace(library: Path) -> None:
    library.unlink()
    library.write_bytes(b"\x7fELF" + b"another file of this name" * 100)


@pytest.mark.parametrize("change", [_stay, _remove, _replace], ids=["kept", "removed", "replaced"])
def test_frames_of_a_library_loaded_at_run_time_are_the_debuggers(
    change: Callable[[Path], None],
    built: Path,
    hold: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """Also once its file is another or gone, before the stack is read."""
    program = PROGRAMS["gcc -O2"].build(built, "gcc -O2")
    library = build_library(tmp_path)

    looks = []

    def look(pid: int, threads: Sequence[int]) -> dict[int, GdbStack]:
        looks.append(gdb_stacks(pid, threads, built))
        if len(looks) == 2:  # its last call: gdb needs the file, we must not
            change(library)
        return looks[-1]

    stacks = watch([str(program), "library", str(library)], look, hold)
    assert any("library_calls" in frame.name for frame in stacks[0].stack)
    check(f"gcc -O2: plugin, {request.node.callspec.id}", stacks)


PYENV = [i for i in INTERPRETERS if i.label in ("pyenv", "system")]
PYTHON_CASES = ("gil_held", "coroutine", "twice_through_c", "thread_of_c")


@pytest.mark.parametrize("interpreter", PYENV, ids=lambda i: i.id)
def test_every_native_frame_of_an_interpreter_is_the_debuggers(
    interpreter: Interpreter, built: Path, hold: Path
) -> None:
    program = Path(__file__).with_name("stacks_python_program.py")
    stacks = watch(
        [*interpreter.command, str(program), *PYTHON_CASES],
        lambda *held: gdb_stacks(*held, built),
        hold,
        PYTHONDONTWRITEBYTECODE="1",
    )
    check(interpreter.id, stacks)


STACK = [Frame("call"), Frame("inner"), Frame("outer"), Frame("main")]
GDB_STACK = GdbStack(
    tuple(
        GdbFrame(pc, name, False)
        for pc, name in [(12, "call"), (21, "inner"), (31, "outer"), (41, "main")]
    ),
    "outermost",
)


@pytest.mark.parametrize(
    ("stack", "lookups"),
    [
        (STACK[:3], (10, 20, 30)),
        ([*STACK, Frame("more")], (10, 20, 30, 40, 50)),
        ([*STACK[:2], *STACK[3:]], (10, 20, 40)),
        ([STACK[0], STACK[2], STACK[1], STACK[3]], (10, 20, 30, 40)),
        (STACK, (10, 20, 29, 40)),
        ([*STACK[:2], Frame.note("unwind failed")], (10, 20)),
    ],
    ids=["cut", "longer", "frame left out", "names exchanged", "other address", "note"],
)
def test_the_comparison_sees_what_differs(stack: list[Frame], lookups: tuple[int, ...]) -> None:
    assert differences(STACK, (10, 20, 30, 40), GDB_STACK) == []
    found = differences(stack, lookups, GDB_STACK)
    assert found
    assert not any(explanation("gcc -O2: chain", difference) for difference in found)
