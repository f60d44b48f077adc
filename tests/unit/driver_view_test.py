"""What the driver says, on a machine whose driver hangs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from gpumemprof.process.gpu import Gpu, Nvml
from gpumemprof.process.identity import ProcessId
from gpumemprof.process.trust import TENANTS
from gpumemprof.recorder.driver import DriverView

PROCESS = ProcessId(7, 70)
TRUST = replace(TENANTS, patience=0.05)


class Machine(Nvml):
    """Two GPUs, and a driver that can be made to hang."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.asked = 0

    def _wait(self) -> None:
        self.asked += 1
        self.answers.wait(30)

    def gpus(self) -> list[Gpu]:
        self._wait()
        return [Gpu(n, f"GPU-{n}", "H200", 1, 0, minor=n) for n in range(2)]

    def process_bytes(self) -> Counter[int]:
        self._wait()
        return Counter({7: 500})

    def process_gpus(self) -> dict[int, frozenset[int]]:
        self._wait()
        return {7: frozenset({1})}

    def close(self) -> None:
        self._wait()


@pytest.fixture
def machine() -> Iterator[Machine]:
    made = Machine()
    yield made
    made.answers.set()


def test_a_driver_that_hangs_is_given_up_and_its_last_answer_stays(machine: Machine) -> None:
    view = DriverView(TRUST, lambda: machine)
    assert view.bytes_of([PROCESS]) == {PROCESS: 500}
    machine.answers.clear()

    assert view.bytes_of([PROCESS]) == {PROCESS: 500}
    view.attached(PROCESS, uses_cuda=True)

    asked = machine.asked
    for _ in range(10):
        view.bytes_of([PROCESS])
        view.gpu_of(PROCESS, 0)
    assert machine.asked == asked, "it is asked again and again, for seconds each time"
    view.close()


def test_a_driver_that_hangs_from_the_start_is_none(machine: Machine) -> None:
    def connect() -> Nvml:
        machine._wait()
        return machine

    machine.answers.clear()
    view = DriverView(TRUST, connect)

    assert not view.single_gpu
    assert view.bytes_of([PROCESS]) == {}
    assert view.gpu_of(PROCESS, 0) == ("", "")
    view.close()
