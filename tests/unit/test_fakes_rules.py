"""The stand-ins answer right and wrong calls as an H200 did (driver 580.159, CUDA 13.0)."""

import json
import subprocess
import sys
from pathlib import Path

import fakes_rules
import pytest
from fakes_cuda import environment

MEASURED = json.loads((Path(__file__).parents[1] / "fakes" / "genuine" / "rules.json").read_text())


@pytest.mark.parametrize("question", fakes_rules.CASES)
def test_the_stand_ins_answer_as_the_genuine_libraries(question: str) -> None:
    command = [sys.executable, fakes_rules.__file__, "libcudart.so.13", question]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == MEASURED[question]


def test_every_answer_is_to_a_question() -> None:
    assert set(MEASURED) == set(fakes_rules.CASES)
