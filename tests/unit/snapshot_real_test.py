"""Snapshots of real PyTorch (2.11, H200; tests/gpu/programs/torch_snapshots.py), beside what
``torch.cuda.memory_stats()`` said at the same moment. Paths in them are shortened to /app."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpumemprof.plan import config
from gpumemprof.plan.check import WEIGHTS, check
from gpumemprof.plan.models import Model
from gpumemprof.profile import files, pprof
from gpumemprof.snapshot import analyse, convert, oom, read, replay
from gpumemprof.snapshot.allocator import SMALL, rounded
from gpumemprof.snapshot.model import Action, Snapshot, State
from tests.unit.plan_examples import plan

DATA = Path(__file__).parent / "data" / "snapshots"
SCENES = (
    "training", "generation", "streams", "oom_full", "oom_limit", "expandable", "truncated",
    "without_history",
)  # fmt: skip
TRACED = tuple(scene for scene in SCENES if scene not in ("truncated", "without_history"))
MIB = 1 << 20


def load(scene: str) -> tuple[Snapshot, dict[str, Any]]:
    figures: dict[str, Any] = json.loads((DATA / f"{scene}.json").read_text())
    return read.load(DATA / f"{scene}.pickle.gz"), figures


STATS = {
    "reserved_bytes": "reserved",
    "allocated_bytes": "allocated",
    "active_bytes": "active",
    "requested_bytes": "requested",
    "inactive_split_bytes": "inactive_split",
    "segment": "segments",
    "allocation": "allocations",
    "active": "active_blocks",
    "inactive_split": "inactive_split_blocks",
}


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("pool", ["all", "small_pool", "large_pool"])
def test_totals_are_those_of_memory_stats(scene: str, pool: str) -> None:
    snapshot, figures = load(scene)
    for device, stats in enumerate(figures["stats"]):
        total = analyse.totals(
            segment
            for segment in snapshot.segments
            if segment.device == device and pool in ("all", _pool(segment.small))
        )
        ours = {name: getattr(total, field) for name, field in STATS.items()}
        assert ours == {name: stats[f"{name}.{pool}.current"] for name in STATS}


def _pool(small: bool) -> str:
    return "small_pool" if small else "large_pool"


@pytest.mark.parametrize("scene", SCENES)
def test_nothing_in_a_real_snapshot_contradicts_itself(scene: str) -> None:
    snapshot, figures = load(scene)
    assert snapshot.warnings == ()
    assert [len(trace) for trace in snapshot.traces] == figures["trace_entries"]
    events = [event for trace in snapshot.traces for event in trace]
    assert all(event.action is not Action.OTHER for event in events)
    assert all(event.stack == () or event.stack[-1].name == "<module>" for event in events)


@pytest.mark.parametrize("scene", TRACED)
def test_replaying_the_trace_finds_pytorchs_own_peaks(scene: str) -> None:
    snapshot, figures = load(scene)
    for device, stats in enumerate(figures["stats"]):
        peak = replay.peak(snapshot, device)
        assert peak is not None
        assert peak.requested == stats["requested_bytes.all.peak"]
        assert peak.reserved == stats["reserved_bytes.all.peak"]
        assert (peak.before, peak.reserved_before) == (0, 0)
        # Rests that were not split off are known of blocks that live to the end only.
        rests = stats["allocated_bytes.all.peak"] - sum(peak.live.values())
        assert 0 <= rests <= 0.01 * peak.requested


@pytest.mark.parametrize("scene", TRACED)
def test_undoing_all_of_the_trace_leaves_nothing(scene: str) -> None:
    snapshot, _ = load(scene)
    start = replay.backwards(snapshot, 0, lambda moment, event: None)
    assert (start.requested, start.active, start.reserved, start.ranges()) == (0, {}, 0, [])


def test_a_trace_that_was_overwritten_says_so() -> None:
    snapshot, figures = load("truncated")
    peak = replay.peak(snapshot, 0)
    assert peak is not None
    assert peak.requested < figures["stats"][0]["requested_bytes.all.peak"]
    assert peak.reserved_before > 0


@pytest.mark.parametrize("scene", SCENES)
def test_all_failures_are_found_with_what_was_asked(scene: str) -> None:
    snapshot, figures = load(scene)
    failures = oom.out_of_memory(snapshot, 0)
    assert len(failures) == figures["stats"][0]["num_ooms"] == oom.count(snapshot)
    if failures:
        assert failures[-1].requested == figures["asked"]


def test_a_full_gpu_is_told_from_a_limit_of_the_program() -> None:
    full, figures = load("oom_full")
    last = oom.out_of_memory(full, 0)[-1]
    assert last.free == figures["kept"] * 12 * MIB
    assert (last.largest, last.pieces) == (12 * MIB, figures["kept"])
    assert last.device_free == figures["free_total"][0]
    said = " ".join(oom.reasons(last, expandable=False))
    assert "the driver had 11,665,408 left" in said
    assert "expandable_segments:True" in said
    limited, _ = load("oom_limit")
    said = " ".join(oom.reasons(oom.out_of_memory(limited, 0)[-1], expandable=False))
    assert "set_per_process_memory_fraction" in said


def test_streams_and_private_pools_are_told_apart() -> None:
    snapshot, _ = load("streams")
    pools = analyse.by_pool(snapshot)
    assert sum(pool.pool_id != (0, 0) for pool in pools) >= 2  # a CUDA graph's and the program's
    assert len({pool.stream for pool in pools}) >= 2
    waiting = [b for s in snapshot.segments for b in s.blocks if b.state is State.AWAITING_FREE]
    assert [block.size for block in waiting] == [6 * MIB]


def test_expandable_segments_are_known() -> None:
    snapshot, figures = load("expandable")
    total = analyse.totals(snapshot.segments)
    assert total.expandable == total.reserved == figures["stats"][0]["reserved_bytes.all.current"]
    assert {Action.SEGMENT_MAP, Action.SEGMENT_UNMAP} <= {e.action for e in snapshot.traces[0]}


@pytest.mark.parametrize("scene", SCENES)
def test_the_profile_has_every_byte(scene: str) -> None:
    snapshot, figures = load(scene)
    made = convert.profile(snapshot)
    stats = figures["stats"][0]
    assert made.total.inuse_space == stats["reserved_bytes.all.current"]
    assert made.total.inuse_objects == stats["active.all.current"]
    if scene in TRACED:
        assert made.total.alloc_objects == stats["active.all.allocated"]
        assert made.total.alloc_space == stats["requested_bytes.all.allocated"]
    again = pprof.decode(pprof.encode(made))
    assert (again.total, len(again.failures)) == (made.total, stats["num_ooms"])


@pytest.mark.parametrize("scene", SCENES)
def test_blocks_are_as_large_as_the_allocators_rules_say(scene: str) -> None:
    snapshot, _ = load(scene)
    for segment in snapshot.segments:
        for block in segment.blocks:
            if block.state.active:
                rest = block.size - rounded(block.requested)
                assert 0 <= rest <= (0 if segment.small else SMALL)


def test_the_weights_of_a_recorded_model_are_those_of_the_plan_to_the_byte() -> None:
    """transformers' Llama of 0.4 billion parameters, recorded on an H200."""
    architecture = config.load(DATA / "serve_config.json")
    figures = json.loads((DATA / "serve.json").read_text())
    made = plan(Model("serve", "", architecture), sequences=8, sequence_length=4095)
    assert made.parameters == figures["parameters"]
    rows = {row.name: row for row in check(made, files.load(DATA / "serve.pb.gz"), "it").rows}
    assert rows[WEIGHTS].measured == rows[WEIGHTS].planned == 811_597_824
