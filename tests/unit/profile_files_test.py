"""Where profiles are written, and what is left alone."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

from gpumemprof.profile import files


def test_a_file_is_replaced_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "p.pb.gz"
    path.write_bytes(b"old")
    path.chmod(0o600)
    files.write_bytes(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["p.pb.gz"]


def test_a_link_stays_a_link_and_leads_to_what_was_written(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    files.write_bytes(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


def test_standard_output_by_name_is_written_to(tmp_path: Path) -> None:
    out = tmp_path / "out"
    program = "from gpumemprof.profile import files; files.write_bytes('/proc/self/fd/1', b'data')"
    with out.open("wb") as stdout:
        subprocess.run([sys.executable, "-c", program], stdout=stdout, check=True)
    assert out.read_bytes() == b"data"
    assert stat.S_ISLNK(os.lstat("/proc/self/fd/1").st_mode)
