"""Recordings under other kernels are as they must be, and those of one another.

Minutes a kernel. Uses the kernels that are in build/kernels and fetches none; `make test-kernels`
does, and writes the table.
"""

from __future__ import annotations

import pytest

from tests.kernels import image, machine
from tests.kernels.__main__ import KERNELS, verdict_on
from tests.kernels.archive import NotAtHand
from tests.kernels.check import Verdict, same_stacks


@pytest.fixture(scope="module")
def verdicts() -> dict[str, Verdict]:
    """Those of the kernels at hand, once they ran."""
    return {}


@pytest.mark.parametrize("series", KERNELS)
def test_a_kernel_records_what_the_programs_count(
    series: str, verdicts: dict[str, Verdict]
) -> None:
    try:
        machine.require()
        if not image.is_at_hand(series):
            raise NotAtHand(f"Linux {series} is not in build/kernels: make test-kernels fetches it")
        verdicts[series] = verdict_on(series, bcc=False)
    except NotAtHand as reason:
        pytest.skip(str(reason))
    assert not verdicts[series].problems


def test_the_stacks_are_the_same_under_every_kernel(verdicts: dict[str, Verdict]) -> None:
    if not verdicts:
        pytest.skip("no kernel ran")
    same_stacks(list(verdicts.values()))
    assert not [problem for verdict in verdicts.values() for problem in verdict.problems]
