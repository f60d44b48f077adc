"""``gpumemprof record`` as a user meets it: exit codes, Ctrl-C, wrong input, what it leaves."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.recording import FAKES, command_line

DRIVER = str(FAKES / "driver_loop")
LLM_SERVER = str(Path(__file__).parents[2] / "gpumemprof" / "demo" / "llm_server.py")


def links() -> int:
    """Links in the kernel that belong to our programs."""
    bpftool = shutil.which("bpftool") or "/usr/sbin/bpftool"
    listed = json.loads(
        subprocess.run([bpftool, "-j", "prog", "show"], capture_output=True, check=True).stdout
    )
    ours = ("session", "multi_entry", "multi_return", "single_entry", "single_return", "on_exit")
    return sum(program.get("name") in ours for program in listed)


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Fails when programs of ours stay in the kernel."""
    before = links()
    yield
    for _ in range(50):
        if links() <= before:
            return
        time.sleep(0.1)
    raise AssertionError("BPF programs are left in the kernel")


def test_the_exit_code_of_the_command_is_passed_on(tmp_path: Path, nothing_left: None) -> None:
    out = tmp_path / "p.pb.gz"
    done = command_line("record", "-o", str(out), "--", "sh", "-c", f"{DRIVER} --leak 1; exit 7")
    assert done.returncode == 7, done.stderr
    assert out.exists()
    assert "allocate_block" in done.stdout


def test_death_by_a_signal_is_told_as_shells_do(tmp_path: Path) -> None:
    out = str(tmp_path / "p.pb.gz")
    done = command_line("record", "-o", out, "--", "sh", "-c", "kill -TERM $$")
    assert done.returncode == 128 + signal.SIGTERM


def test_totals_of_the_demo_are_its_own_and_the_same_twice(tmp_path: Path) -> None:
    reports = []
    for number in range(2):
        out = tmp_path / f"{number}.pb.gz"
        done = command_line(
            "record", "-o", str(out), "--", sys.executable, LLM_SERVER, "--json", "--interval", "0",
            "--requests", "16",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        books = json.loads(done.stdout[: done.stdout.index("\n")])
        shown = command_line("report", str(out), "--format", "json")
        reports.append((books, json.loads(shown.stdout)))
    (books, first), (_, second) = reports
    assert first["totals"] == second["totals"]
    (process,) = [process for process in first["processes"] if process["peak"]]
    assert process["peak"] == books["peak_gpu_bytes"]
    made = first["totals"]["gpu"]["alloc_objects"] + first["totals"]["pinned_host"]["alloc_objects"]
    assert made == books["allocations"]
    leak = next(f for f in first["functions"] if f["name"] == "PrefixCache.insert")
    assert leak["file"].endswith("llm_server.py")
    (failure,) = first["failures"]
    assert failure["error"] == 2


def test_ctrl_c_ends_the_recording_and_writes_the_profile(
    tmp_path: Path, nothing_left: None
) -> None:
    out = tmp_path / "p.pb.gz"
    program = subprocess.Popen(
        [DRIVER, "--leak", "2", "--pairs", "100000", "--rate", "1000", "--batch", "10"],
        env={**os.environ, "LD_LIBRARY_PATH": str(FAKES)},
        stdout=subprocess.DEVNULL,
    )
    try:
        recorder = subprocess.Popen(
            [sys.executable, "-m", "gpumemprof", "record", "--pid", str(program.pid),
             "-o", str(out)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        time.sleep(3)
        recorder.send_signal(signal.SIGINT)
        stdout, stderr = recorder.communicate(timeout=60)
    finally:
        program.kill()
        program.wait()
    assert recorder.returncode == 0, stderr
    assert "Traceback" not in stderr
    assert out.exists()
    assert "driver_loop" in stdout


def test_duration_ends_the_recording(tmp_path: Path) -> None:
    began = time.monotonic()
    out = tmp_path / "p.pb.gz"
    done = command_line("record", "--pid", str(os.getpid()), "--duration", "0.5", "-o", str(out))
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 60
    assert "no GPU memory was allocated" in done.stderr


def test_an_unwritable_output_goes_elsewhere_and_says_where(tmp_path: Path) -> None:
    done = command_line("record", "-o", str(tmp_path / "no" / "p.pb.gz"), "--", DRIVER)
    assert done.returncode == 1
    found = re.search(r"the profile is in (\S+)", done.stderr)
    assert found is not None, done.stderr
    written = Path(found[1])
    shown = command_line("report", str(written))
    written.unlink()
    assert shown.returncode == 0, shown.stderr


@pytest.fixture
def go_program(tmp_path: Path) -> Iterator[int]:
    go = shutil.which("go")
    if go is None:
        pytest.skip("go is not installed")
    source = tmp_path / "main.go"
    source.write_text('package main\nimport "time"\nfunc main() { time.Sleep(time.Minute) }\n')
    subprocess.run([go, "build", "-o", tmp_path / "goprog", source], check=True, cwd=tmp_path)
    process = subprocess.Popen([tmp_path / "goprog"])
    yield process.pid
    assert process.poll() is None, "it did not survive being recorded"
    process.kill()
    process.wait()


def test_a_go_program_survives_being_recorded(tmp_path: Path, go_program: int) -> None:
    out = str(tmp_path / "p.pb.gz")
    done = command_line("record", "--pid", str(go_program), "--duration", "0.3", "-o", out)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--pid", "999999999"), "there is no process 999999999"),
        (("--pid", "2"), "kernel thread|there is no process 2"),
        (("--pid", "1", "--duration", "-1"), "duration"),
        (("--duration", "nan", "--pid", "1"), "duration"),
        ((), "give one of"),
        (("--pid", "1", "--all"), "give one of"),
        (("--", "/nonexistent/program"), "command not found"),
        (("--", "/etc/passwd"), "Permission denied"),
        (("--format", "xml", "--", "true"), "xml"),
    ],
)
def test_wrong_input_is_told_in_a_sentence(
    tmp_path: Path, arguments: tuple[str, ...], says: str, nothing_left: None
) -> None:
    done = command_line("record", "-o", str(tmp_path / "p.pb.gz"), *arguments)
    assert done.returncode not in (0, 141)
    assert re.search(says, done.stderr), done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "p.pb.gz").exists()


def test_without_root_it_says_so() -> None:
    # All is imported first: another user may not be allowed to read the checkout.
    program = (
        "import os; import gpumemprof.cli.main as cli; import gpumemprof.cli.record;"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534);"
        "raise SystemExit(cli.main(['record', '--', 'true']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert "needs root" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("damage", ["truncated", "emptied", "not ELF", "stripped of sections"])
def test_a_damaged_library_is_a_blind_spot_that_is_told(tmp_path: Path, damage: str) -> None:
    library = tmp_path / "libcudart.so.12"
    whole = (FAKES / "libcudart.so.12").read_bytes()
    sections = whole[:40] + bytes(8) + whole[48:60] + bytes(4) + whole[64:]
    library.write_bytes(
        {
            "truncated": whole[:5000],
            "emptied": b"",
            "not ELF": b"#!/bin/sh\n" * 100,
            "stripped of sections": sections,
        }[damage]
    )
    out = tmp_path / "p.pb.gz"
    done = command_line(
        "record", "-o", str(out), "--", "sh", "-c", "exit 0",
        LD_LIBRARY_PATH=f"{tmp_path}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    if damage == "stripped of sections":  # the dynamic section is enough
        assert "cannot probe" not in done.stderr
    else:
        assert "cannot probe" in done.stderr
        assert library.name in done.stderr


def test_a_command_that_cannot_run_has_the_exit_code_of_shells(tmp_path: Path) -> None:
    out = str(tmp_path / "p.pb.gz")
    assert command_line("record", "-o", out, "--", "/nonexistent/program").returncode == 127
    assert command_line("record", "-o", out, "--", "/etc/passwd").returncode == 126


def test_doctor_tells_what_works() -> None:
    done = command_line("doctor", "--json")
    assert done.returncode == 0, done.stdout
    found = json.loads(done.stdout)
    assert found["works"] is True
    told = [(check["name"], check["status"], check["found"]) for check in found["checks"]]
    assert ("attaching", "ok") in [(name, status) for name, status, _ in told]
    drivers = [text for name, _, text in told if name == "libcuda"]
    assert any(str(FAKES / "libcuda.so.1") in text for text in drivers), drivers


def test_doctor_fails_where_recording_cannot_work() -> None:
    done = command_line(
        "doctor", GPUMEMPROF_LIBBPF="/nonexistent/libbpf.so", GPUMEMPROF_BCC="/nonexistent"
    )
    assert done.returncode == 1
    assert "recording cannot work here" in done.stdout


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_closed_streams_cost_neither_profile_nor_exit_code(tmp_path: Path, closed: str) -> None:
    out = tmp_path / "p.pb.gz"
    recorder = [sys.executable, "-m", "gpumemprof", "record", "-o", str(out), "--"]
    done = subprocess.run(
        ["sh", "-c", f'"$@" {closed}', "sh", *recorder, "sh", "-c", f"{DRIVER} --leak 1; exit 7"],
        env={**os.environ, "LD_LIBRARY_PATH": str(FAKES)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 7, done.stderr
    assert "allocate_block" in command_line("report", str(out)).stdout


def test_the_name_of_the_file_tells_the_format(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    done = command_line("record", "-o", str(out), "--", DRIVER, "--leak", "1")
    assert done.returncode == 0, done.stderr
    assert out.read_text().startswith("<!DOCTYPE html>")
