"""The doctor's findings as the user sees them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
from click.testing import CliRunner

from gpumemprof.cli import doctor as command
from gpumemprof.cli.main import main
from gpumemprof.doctor import Check, Status
from gpumemprof.probe.kernel import kernel_version, too_old

FINE = Check("lockdown", Status.OK, "[none] integrity confidentiality")
HOSTILE = Check(
    "library", Status.WARN, "/x/\x1b[2J[bold]/libcuda.so.1: not an ELF file", "[advice]"
)
BROKEN = Check("BTF", Status.FAIL, "this kernel has none", "use another")


def shown(monkeypatch: pytest.MonkeyPatch, *checks: Check) -> tuple[int, str]:
    """Exit code and output."""
    monkeypatch.setattr(command, "examine", lambda _: list(checks))
    done = CliRunner().invoke(command.doctor, standalone_mode=False)
    assert isinstance(done.return_value, int)
    return done.return_value, done.output


def test_what_the_kernel_writes_in_brackets_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "[none] integrity confidentiality" in shown(monkeypatch, FINE)[1]


def test_paths_that_programs_chose_are_shown_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    _, output = shown(monkeypatch, HOSTILE)
    assert r"/x/\x1b[2J[bold]/libcuda.so.1: not an ELF file" in output
    assert "-> [advice]" in output


def test_one_failed_check_means_that_recording_cannot_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, output = shown(monkeypatch, FINE, BROKEN)
    assert code == 1
    assert "recording cannot work here" in output
    assert main(["doctor", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["works"] is False
    assert [check["status"] for check in found["checks"]] == ["ok", "fail"]


def test_warnings_do_not_stop_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = shown(monkeypatch, FINE, HOSTILE)
    assert code == 0
    assert "recording works here" in output


@pytest.mark.parametrize(
    ("release", "version"),
    [
        ("6.8.0-1015-azure", (6, 8)),
        ("5.15.0", (5, 15)),
        ("6.18.44-fc-v657", (6, 18)),
        ("7.2-rc1", (7, 2)),
        ("6.1+deb12", (6, 1)),
    ],
)
def test_a_kernel_s_version_is_read_from_its_release(
    release: str, version: tuple[int, int]
) -> None:
    assert kernel_version(release) == version


def test_a_kernel_that_is_too_old_is_told_with_the_one_that_is_needed() -> None:
    assert "Linux 5.4.0-150-generic is too old: 5.10 or newer" in too_old("5.4.0-150-generic")
    assert not too_old("5.15.0-1064-azure")


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv drops capabilities")
def test_without_capabilities_attaching_is_not_tried() -> None:
    alone = [sys.executable, "-m", "gpumemprof", "doctor", "--json"]
    drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"]
    done = subprocess.run(
        [*(drop if os.geteuid() == 0 else ["setpriv"]), *alone],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert found["capabilities"]["status"] == "fail"
    assert found["attaching"]["found"].startswith("not tried without CAP_BPF")
    assert "libbpf:" not in done.stdout
