"""A command that waits until it is recorded, and then runs as it would from a shell."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from gpumemprof.errors import UsageError
from gpumemprof.process.launch import Command


def shell(script: str) -> Command:
    return Command(["sh", "-c", script])


def code_of(command: Command) -> int:
    """Its exit code, once it ended."""
    while (code := command.poll()) is None:
        time.sleep(0.005)
    command.close()
    return code


def descriptors() -> list[int]:
    """Those that are open here; the one by which they are listed is closed again."""
    found = [int(path.name) for path in Path("/proc/self/fd").iterdir()]
    return sorted(fd for fd in found if Path(f"/proc/self/fd/{fd}").exists())


def run(script: str) -> int:
    command = shell(script)
    command.go()
    return code_of(command)


def test_nothing_runs_before_it_is_told_to(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    command = shell(f"touch {marker}")
    time.sleep(0.05)
    assert command.poll() is None
    assert not marker.exists()
    command.go()
    assert code_of(command) == 0
    assert marker.exists()


def test_the_process_that_waits_is_the_one_that_runs(tmp_path: Path) -> None:
    command = shell(f"echo $$ > {tmp_path}/pid")
    command.go()
    code_of(command)
    assert int((tmp_path / "pid").read_text()) == command.pid


def test_exit_codes_are_those_a_shell_shows() -> None:
    assert run("exit 3") == 3
    assert run("kill -TERM $$") == 128 + signal.SIGTERM


def test_a_command_that_does_not_exist_is_told_in_a_sentence() -> None:
    command = Command(["/no/such/command"])
    with pytest.raises(UsageError, match="/no/such/command: command not found"):
        command.go()
    command.close()


def test_a_command_that_may_not_be_run_is_told_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text("no program")
    command = Command([str(path)])
    with pytest.raises(UsageError, match="Permission denied"):
        command.go()
    command.close()


def test_a_command_killed_while_it_waits_has_ended() -> None:
    command = shell("exit 0")
    command.send(signal.SIGKILL)
    os.waitid(os.P_PID, command.pid, os.WEXITED | os.WNOWAIT)
    command.go()
    assert code_of(command) == 128 + signal.SIGKILL


def test_a_command_that_never_ran_leaves_nothing_behind() -> None:
    before = descriptors()
    command = shell("exit 0")
    command.close()
    assert not Path(f"/proc/{command.pid}").exists()
    assert descriptors() == before


def test_a_command_that_ran_leaves_no_descriptor() -> None:
    before = descriptors()
    assert run("exit 0") == 0
    assert descriptors() == before


def test_a_command_gets_no_descriptor_of_ours(tmp_path: Path) -> None:
    inherited = {str(fd) for fd in descriptors() if os.get_inheritable(fd)}
    command = Command(["sh", "-c", f"exec ls -l /proc/self/fd > {tmp_path}/fds"])
    command.go()
    assert code_of(command) == 0
    shown = re.findall(r" (\d+) -> (.*)", (tmp_path / "fds").read_text())
    listing = {fd for fd, target in shown if target.endswith("/fd")}  # of ls itself
    assert len(listing) == 1
    assert {fd for fd, _ in shown} - listing <= inherited


def ignored_by(tmp_path: Path) -> set[signal.Signals]:
    """Signals that a command ignores when it starts."""
    assert run(f"grep SigIgn /proc/self/status > {tmp_path}/ignored") == 0
    mask = int((tmp_path / "ignored").read_text().split()[1], 16)
    return {number for number in signal.Signals if mask >> (number - 1) & 1}


def test_a_command_does_not_inherit_what_python_ignores(tmp_path: Path) -> None:
    assert {signal.SIGPIPE, signal.SIGXFSZ} & ignored_by(tmp_path) == set()


def test_a_command_does_not_inherit_what_we_handle(tmp_path: Path) -> None:
    old = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        assert run("kill -TERM $$") == 128 + signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, old)


def test_what_was_ignored_when_we_were_started_stays_ignored(tmp_path: Path) -> None:
    # as in the background of a script
    old = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert signal.SIGINT in ignored_by(tmp_path)
    finally:
        signal.signal(signal.SIGINT, old)


def test_the_end_is_noticed_where_children_are_not_waited_for() -> None:
    old = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert run("exit 3") == 0  # what it was is gone
    finally:
        signal.signal(signal.SIGCHLD, old)
