"""Memory over time of real programs on the stand-in libraries."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gpumemprof.ledger.series import SeriesLimits
from gpumemprof.process.launch import Command
from gpumemprof.profile.merge import label
from gpumemprof.profile.model import Profile, Series
from gpumemprof.profile.pprof import decode
from gpumemprof.recorder import Recorder
from tests.integration.cuda_scripts import running
from tests.integration.recording import FAKES, command_line, environment, options, samples, until

pytestmark = pytest.mark.root
MIB = 1 << 20


def series_of(profile: Profile, kind: str = "device") -> Series:
    (found,) = [s for s in profile.series if label(s.labels, "kind") == kind]
    return found


def test_every_allocation_and_free_is_a_point(tmp_path) -> None:
    body = """
        first = new("cudaMalloc", 3 * MIB)
        second = new("cudaMalloc", 5 * MIB)
        staging = new("cudaMallocHost", MIB)
        call("cudaFree", first)
    """
    with running(tmp_path, body) as script:
        script.at("end")
        profile = script.recorder.profile()
        script.go_on("end")
        script.finish()
        after = script.recorder.profile()
    device, pinned = series_of(profile), series_of(profile, "pinned_host")
    assert [size for _, size in device.points] == [3 * MIB, 8 * MIB, 5 * MIB]
    assert [size for _, size in pinned.points] == [MIB]
    (sample, *_) = samples(profile)
    assert device.labels == tuple(pair for pair in sample.labels if pair[0] != "call")
    ends = profile.time_ns + profile.duration_ns
    assert all(profile.time_ns < time_ns <= ends for time_ns, _ in device.points)
    assert series_of(after).points[-1][1] == 0


def test_the_peak_is_that_of_the_process(tmp_path) -> None:
    output = tmp_path / "profile.pb.gz"
    done = command_line(
        "record", "-o", str(output), "--", str(FAKES / "driver_loop"), "--pairs", "3000"
    )
    assert done.returncode == 0, done.stderr
    profile = decode(output.read_bytes())
    (process,) = profile.processes
    series = series_of(profile)
    assert series.peak[1] == process.peak
    assert series.points[-1][1] == 0
    assert 100 < len(series.points) <= SeriesLimits().points


def test_where_it_is_switched_off_nothing_is_followed(tmp_path) -> None:
    off = replace(options(), series=SeriesLimits(series=0))
    with environment(), Recorder(off) as recorder:
        command = Command([str(FAKES / "driver_loop"), "--pairs", "10"])
        recorder.add(command.pid)
        command.go()
        until(lambda: command.poll() is not None, recorder.step)
        command.close()
        recorder.step()
        profile = recorder.profile()
    assert profile.samples
    assert profile.series == ()


def test_a_recording_becomes_a_trace_for_perfetto(tmp_path) -> None:
    output = tmp_path / "trace.json"
    done = command_line("demo", "-o", str(tmp_path / "demo.pb.gz"))
    assert done.returncode == 0, done.stderr
    assert "Memory over time, 0 to " in done.stdout
    shown = command_line(
        "report", str(tmp_path / "demo.pb.gz"), "--format", "perfetto", "-o", str(output)
    )
    assert shown.returncode == 0, shown.stderr
    events = json.loads(output.read_text())["traceEvents"]
    counters = [event for event in events if event["ph"] == "C"]
    profile = decode((tmp_path / "demo.pb.gz").read_bytes())
    assert max(event["args"]["bytes"] for event in counters) == profile.processes[0].peak
    assert [event["name"] for event in events if event["ph"] == "i"] == ["cudaMalloc failed"]
