"""Processes that come and go while the recorder is behind: forks, exec, pids that come again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpumemprof.recorder import Recorder
from tests.integration.cuda_scripts import running
from tests.integration.recording import FAKES, PATIENCE, options, samples, total, until

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
MIB = 1 << 20


def wait_for(path: Path) -> None:
    """Without recording: what the kernel tells stays in its rings."""
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_pid_that_comes_again_while_the_end_of_the_first_is_not_yet_read(tmp_path: Path) -> None:
    if not LAST_PID.exists():
        pytest.skip("this kernel does not let one choose a pid")
    body = """
    first = os.fork()
    if not first:
        os._exit(0)
    os.waitpid(first, 0)
    for attempt in range(200):
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(first - 1))
        second = os.fork()
        if not second:
            if os.getpid() == first:
                reach("second")
                call("cuInit", 0)
                call("cuCtxSetCurrent", new("cuDevicePrimaryCtxRetain", 0))
                new("cuMemAlloc_v2", MIB)
                reach("allocated")
            os._exit(0)
        if second == first:
            break
        os.waitpid(second, 0)
    else:
        sys.exit("the pid was taken by others")
    os.waitpid(second, 0)
    """
    with running(tmp_path, body) as script:
        wait_for(tmp_path / "second")
        script.recorder.drain()
        script.go_on("second")
        script.at("allocated")
        profile = script.recorder.profile()
        script.go_on("allocated")
        script.at("end")
        script.go_on("end")
        script.finish()
    assert total(samples(profile), "inuse_space") == MIB


def test_a_program_run_by_exec_keeps_its_stacks_when_the_recorder_is_behind(
    tmp_path: Path,
) -> None:
    body = """
    if len(sys.argv) == 2:
        os.execv(sys.executable, [sys.executable, *sys.argv, "again"])
    call("cuInit", 0)
    call("cuCtxSetCurrent", new("cuDevicePrimaryCtxRetain", 0))
    new("cuMemAlloc_v2", MIB)
    """
    with running(tmp_path, body) as script:
        wait_for(tmp_path / "end")
        script.recorder.drain()
        profile = script.recorder.profile()
        script.go_on("end")
        script.finish()
    (sample,) = samples(profile)
    assert sample.stack[0].name == "cuMemAlloc_v2"


def test_a_program_that_only_begins_to_use_cuda_is_not_recorded_when_another_was_asked_for() -> (
    None
):
    environment = {**os.environ, "LD_LIBRARY_PATH": str(FAKES)}
    program = [str(FAKES / "driver_loop"), "--pairs", "5", "--hold", "90"]
    with Recorder(options()) as recorder:
        asked_for = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        recorder.add(asked_for.pid)
        other = subprocess.Popen(program, env=environment, stdout=subprocess.PIPE)
        assert other.stdout
        other.stdout.readline()
        try:
            asked_for.communicate(b"\n")
            # the recording of a pid ends when nothing runs that was asked for
            until(lambda: not recorder.processes.running, recorder.step)
        finally:
            other.kill()
            other.communicate()


def test_recording_everything_records_no_program_that_does_not_use_cuda() -> None:
    # Its linker is probed, because a program that uses CUDA maps it too.
    environment = {**os.environ, "LD_LIBRARY_PATH": str(FAKES)}
    program = [str(FAKES / "driver_loop"), "--pairs", "5", "--hold", "90"]
    with Recorder(options(record_all=True)) as recorder:
        uses_cuda = subprocess.Popen(program, env=environment, stdout=subprocess.PIPE)
        try:
            until(
                lambda: uses_cuda.pid in {p.id.pid for p in recorder.processes.running},
                recorder.step,
            )
            plain = subprocess.Popen(["/bin/true"])
            plain.wait()
            recorder.step()
            assert plain.pid not in {p.id.pid for p in recorder.processes.all}
        finally:
            uses_cuda.kill()
            uses_cuda.communicate()


def test_a_child_found_running_is_the_same_as_the_one_whose_fork_is_told(tmp_path: Path) -> None:
    body = """
    child = os.fork()
    if not child:
        reach("forked")
        call("cuInit", 0)
        call("cuCtxSetCurrent", new("cuDevicePrimaryCtxRetain", 0))
        new("cuMemAlloc_v2", MIB)
        reach("allocated")
        os._exit(0)
    os.waitpid(child, 0)
    """
    with running(tmp_path, body) as script:
        wait_for(tmp_path / "forked")
        script.recorder.add_children(script.pid)
        before = {p.id: p for p in script.recorder.processes.running}
        script.go_on("forked")
        script.at("allocated")
        after = {p.id: p for p in script.recorder.processes.running}
        assert {i: before[i] for i in before.keys() & after.keys() if i.pid != script.pid} == {
            i: after[i] for i in after if i.pid != script.pid
        }
        profile = script.recorder.profile()
        script.go_on("allocated")
        script.at("end")
        script.go_on("end")
        script.finish()
    assert total(samples(profile), "inuse_space") == MIB
