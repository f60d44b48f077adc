"""A slow leak of a real program is named; the loop of before and after works as README tells."""

from __future__ import annotations

import json

import pytest

from gpumemprof.profile.growth import between, growth, growth_within
from gpumemprof.profile.merge import gpu_only
from tests.integration.cuda_scripts import running
from tests.integration.recording import command_line

pytestmark = pytest.mark.root
MIB = 1 << 20

LEAKING = """
    def load_weights():
        return new("cudaMalloc", 64 * MIB)

    def remember(kept):
        kept.append(new("cudaMalloc", 2 * MIB))

    def work():
        call("cudaFree", new("cudaMalloc", 9 * MIB))

    def fill(cache):
        if len(cache) < 10:
            cache.append(new("cudaMalloc", 4 * MIB))

    weights, kept, cache = load_weights(), [], []
    for step in range(150):
        remember(kept)
        work()
        fill(cache)
        time.sleep(0.01)
        if step in (75, 149):
            reach(f"step{step}")
"""


def test_the_leak_is_named_and_nothing_else(tmp_path) -> None:
    with running(tmp_path, LEAKING) as script:
        script.at("step75")
        first = script.recorder.profile()
        script.go_on("step75")
        script.at("step149")
        second = script.recorder.profile()
        script.go_on("step149")
        script.at("end")
        script.go_on("end")
        script.finish()
        after = script.recorder.profile()

    for profile in (second, after):
        (found,) = growth_within(profile)
        assert "remember" in [frame.name for frame in found.stack]
        assert 100 * MIB <= found.trend.grown <= 300 * MIB
        assert found.trend.rising == 1
        assert found.trend.bytes_per_minute > 0

    change = between(gpu_only(first), gpu_only(second))
    assert change is not None
    assert change.grown == 74 * 2 * MIB
    assert growth([first, second]) == []  # two profiles are a difference, and no steady rise


def test_before_and_after_as_readme_tells(tmp_path) -> None:
    before, after = str(tmp_path / "demo.pb.gz"), str(tmp_path / "demo-fixed.pb.gz")
    recorded = command_line("demo", "-o", before)
    assert recorded.returncode == 0, recorded.stderr
    assert "Growing: 2 stacks whose memory in use rises steadily" in recorded.stdout
    assert command_line("demo", "--fixed", "-o", after).returncode == 0

    compared = command_line("diff", before, after)
    assert compared.returncode == 0, compared.stderr
    (row,) = [line for line in compared.stdout.splitlines() if "PrefixCache.insert" in line]
    assert row.split()[:2] == ["-60.0", "MiB"]
    assert "1 shrank; 5 functions did not change" in compared.stdout

    back = command_line("diff", after, before, "--fail-over", "1%", "--format", "json")
    assert back.returncode == 1
    assert "GPU memory grew by 60.0 MiB" in back.stderr
    first, *_ = json.loads(back.stdout)["gpu"]["functions"]
    assert (first["name"], first["change"]) == ("PrefixCache.insert", 60 * MIB)
    assert "no difference" in command_line("diff", before, before).stdout
