"""Both loaders record the same, with and without the kernel's BTF; what is missing is told."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpumemprof.errors import ProbeError
from gpumemprof.probe import bcc, offsets
from gpumemprof.probe.attach import AttachMode
from gpumemprof.probe.kernel_side import LoaderChoice
from gpumemprof.probe.loader import Options, Probes
from gpumemprof.profile import pprof
from gpumemprof.profile.model import Profile
from tests.integration.loaders import LOADERS, needs_bcc
from tests.integration.recording import CHECKOUT, FAKES, command_line
from tests.kernels.check import book_differences, content, differences

DEMO = [
    sys.executable, str(CHECKOUT / "gpumemprof/demo/llm_server.py"), "--json", "--scale", "0.125",
    "--requests", "6", "--interval", "0.05", "--hold", "0.5",
]  # fmt: skip
LOOP = [
    str(FAKES / "driver_loop"), "--pairs", "100", "--leak", "3", "--depth", "6", "--hold", "0.3",
]  # fmt: skip
HIDE_BTF = 'mount -t tmpfs none /sys/kernel/btf && exec "$@"'
"""In a mount namespace of its own: the kernel is then one without, to those inside."""


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def recorded(
    tmp_path: Path, program: list[str], *options: str, hide_btf: bool = False
) -> tuple[Profile, dict[str, object], str]:
    """The profile of a command's recording, the program's own truth, and what it printed."""
    out = tmp_path / "profile.pb.gz"
    arguments = [
        sys.executable, "-m", "gpumemprof", "record", *options, "-o", str(out), "--", *program,
    ]  # fmt: skip
    if hide_btf:
        arguments = ["unshare", "-m", "sh", "-c", HIDE_BTF, "sh", *arguments]
    stats = tmp_path / "stats.%p.json"
    done = subprocess.run(
        arguments, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "LD_LIBRARY_PATH": str(FAKES), "GPUMEMPROF_FAKE_STATS": str(stats)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (truth,) = tmp_path.glob("stats.*.json")
    return pprof.decode(out.read_bytes()), json.loads(truth.read_text()), done.stdout


@needs_bcc
@pytest.mark.parametrize("hide_btf", [False, True], ids=["with BTF", "BTF hidden"])
@pytest.mark.parametrize("program", [LOOP, DEMO], ids=["C", "Python"])
def test_both_loaders_record_the_same(tmp_path: Path, program: list[str], hide_btf: bool) -> None:
    by_itself = ["--loader", "auto"]
    contents = []
    for name, options, hide in (
        ("libbpf", ["--loader", "libbpf"], False),
        ("bcc", by_itself if hide_btf else ["--loader", "bcc"], hide_btf),
    ):
        (tmp_path / name).mkdir()
        profile, truth, printed = recorded(tmp_path / name, program, *options, hide_btf=hide)
        assert profile.about["loader"].startswith(name)
        assert [*differences(profile, truth)] == []
        if program is DEMO:
            assert [*book_differences(profile, json.loads(printed.split("\n", 1)[0]))] == []
        contents.append(content(profile))
    assert contents[0] == contents[1]


@needs_bcc
def test_the_compiler_is_silent_unless_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "bpf"
    shutil.copytree(bcc.SOURCE, source)
    monkeypatch.setattr(bcc, "SOURCE", source)
    only_bcc = Options(loader=LoaderChoice.BCC)
    Probes(only_bcc).close()
    assert capfd.readouterr() == ("", "")

    changed = source / "calls.bpf.h"
    changed.write_text(changed.read_text() + "\nint broken(void) { return undeclared; }\n" * 40)
    with pytest.raises(
        ProbeError, match=r"calls\.bpf\.h:\d+:\d+: error: use of undeclared"
    ) as told:
        Probes(only_bcc)
    assert str(told.value).count("error:") <= 8
    assert capfd.readouterr() == ("", "")


@needs_bcc
def test_a_probe_that_was_changed_needs_no_toolchain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "bpf"
    shutil.copytree(bcc.SOURCE, source)
    events = source / "events.h"
    events.write_text(events.read_text().replace("__u64 time_ns;", "__u64 added, time_ns;"))
    monkeypatch.setattr(bcc, "SOURCE", source)
    with Probes(Options(loader=LoaderChoice.BCC)) as probes:
        assert probes.layout("event_header").fields["time_ns"].offset == 8


def test_fields_found_by_value_are_where_the_kernel_says_they_are() -> None:
    both = offsets.told_and_found()
    assert both["found"] == both["told"]
    assert both["found"]


def test_nothing_is_left_of_looking_for_fields() -> None:
    before = descriptors()
    offsets.by_value()
    assert descriptors() == before


def test_when_no_loader_works_the_reasons_of_both_are_told(tmp_path: Path) -> None:
    done = command_line(
        "record", "-o", str(tmp_path / "p"), "--", "true",
        GPUMEMPROF_LIBBPF="/no/libbpf.so", GPUMEMPROF_BCC="/no/bcc",
    )  # fmt: skip
    assert done.returncode == 3
    assert "libbpf: libbpf is not installed" in done.stderr
    assert (
        "bcc: there is no bcc in /no/bcc; install Debian's or Ubuntu's python3-bpfcc" in done.stderr
    )


@LOADERS
def test_doctor_tells_which_loader_works(loader: LoaderChoice) -> None:
    done = command_line("doctor", "--json", "--loader", loader.value)
    report = json.loads(done.stdout)
    found = {check["name"]: check for check in report["checks"]}
    assert report["works"]
    assert found["loader"]["found"].startswith(loader.value)


@needs_bcc
def test_where_libbpf_is_missing_bcc_is_taken() -> None:
    done = command_line("doctor", "--json", GPUMEMPROF_LIBBPF="/no/libbpf.so")
    found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert found["loader"]["found"].startswith("bcc ")
    assert "libbpf is not installed" in found["loader"]["found"]


@LOADERS
@pytest.mark.parametrize("mode", AttachMode)
def test_leaving_frees_everything(loader: LoaderChoice, mode: AttachMode) -> None:
    before = descriptors()
    Probes(Options(loader=loader, mode=mode)).close()
    assert descriptors() == before
