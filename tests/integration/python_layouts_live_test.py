"""Every interpreter's running threads are named as it names them itself, from outside."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from python_layouts_interpreters import INTERPRETERS, Interpreter
from python_layouts_walk import frames, gil_state, thread_specific, thread_states

from gpumemprof.errors import ProcessGone, RemoteDataError
from gpumemprof.process import maps
from gpumemprof.stack.python.frames import Counts, PythonFrames
from gpumemprof.stack.python.interpreter import Interpreter as Found
from gpumemprof.stack.python.interpreter import InterpreterFinder
from gpumemprof.stack.python.layouts import LAYOUTS
from gpumemprof.stack.python.memory import ProcessMemory, read_u64
from gpumemprof.stack.python.target import make_target
from gpumemprof.stack.python.threads import LibcKind, find_libc

HERE = Path(__file__).parent
PROGRAM = HERE / "python_layouts_program.py"

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="not root")]
each_interpreter = pytest.mark.parametrize("interpreter", INTERPRETERS, ids=lambda i: i.id)


@contextlib.contextmanager
def running(interpreter: Interpreter, *args: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*interpreter.command, *args],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONIOENCODING": "utf-8", **env},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def program_for(interpreter: Interpreter) -> str:
    """Where the program is for an interpreter that may have another root directory."""
    if interpreter.root == Path("/"):
        return str(PROGRAM)
    shutil.copy(PROGRAM, interpreter.root / "tmp" / PROGRAM.name)
    return f"/tmp/{PROGRAM.name}"


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the program ended"
    return line


def find(process: subprocess.Popen[str]) -> Found:
    found = InterpreterFinder().find(process.pid, maps.read(process.pid))
    assert found is not None
    return found


Stack = list[tuple[str, str, int]]


def own_accounts(process: subprocess.Popen[str]) -> list[Stack]:
    return [[tuple(frame) for frame in stack] for stack in json.loads(first_line(process))]


def seen_from_outside(found: Found, memory: ProcessMemory) -> tuple[list[Stack], Counts]:
    """Stacks of all threads, each found through its own slot where the version has one."""
    stacks = []
    python = PythonFrames(memory, found.layout, found.code_type, found.none)
    for fs_base, listed in thread_states(memory, found.target).items():
        state = gil_state(memory, found.target, fs_base) or listed
        assert state == listed
        raw = frames(memory, found.target, state)
        assert all(frame.fingerprint for frame in raw)
        stacks.append([(f.name, f.file, f.line) for run in python.resolve(raw) for f in run])
    return stacks, python.counts


@each_interpreter
def test_threads_are_named_as_the_interpreter_names_them(interpreter: Interpreter) -> None:
    with running(interpreter, program_for(interpreter)) as process:
        accounts = own_accounts(process)
        found = find(process)
        assert found.version == interpreter.version
        with ProcessMemory(process.pid) as memory:
            stacks, counts = seen_from_outside(found, memory)
        for account in accounts:
            assert account in stacks
        assert counts == Counts()


@pytest.mark.parametrize(
    "interpreter", [i for i in INTERPRETERS if i.root == Path("/")], ids=lambda i: i.id
)
def test_the_slot_is_found_when_a_program_uses_many_keys(
    interpreter: Interpreter, tmp_path: Path
) -> None:
    library = tmp_path / "keys.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", library, HERE / "python_layouts_keys.c"], check=True
    )
    with running(interpreter, program_for(interpreter), LD_PRELOAD=str(library)) as process:
        accounts = own_accounts(process)
        found = find(process)
        with ProcessMemory(process.pid) as memory:
            assert read_u64(memory, found.target.tss_key_addr) >> 32 >= 32
            stacks, _ = seen_from_outside(found, memory)
        for account in accounts:
            assert account in stacks


EMBEDDABLE = [i for i in INTERPRETERS if i.shared_library is not None]


@pytest.mark.skipif(not EMBEDDABLE, reason="no shared libpython")
@pytest.mark.parametrize("interpreter", EMBEDDABLE, ids=lambda i: i.id)
def test_an_interpreter_embedded_in_another_program_is_found(
    interpreter: Interpreter, tmp_path: Path
) -> None:
    """The library's thread-local variables have another place than the executable's."""
    library = interpreter.shared_library
    assert library is not None
    directory = tmp_path if interpreter.root == Path("/") else interpreter.root / "tmp"
    program = directory / f"embeds{interpreter.id}"
    source = tmp_path / "embeds.c"
    source.write_text(
        "int Py_BytesMain(int, char **); int main(int c, char **v) { return Py_BytesMain(c, v); }"
    )
    subprocess.run(
        [
            "cc",
            "-o",
            program,
            source,
            library,
            "-Wl,--allow-shlib-undefined",
            f"-Wl,-rpath,{library.parent}",
        ],
        check=True,
    )
    embedding = replace(
        interpreter,
        command=(*interpreter.command[:-1], f"/{program.relative_to(interpreter.root)}"),
    )
    with running(embedding, program_for(interpreter), PYTHONHOME=interpreter.home) as process:
        accounts = own_accounts(process)
        found = find(process)
        assert found.module.endswith(library.name)
        assert bool(found.target.tls_offset) == (interpreter.version >= (3, 15))
        with ProcessMemory(process.pid) as memory:
            stacks, _ = seen_from_outside(found, memory)
        for account in accounts:
            assert account in stacks


@each_interpreter
def test_every_call_of_the_interpreter_loop_is_one_run(interpreter: Interpreter) -> None:
    """The program's main thread passes through C five times or more on its way."""
    with running(interpreter, program_for(interpreter)) as process:
        own_accounts(process)
        found = find(process)
        with ProcessMemory(process.pid) as memory:
            python = PythonFrames(memory, found.layout, found.code_type, found.none)
            runs = [
                python.resolve(frames(memory, found.target, state))
                for state in thread_states(memory, found.target).values()
            ]
        (main,) = (r for r in runs if r[-1][-1].name == "<module>")
        names = [[frame.name.rpartition(".")[2] for frame in run] for run in main]
        if interpreter.version <= (3, 10):
            assert all(len(run) == 1 for run in names)
        else:
            assert ["stand", "<module>"] in names  # exec
            assert any(run[-1] == "<lambda>" for run in names)  # the key function of sorted
            assert sum(len(run) > 1 for run in names) >= 3


@each_interpreter
def test_an_interpreter_that_is_still_starting_is_found_or_not_yet(
    interpreter: Interpreter,
) -> None:
    """Whatever the moment: never an error, and what is found is right."""
    finder = InterpreterFinder()
    with running(
        interpreter, "-c", "print(1, flush=True); import time; time.sleep(1000)"
    ) as process:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with contextlib.suppress(ProcessGone):  # between the old program and the new one
                found = finder.find(process.pid, maps.read(process.pid))
                if found is not None:
                    break
        assert found is not None
        assert found.version == interpreter.version
        first_line(process)
        assert find(process).target == found.target


def test_a_process_that_ended_is_gone_not_damaged() -> None:
    with running(INTERPRETERS[0], "-c", "print(1, flush=True); input()") as process:
        first_line(process)
        mappings = maps.read(process.pid)
        process.kill()
        process.wait()
        with pytest.raises((ProcessGone, RemoteDataError)):
            InterpreterFinder().find(process.pid, mappings)


def test_memory_is_of_the_program_that_was_opened_not_of_its_successor() -> None:
    """exec replaces the program; the addresses of the old one must read as nothing."""
    code = (
        "import os, sys; print(1, flush=True); sys.stdin.readline();"
        "os.execv('/bin/sh', ['sh', '-c', 'echo replaced; exec cat'])"
    )
    process = subprocess.Popen(
        [*INTERPRETERS[0].command, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        first_line(process)
        found = find(process)
        with ProcessMemory(process.pid) as memory:
            assert memory.read_some(found.target.interp_head_addr, 8)
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
            assert first_line(process) == "replaced\n"
            assert memory.read_some(found.target.interp_head_addr, 8) == b""
    finally:
        process.kill()
        process.communicate()


def test_a_program_without_python_has_no_interpreter() -> None:
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as process:
        time.sleep(0.1)
        assert InterpreterFinder().find(process.pid, maps.read(process.pid)) is None


@pytest.mark.skipif(not shutil.which("musl-gcc"), reason="musl is not installed")
def test_musl_keeps_values_of_threads_where_we_look(tmp_path: Path) -> None:
    program = tmp_path / "musl"
    subprocess.run(["musl-gcc", "-o", program, HERE / "python_layouts_musl.c"], check=True)
    process = subprocess.Popen([program], stdout=subprocess.PIPE, text=True)
    try:
        key, fs_base = map(int, first_line(process).split())
        libc = find_libc(process.pid, maps.read(process.pid))
        assert libc.kind is LibcKind.MUSL
        target = make_target(LAYOUTS[3, 12, False], 0x1000, libc)
        with ProcessMemory(process.pid) as memory:
            assert thread_specific(memory, target, fs_base, key) == 0x1234ABCD
    finally:
        process.kill()
        process.communicate()
