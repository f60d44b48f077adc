"""What programs are called."""

from __future__ import annotations

import pytest

from gpumemprof.process.program import MAX_NAME, program_name


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/usr/bin/python3 -u /srv/train.py --lr 1", "train.py"),
        ("python train.py", "train.py"),
        ("/opt/venv/bin/python3.14t -X dev -W ignore -m pkg.module -m other", "pkg.module"),
        ("python3 -c print(1)", "python3"),
        ("python3 -", "python3"),
        ("python3", "python3"),
        ("python3 -m", "python3"),
        ("pythonic serve", "pythonic"),
        ("/usr/local/bin/vllm serve meta-llama/Llama-3.1-8B", "vllm"),
        ("ray::RolloutWorker.sample", "ray::RolloutWorker.sample"),
        ("/a/b/c", "c"),
        ("/a/b/", "main"),
        ("", "main"),
        ("x\x1b]0;y", "x?]0;y"),
        ("a" * 1000, "a" * MAX_NAME),
    ],
)
def test_a_program_is_called_by_what_it_runs(command: str, name: str) -> None:
    assert program_name(command, "main") == name
