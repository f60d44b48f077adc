"""`gpumemprof top` in a real terminal (tmux) and in a pipe."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpumemprof.profile import files
from tests.integration.recording import FAKES, PATIENCE

MIB = 1 << 20
ENVIRONMENT = {**os.environ, "LD_LIBRARY_PATH": str(FAKES)}


class Program:
    """One that holds 6 MiB, or as many pieces of 2 MiB as it is told, once it is let go."""

    def __init__(self, leak: int = 3) -> None:
        self._process = subprocess.Popen(
            [str(FAKES / "driver_loop"), "--wait", "--pairs", "10", "--leak", str(leak),
             "--size", str(2 * MIB), "--hold", str(PATIENCE)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT,
        )  # fmt: skip
        self.pid = self._process.pid
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def programs(*leaks: int) -> Iterator[list[Program]]:
    made = [Program(leak) for leak in leaks]
    try:
        yield made
    finally:
        for each in made:
            each.end()


class Terminal:
    """A tmux session of its own server, 80 × 24."""

    def __init__(self, tmp_path: Path) -> None:
        self._socket = tmp_path / "tmux"
        self._directory = tmp_path

    def tmux(self, *arguments: str) -> str:
        found = subprocess.run(
            ["tmux", "-S", str(self._socket), *arguments],
            capture_output=True, text=True, check=False, timeout=30,
        )  # fmt: skip
        return found.stdout

    def start(self, *command: str) -> None:
        self.tmux(
            "new-session", "-d", "-x", "80", "-y", "24", "-c", str(self._directory),
            "-e", f"LD_LIBRARY_PATH={FAKES}", *command,
        )  # fmt: skip

    def screen(self) -> str:
        return self.tmux("capture-pane", "-p")

    def press(self, *keys: str) -> None:
        self.tmux("send-keys", *keys)

    def shows(self, *texts: str) -> None:
        self.until(lambda: all(text in self.screen() for text in texts))

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, self.screen()
            time.sleep(0.1)

    @property
    def runs(self) -> bool:
        return bool(self.tmux("list-sessions"))


@contextmanager
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    made = Terminal(tmp_path)
    try:
        yield made
    finally:
        made.tmux("kill-server")


TOP = (sys.executable, "-m", "gpumemprof", "top")


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_a_terminal_shows_processes_and_functions_and_takes_keys(tmp_path: Path) -> None:
    with programs(3, 1, 0) as (first, second, third), terminal(tmp_path) as screen:
        pids = [part for each in (first, second, third) for part in ("--pid", str(each.pid))]
        screen.start(*TOP, *pids, "-o", "top.pb.gz", "--interval", "0.3")
        screen.shows("gpumemprof top", "q quit")
        first.go()
        second.go()
        screen.shows(f"{first.pid}  6.00 MiB", f"{second.pid}  2.00 MiB", "allocate_block")
        assert f"function of process {first.pid}" in screen.screen()
        screen.press("Down")
        screen.shows(f"function of process {second.pid}")
        screen.press("s")
        screen.shows("by peak")
        screen.press("m", "m")
        screen.shows("of managed memory")
        screen.press("m", "m", "m")
        screen.press("p")
        screen.shows("8.00 MiB of GPU memory", "PAUSED")
        screen.press("m", "m")
        screen.shows(", 0 B of managed memory", "PAUSED")
        screen.press("m", "m", "m")
        screen.shows("8.00 MiB of GPU memory", "PAUSED")
        screen.press("p")
        screen.press("w")
        screen.shows("written: top.pb.gz")
        assert first.pid in {each.pid for each in files.load(tmp_path / "top.pb.gz").processes}
        first.end()
        screen.until(lambda: f"{first.pid}  6.00 MiB" not in screen.screen())
        screen.press("q")
        screen.until(lambda: not screen.runs)


def test_a_pipe_gets_plain_text() -> None:
    with (
        programs(3) as (program,),
        subprocess.Popen(
            [*TOP, "--pid", str(program.pid), "--interval", "0.3"],
            stdout=subprocess.PIPE, text=True, env=ENVIRONMENT,
        ) as shown,
    ):  # fmt: skip
        assert shown.stdout is not None
        first = shown.stdout.readline()
        program.go()
        for line in shown.stdout:
            assert "\x1b" not in line
            if "allocate_block" in line:
                break
        shown.terminate()
        shown.communicate()

    assert first.endswith(", 0 B of GPU memory, by in use\n")
    assert shown.returncode == 0


def test_it_ends_after_as_many_pictures_as_asked_for() -> None:
    with programs(0) as (program,):
        ended = subprocess.run(
            [*TOP, "--pid", str(program.pid), "--count", "2", "--interval", "0.1"],
            capture_output=True, text=True, check=False, timeout=60, env=ENVIRONMENT,
        )  # fmt: skip

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.count("gpumemprof top") == 2


def test_a_process_that_is_not_there_is_told() -> None:
    ended = subprocess.run(
        [*TOP, "--pid", "4194304"], capture_output=True, text=True, check=False, timeout=60
    )

    assert (ended.returncode, ended.stderr) == (2, "gpumemprof: there is no process 4194304\n")
