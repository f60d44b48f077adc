"""Which processes are recorded: children, programs run by exec, late libraries, no one else."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from gpumemprof.process.libraries import LibraryProber, installed_libraries
from gpumemprof.recorder import Recorder
from tests.integration.recording import (
    FAKES,
    environment,
    options,
    record,
    samples,
    total,
    until,
)

MIB = 1 << 20
LEAK = ("--pairs", "50", "--leak", "3")


def start(*arguments: str, program: str = "driver_loop") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(FAKES / program), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "LD_LIBRARY_PATH": str(FAKES)},
    )


def in_use(recorder: Recorder, pid: int) -> int:
    """GPU bytes of one process: the machine may have others that use the stand-ins."""
    found = recorder.ledger.snapshot().processes
    return sum(process.gpu.in_use for process in found if process.process.pid == pid)


def test_children_are_followed_and_keep_their_own_memory(tmp_path: Path) -> None:
    found = record(tmp_path, *LEAK, "--fork", "2")
    by_pid = {
        pid: total(samples(found.profile, pid=pid), "alloc_objects")
        for pid in {dict(s.labels)["pid"] for s in found.profile.samples}
    }
    assert len(by_pid) == 3
    assert set(by_pid.values()) == {53}


def test_a_program_run_by_exec_is_recorded_and_the_one_before_it_ended() -> None:
    with environment(), Recorder(options(record_all=True)) as recorder:
        process = start(*LEAK, "--exec", "--hold", "0.3")
        until(lambda: process.poll() is not None, recorder.step)
        process.communicate()
        until(lambda: in_use(recorder, process.pid) == 0, recorder.step)
        profile = recorder.profile()
    runs = [p for p in profile.processes if p.pid == process.pid and p.peak]
    assert [(p.end_reason, p.peak, p.in_use) for p in runs] == [
        ("exec", 6 * MIB, 0),
        ("exit", 6 * MIB, 0),
    ]
    assert total(samples(profile, pid=str(process.pid)), "alloc_objects") == 2 * 53


def test_a_runtime_loaded_late_is_probed_within_a_second(tmp_path: Path) -> None:
    # A copy that no one has seen: the recorder cannot know it before the program loads it.
    copy = tmp_path / "libcudart-0a1b2c3d.so.12"
    copy.write_bytes((FAKES / "libcudart.so.12").read_bytes())
    found = record(
        tmp_path, "--pairs", "400", "--rate", "400", "--batch", "1", "--leak", "3",
        "--late", "0.3", "--runtime", str(copy), program="driver_loop_dlopen",
    )  # fmt: skip
    # Until then the driver's calls are seen: no byte is missing.
    assert total(samples(found.profile), "alloc_space") == found.device["device"]["total_bytes"]
    through = [s for s in samples(found.profile) if s.stack[0].module.endswith(copy.name)]
    assert total(through, "inuse_space") == 6 * MIB


def test_two_processes_with_equal_addresses_stay_apart() -> None:
    with environment(), Recorder(options(record_all=True)) as recorder:
        running = [start(*LEAK, "--hold", "30") for _ in range(2)]
        try:
            until(lambda: all(in_use(recorder, p.pid) == 6 * MIB for p in running), recorder.step)
            profile = recorder.profile()
        finally:
            for process in running:
                process.kill()
                process.communicate()
    for process in running:
        own = samples(profile, pid=str(process.pid))
        assert total(own, "inuse_space") == 6 * MIB
        assert total(own, "alloc_objects") == 53


def test_a_process_that_was_not_asked_for_is_not_recorded() -> None:
    with Recorder(options()) as recorder:
        process = start(*LEAK)
        until(lambda: process.poll() is not None, recorder.step)
        process.communicate()
        recorder.step()
        assert not recorder.profile().samples


def test_a_running_process_is_recorded_from_attaching_on() -> None:
    process = start("--pairs", "100000", "--rate", "2000", "--batch", "10")
    try:
        with Recorder(options()) as recorder:
            recorder.add(process.pid)
            until(lambda: recorder.totals().alloc_count > 100, recorder.step)
            profile = recorder.profile()
    finally:
        process.kill()
        process.communicate()
    assert all(
        sample.stack[0].name == "cudaMalloc" and sample.stack[-1].name.startswith("clone")
        for sample in samples(profile)
    )


def test_memory_ends_with_its_process_and_the_peak_is_kept() -> None:
    with environment(), Recorder(options(record_all=True)) as recorder:
        process = start(*LEAK)
        until(lambda: process.poll() is not None, recorder.step)
        process.communicate()
        until(lambda: in_use(recorder, process.pid) == 0, recorder.step)
        profile = recorder.profile()
    own = samples(profile, pid=str(process.pid))
    assert total(own, "inuse_space") == 0
    assert total(own, "peak_space") == 6 * MIB


def test_one_file_probed_twice_is_counted_once() -> None:
    with environment(), Recorder(options(record_all=True)) as recorder:
        # A prober that does not know of the first one: as through another overlay mount whose
        # identity could not be told.
        again = LibraryProber(recorder.probes.attach, first_file=1000)
        for library in installed_libraries(str(FAKES)):
            again.probe_path(library)
        process = start(*LEAK, "--hold", "30")
        try:
            until(lambda: in_use(recorder, process.pid) >= 6 * MIB, recorder.step)
            profile = recorder.profile()
        finally:
            process.kill()
            process.communicate()
        again.close()
    own = samples(profile, pid=str(process.pid))
    assert total(own, "alloc_objects") == 53
    assert total(own, "inuse_space") == 6 * MIB
    assert profile.completeness["double"] > 0
