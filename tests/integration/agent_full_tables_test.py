"""A pod may start more processes than the kernel's tables have room for: the agent goes on."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpumemprof.agent.discovery import Discovery
from gpumemprof.errors import ProbeError
from gpumemprof.probe.syscalls import BpfMap
from gpumemprof.recorder import Recorder
from tests.integration.record_processes_test import LEAK, in_use, start
from tests.integration.recording import environment, options, until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
MIB = 1 << 20
NO_PID = 1 << 23
"""Beyond what the kernel gives (PID_MAX_LIMIT)."""


def fill(table: BpfMap, value: bytes) -> None:
    for number in range(1 << 16):
        try:
            table.put((NO_PID + number).to_bytes(4, "little"), value)
        except OSError:
            return
    raise AssertionError("it has no end")


@contextmanager
def python() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-c", "print(1, flush=True); input()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def test_one_interpreter_too_many_is_counted() -> None:
    with Recorder(options()) as recorder, python() as process:
        fill(recorder.probes._python, bytes(recorder.probes.python_layout.size))

        recorder.add(process.pid)

        assert recorder.completeness()["python_unsupported"] == 1


def test_a_process_that_cannot_be_recorded_leaves_nothing_behind() -> None:
    with Recorder(options()) as recorder, python() as process:
        fill(recorder.probes._processes, (1).to_bytes(4, "little"))

        for _ in range(2):
            with pytest.raises(ProbeError):
                recorder.add(process.pid)

        assert not list(recorder.processes.all)
        assert not recorder.stacks._holdings


def test_nothing_is_kept_of_a_process_that_cannot_be_switched_off_in_the_kernel() -> None:
    with environment(), Recorder(options(record_all=True)) as recorder:
        running = start(*LEAK, "--hold", "30")
        try:
            until(lambda: in_use(recorder, running.pid) == 6 * MIB, recorder.step)
            [process] = [p for p in recorder.processes.running if p.id.pid == running.pid]
            recorder.probes.forget_process(running.pid)
            fill(recorder.probes._processes, (1).to_bytes(4, "little"))

            with pytest.raises(ProbeError):
                recorder.switch_off(process)

            snapshot = recorder.ledger.snapshot([process.id])
            assert not snapshot.processes and not snapshot.aggregates
            assert process.id not in recorder.stacks._holdings
        finally:
            running.kill()
            running.communicate()


def test_a_process_that_ended_as_it_was_switched_off_leaves_its_pid_to_others() -> None:
    """Else the kernel's table fills up, and the next process with this pid is off."""
    with environment(), Recorder(options(record_all=True)) as recorder:
        running = start(*LEAK, "--hold", "0.3")
        until(lambda: in_use(recorder, running.pid) == 6 * MIB, recorder.step)
        [process] = [p for p in recorder.processes.running if p.id.pid == running.pid]
        running.communicate()

        recorder.switch_off(process)
        recorder.step()

        assert process.ended is not None
        assert recorder.probes._processes.get(running.pid.to_bytes(4, "little")) is None


def test_without_a_file_to_open_processes_are_looked_at_later() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    filled: list[int] = []
    with Recorder(options()) as recorder:
        discovery = Discovery(recorder)
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, limits[1]))
        try:
            with contextlib.suppress(OSError):
                while True:
                    filled.append(os.dup(0))
            discovery.turn(())
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            for fd in filled:
                os.close(fd)
        assert discovery.rounds == 0

        discovery.again()
        until(lambda: discovery.rounds == 1, lambda: discovery.turn(()))
