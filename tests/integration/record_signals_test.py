"""Ctrl-C and its relatives: who gets the signal, how often, and what comes of the recording."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

from gpumemprof.process import procfs
from tests.integration.recording import CHECKOUT, FAKES, PATIENCE

COUNTS_INTERRUPTS = """
import pathlib, signal, sys, time
here = pathlib.Path(sys.argv[1])
count = 0
def handle(*_):
    global count
    count += 1
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, handle)
(here / "ready").touch()
while not count:
    time.sleep(0.01)
time.sleep(0.5)  # for one more to come
(here / "count").write_text(str(count))
sys.exit(5)
"""


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def record_command(here: Path, *options: str) -> list[str]:
    """Record a program that counts what interrupts it, and exits with 5."""
    script = here / "program.py"
    script.write_text(COUNTS_INTERRUPTS)
    return [
        sys.executable, "-m", "gpumemprof", "record", "-o", str(here / "profile.pb.gz"), *options,
        "--", sys.executable, str(script), str(here),
    ]  # fmt: skip


def environment() -> dict[str, str]:
    return {**os.environ, "LD_LIBRARY_PATH": str(FAKES), "PYTHONPATH": str(CHECKOUT)}


def test_ctrl_c_reaches_a_command_once_whatever_its_standard_input_is(tmp_path: Path) -> None:
    command = record_command(tmp_path)
    pid, terminal = pty.fork()
    if not pid:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.execve(command[0], command, environment())
    wait_for(tmp_path / "ready")
    os.write(terminal, b"\x03")
    wait_for(tmp_path / "count")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert (tmp_path / "count").read_text() == "1"
    assert os.waitstatus_to_exitcode(status) == 5
    assert (tmp_path / "profile.pb.gz").exists()


def test_an_interrupt_that_is_sent_to_us_alone_is_passed_on(tmp_path: Path) -> None:
    with subprocess.Popen(
        record_command(tmp_path), env=environment(), start_new_session=True
    ) as process:
        wait_for(tmp_path / "ready")
        process.send_signal(signal.SIGINT)
    assert (tmp_path / "count").read_text() == "1"
    assert process.returncode == 5


def test_a_command_that_goes_on_after_its_recording_is_still_told_to_end(tmp_path: Path) -> None:
    with subprocess.Popen(
        record_command(tmp_path, "--duration", "0.5"), env=environment(), start_new_session=True
    ) as process:
        wait_for(tmp_path / "ready")
        wait_for(tmp_path / "profile.pb.gz")
        time.sleep(0.3)  # until it waits for the command
        process.send_signal(signal.SIGTERM)
    assert (tmp_path / "count").read_text() == "1"
    assert process.returncode == 5


def test_a_command_that_does_not_end_is_left_when_asked_again(tmp_path: Path) -> None:
    command = record_command(tmp_path, "--duration", "0.5")
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"
    command[command.index("--") + 2 :] = ["-c", stubborn]
    with subprocess.Popen(command, env=environment(), start_new_session=True) as process:
        wait_for(tmp_path / "profile.pb.gz")
        time.sleep(0.3)
        (child,) = procfs.descendants(process.pid)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 128 + signal.SIGTERM
    os.kill(child, signal.SIGKILL)
