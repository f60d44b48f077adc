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


@contextmanager
def program(*arguments: str) -> Iterator[int]:
    """A program that holds 6 MiB; starts when let go of, so that all of it is seen."""
    with subprocess.Popen(
        [str(FAKES / "driver_loop"), "--pairs", "10", "--leak", "3", "--size", str(2 * MIB),
         "--hold", str(PATIENCE), *arguments],
        stdout=subprocess.PIPE, env=ENVIRONMENT,
    ) as process:  # fmt: skip
        try:
            yield process.pid
        finally:
            process.kill()


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
    with terminal(tmp_path) as screen:
        screen.start(*TOP, "-o", "top.pb.gz", "--interval", "0.3")
        screen.shows("gpumemprof top", "q quit")
        with program() as first, program("--leak", "1") as second:
            screen.shows(f"{first}  6.00 MiB", f"{second}  2.00 MiB", "allocate_block")
            assert f"function of process {first}" in screen.screen()
            screen.press("Down")
            screen.shows(f"function of process {second}")
            screen.press("s")
            screen.shows("by peak")
            screen.press("m", "m")
            screen.shows("of managed memory")
            screen.press("m", "m", "m")
            screen.press("p")
            screen.shows("PAUSED")
            screen.press("p")
            screen.press("w")
            screen.shows("written: top.pb.gz")
            assert first in {each.pid for each in files.load(tmp_path / "top.pb.gz").processes}
        screen.until(lambda: f"{first}  6.00 MiB" not in screen.screen())
        screen.press("q")
        screen.until(lambda: not screen.runs)


def test_a_pipe_gets_plain_text(tmp_path: Path) -> None:
    with program("--late", "1") as pid:
        ended = subprocess.run(
            [*TOP, "--pid", str(pid), "--count", "2", "--interval", "2"],
            capture_output=True, text=True, check=False, timeout=60, env=ENVIRONMENT,
        )  # fmt: skip

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("gpumemprof top") == 2
    assert "\x1b" not in ended.stdout
    assert "1 process, 6.00 MiB of GPU memory, by in use" in ended.stdout
    assert "allocate_block" in ended.stdout


def test_a_process_that_is_not_there_is_told() -> None:
    ended = subprocess.run(
        [*TOP, "--pid", "4194304"], capture_output=True, text=True, check=False, timeout=60
    )

    assert (ended.returncode, ended.stderr) == (2, "gpumemprof: there is no process 4194304\n")
