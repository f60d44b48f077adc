"""Reports as files, from the command line."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from profile_examples import TRAINING
from snapshot_examples import MIB, block, frames, pickled, segment

from gpumemprof.cli.main import main
from gpumemprof.profile.pprof import encode
from gpumemprof.recording import FORMATS


@pytest.fixture
def recorded(tmp_path) -> str:
    path = tmp_path / "train.pb.gz"
    path.write_bytes(encode(TRAINING))
    return str(path)


def shown(path: Path) -> dict:
    text = re.search(r'id="gpumemprof-data">(.*?)</script>', path.read_text(), re.DOTALL)
    assert text is not None
    return json.loads(text[1])


class TestReport:
    def test_it_is_one_file(self, recorded, tmp_path, capsys):
        out = tmp_path / "report.html"
        assert main(["report", recorded, "--format", "html", "-o", str(out)]) == 0
        assert capsys.readouterr().out == ""
        assert shown(out)["title"] == "python train.py --epochs 3"
        assert "pinned_host" in shown(out)["strings"]

    def test_it_opens_with_what_is_asked_for(self, recorded, tmp_path):
        out = tmp_path / "report.html"
        assert main(["report", recorded, "--format", "html", "--sort", "peak", "-o", str(out)]) == 0
        assert shown(out)["view"] == "peak_space"

    def test_one_kind_can_be_chosen(self, recorded, tmp_path):
        out = tmp_path / "report.html"
        assert main(["report", recorded, "--format", "html", "--kind", "gpu", "-o", str(out)]) == 0
        assert "batches" not in shown(out)["strings"]

    def test_it_can_be_piped(self, recorded):
        done = subprocess.run(
            [sys.executable, "-m", "gpumemprof.cli.main", "report", recorded, "--format", "html"],
            capture_output=True,
            check=True,
        )
        assert done.stdout.startswith(b"<!DOCTYPE html>")

    def test_it_is_not_for_a_terminal(self, recorded):
        ours, theirs = pty.openpty()
        done = subprocess.run(
            [sys.executable, "-m", "gpumemprof.cli.main", "report", recorded, "--format", "html"],
            stdout=theirs,
            stderr=subprocess.PIPE,
            check=False,
        )
        os.close(ours)
        os.close(theirs)
        assert done.returncode == 2
        assert b"give -o FILE" in done.stderr


def test_a_snapshot_of_pytorch_is_a_page_too(tmp_path):
    held = segment(block(3 * MIB, frames=frames("load")), block(MIB, "inactive"))
    source, out = tmp_path / "snapshot.pickle", tmp_path / "snapshot.html"
    source.write_bytes(pickled([held]))
    assert main(["snapshot", str(source), "-o", str(out)]) == 0
    page = shown(out)
    assert page["title"] == "snapshot.pickle"
    assert page["samples"]["values"][page["types"].index("inuse_space")] == [3 * MIB, MIB]
    assert {"load", "[reserved by PyTorch, not in use]"} < set(page["strings"])


def test_a_recording_can_be_a_page():
    assert FORMATS["html"] == "gpumemprof.html"
