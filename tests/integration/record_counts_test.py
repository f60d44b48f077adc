"""Counts of a recording are those of the program, to the byte, however the probes hang on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpumemprof.probe.attach import AttachMode
from gpumemprof.probe.kernel_side import LoaderChoice
from tests.integration.loaders import LOADERS
from tests.integration.recording import record, samples, total

MIB = 1 << 20


@pytest.mark.parametrize("mode", list(AttachMode), ids=lambda mode: mode.value)
@LOADERS
def test_each_way_to_attach_counts_what_the_program_counts(
    tmp_path: Path, mode: AttachMode, loader: LoaderChoice
) -> None:
    found = record(
        tmp_path,
        "--pairs",
        "300",
        "--leak",
        "5",
        "--threads",
        "3",
        "--pattern",
        "window",
        mode=mode,
        loader=loader,
    )  # fmt: skip
    device = samples(found.profile, kinds={"device"})
    truth = found.device["device"]
    assert total(device, "inuse_space") == truth["live_bytes"] == 15 * 2 * MIB
    assert total(device, "inuse_objects") == truth["live_count"]
    assert total(device, "alloc_space") == truth["total_bytes"]
    assert total(device, "alloc_objects") == truth["total_count"]
    assert not any(
        count for name, count in found.profile.completeness.items() if name.endswith("_lost")
    )


def test_the_peak_of_a_thread_is_exact(tmp_path: Path) -> None:
    # Of several threads it may differ by what was in flight: a free counts when it is entered,
    # an allocation when it returns, the driver does both in between.
    found = record(tmp_path, "--pairs", "300", "--pattern", "window", "--leak", "2")
    peak = total(samples(found.profile), "peak_space")
    assert peak == found.truth["process_gpu"]["peak_bytes"] == 16 * 2 * MIB


def test_a_call_that_calls_another_hooked_call_is_counted_once(tmp_path: Path) -> None:
    found = record(tmp_path, "--pairs", "10", "--leak", "1")
    assert found.truth["calls"]["cuMemAlloc_v2"]["entered"] == 11
    assert {dict(sample.labels)["call"] for sample in found.profile.samples} == {"cudaMalloc"}


@LOADERS
def test_every_kind_of_driver_memory_is_counted_as_its_kind(
    tmp_path: Path, loader: LoaderChoice
) -> None:
    found = record(tmp_path, program="driver_only", loader=loader)
    for kind in ("device", "managed", "array", "pinned_host"):
        of_kind = samples(found.profile, kinds={kind})
        truth = found.device[kind]
        assert total(of_kind, "inuse_space") == truth["live_bytes"] > 0, kind
        assert total(of_kind, "alloc_space") == truth["total_bytes"], kind
    process = found.profile.processes[-1]
    assert process.in_use == found.truth["process_gpu"]["live_bytes"]
    assert process.pinned_in_use == found.device["pinned_host"]["live_bytes"]


@pytest.mark.parametrize(
    ("call", "kind"),
    [("cudaMallocAsync", "device"), ("cudaMallocManaged", "managed"),
     ("cudaHostAlloc", "pinned_host")],
)  # fmt: skip
def test_runtime_calls_of_other_kinds(tmp_path: Path, call: str, kind: str) -> None:
    found = record(tmp_path, "--call", call, "--pairs", "20", "--leak", "3")
    of_call = samples(found.profile, kinds={kind}, call=call)
    assert total(of_call, "inuse_space") == found.device[kind]["live_bytes"] == 6 * MIB
    assert total(of_call, "alloc_space") == found.device[kind]["total_bytes"]


def test_the_same_work_gives_the_same_totals(tmp_path: Path) -> None:
    totals = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        found = record(tmp_path / name, "--pairs", "500", "--leak", "7", "--pattern", "stack")
        totals.append(found.profile.total)
    assert totals[0] == totals[1]
    assert totals[0].inuse_space == 7 * 2 * MIB


def test_failed_calls_are_failures_and_not_memory(tmp_path: Path) -> None:
    found = record(
        tmp_path, "--pairs", "10", "--leak", "2",
        settings={"GPUMEMPROF_FAKE_FAIL": "cudaMalloc:4:2"},
    )  # fmt: skip
    device = samples(found.profile)
    assert total(device, "alloc_objects") == 11
    assert total(device, "inuse_space") == found.device["device"]["live_bytes"]
    (failure,) = found.profile.failures
    assert (failure.error, failure.requested) == (2, 2 * MIB)
    assert [frame.name for frame in failure.stack[:2]] == ["cudaMalloc", "allocate_block"]


def test_memory_whose_free_failed_is_still_in_use(tmp_path: Path) -> None:
    found = record(tmp_path, "--pairs", "10", settings={"GPUMEMPROF_FAKE_FAIL": "cudaFree:3:1"})
    assert total(samples(found.profile), "inuse_objects") == 1
    assert total(samples(found.profile), "inuse_space") == found.device["device"]["live_bytes"]


def test_a_call_left_by_longjmp_does_not_stop_the_recording_of_its_thread(tmp_path: Path) -> None:
    found = record(tmp_path, "--longjmp", "3", "--pairs", "10", "--leak", "2")
    assert found.profile.completeness["abandoned"] >= 1
    leaked = [s for s in samples(found.profile) if any(f.name == "leak_blocks" for f in s.stack)]
    assert total(leaked, "inuse_objects") == 2


def test_two_devices_are_told_apart(tmp_path: Path) -> None:
    found = record(
        tmp_path, "--device", "1", "--leak", "3", settings={"GPUMEMPROF_FAKE_DEVICES": "2"}
    )
    assert total(samples(found.profile, device="1"), "inuse_space") == 6 * MIB
    assert not samples(found.profile, device="0")
