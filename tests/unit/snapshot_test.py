"""What a snapshot says: totals, fragmentation, failures, peaks, and the profile made of it."""

from __future__ import annotations

import gzip
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gpumemprof.cli.snapshot import snapshot as command
from gpumemprof.errors import UsageError
from gpumemprof.profile import pprof
from gpumemprof.snapshot import analyse, convert, oom, read, replay
from gpumemprof.snapshot.model import Snapshot
from gpumemprof.snapshot.summary import summarise
from tests.unit.snapshot_examples import (
    BASE,
    MIB,
    block,
    event,
    frames,
    pickled,
    segment,
    snapshot,
)


def test_reserved_includes_allocated_and_free_blocks() -> None:
    found = analyse.totals(
        snapshot([segment(block(6 * MIB), block(4 * MIB, "inactive"), block(10 * MIB))]).segments
    )
    assert (found.reserved, found.allocated, found.active) == (20 * MIB, 16 * MIB, 16 * MIB)
    assert (found.inactive_split, found.free, found.largest_free) == (4 * MIB, 4 * MIB, 4 * MIB)


def test_a_block_another_stream_still_uses_is_active_but_not_allocated() -> None:
    for name in ("active_awaiting_free", "active_pending_free"):
        found = analyse.totals(snapshot([segment(block(2 * MIB), block(MIB, name))]).segments)
        assert (found.allocated, found.active) == (2 * MIB, 3 * MIB)


def test_a_free_segment_is_free_but_not_split() -> None:
    found = analyse.totals(snapshot([segment(block(20 * MIB, "inactive"))]).segments)
    assert (found.free, found.inactive_split) == (20 * MIB, 0)


def test_free_pages_of_expandable_segments_are_not_split() -> None:
    one = segment(block(2 * MIB), block(18 * MIB, "inactive"), is_expandable=True)
    found = analyse.totals(snapshot([one]).segments)
    assert (found.inactive_split, found.expandable) == (0, 20 * MIB)
    assert (found.segments, found.ranges) == (0, 1)


def test_pools_streams_and_devices_are_told_apart() -> None:
    segments = [
        segment(block(2 * MIB)),
        segment(block(2 * MIB), address=BASE + (1 << 30), stream=9),
        segment(block(2 * MIB), address=BASE + (2 << 30), segment_pool_id=(0, 1)),
        segment(block(2 * MIB), address=BASE + (3 << 30), segment_type="small"),
        segment(block(2 * MIB), address=BASE + (4 << 30), device=1),
    ]
    pools = analyse.by_pool(snapshot(segments))
    assert len(pools) == 5
    assert {pool.name for pool in pools} == {"large", "small", "large, private (0, 1)"}
    assert [t.reserved for t in analyse.by_device(snapshot(segments)).values()] == [
        8 * MIB,
        2 * MIB,
    ]


def test_free_memory_in_pieces_is_of_no_use_for_a_large_request() -> None:
    segments = [
        segment(block(8 * MIB), block(12 * MIB, "inactive"), address=BASE + (n << 30))
        for n in range(3)
    ]
    large = analyse.for_request(snapshot(segments), 30 * MIB)
    assert sum(one.free for one in large) == 36 * MIB
    assert sum(one.usable for one in large) == 0
    middle = analyse.for_request(snapshot(segments), 12 * MIB)
    assert sum(one.usable for one in middle) == 36 * MIB
    other_stream = analyse.for_request(snapshot(segments), 12 * MIB, stream=5)
    assert sum(one.usable for one in other_stream) == 0
    small = analyse.for_request(snapshot(segments), 1000)
    assert sum(one.usable for one in small) == 0  # small blocks come from the small pool


def fragmented(device_free: int) -> Snapshot:
    """Two segments of 20 MiB, each with 12 MiB free; then 30 MiB were asked for, in vain; then
    one more block was freed."""
    kept, other = BASE, BASE + (1 << 30)
    trace = [
        event("segment_alloc", kept, 20 * MIB),
        event("alloc", kept, 8 * MIB, frames=frames("keep", "main")),
        event("segment_alloc", other, 20 * MIB),
        event("alloc", other, 8 * MIB, frames=frames("other", "main")),
        event("oom", 0, 30 * MIB, device_free=device_free, frames=frames("ask", "main")),
        event("free_requested", other, 8 * MIB),
        event("free_completed", other, 8 * MIB),
    ]
    segments = [
        segment(block(8 * MIB, frames=frames("keep", "main")), block(12 * MIB, "inactive")),
        segment(block(20 * MIB, "inactive"), address=other),
    ]
    return snapshot(segments, trace)


def test_a_failure_is_explained_by_the_state_of_its_moment() -> None:
    (failure,) = oom.out_of_memory(fragmented(device_free=5 * MIB), 0)
    assert failure.requested == 30 * MIB
    assert (failure.reserved, failure.active, failure.free) == (40 * MIB, 16 * MIB, 24 * MIB)
    assert (failure.largest, failure.pieces) == (12 * MIB, 2)
    said = " / ".join(oom.reasons(failure, expandable=False))
    assert "no free block that it could use was large enough" in said
    assert f"needs {30 * MIB:,} bytes, and the driver had {5 * MIB:,} left" in said
    assert "expandable_segments" not in said  # not even all that was free would have been enough


def test_a_limit_of_the_programs_own_is_recognised() -> None:
    (failure,) = oom.out_of_memory(fragmented(device_free=100 << 30), 0)
    assert any("set_per_process_memory_fraction" in one for one in oom.reasons(
        failure, expandable=False))  # fmt: skip


def test_the_peak_is_found_although_the_snapshot_shows_less() -> None:
    peak = replay.peak(fragmented(5 * MIB), 0)
    assert peak is not None
    assert (peak.requested, peak.reserved, peak.before) == (16 * MIB, 40 * MIB, 0)
    assert {stack[0].name: size for stack, size in peak.live.items()} == {
        "keep": 8 * MIB,
        "other": 8 * MIB,
    }


def test_what_was_there_before_the_trace_begins_is_told() -> None:
    found = replay.peak(
        snapshot([segment(block(6 * MIB), block(2 * MIB))], [event("alloc", BASE, 6 * MIB)]), 0
    )
    assert found is not None
    assert (found.requested, found.before) == (8 * MIB, 2 * MIB)


def test_expandable_segments_are_replayed_page_by_page() -> None:
    """60 MiB mapped in one go, the middle unmapped, a part mapped again."""
    page = 20 * MIB
    trace = [
        event("segment_map", BASE, 3 * page),
        event("segment_unmap", BASE + page, page),
        event("segment_map", BASE + page, 2 * MIB),
    ]
    segments = [
        segment(block(22 * MIB, "inactive"), is_expandable=True),
        segment(block(page, "inactive"), address=BASE + 2 * page, is_expandable=True),
    ]
    seen: list[tuple[int, list[int]]] = []
    start = replay.backwards(
        snapshot(segments, trace),
        0,
        lambda moment, _: seen.append((moment.reserved, [r.size for r in moment.ranges()])),
    )
    assert seen == [
        (42 * MIB, [22 * MIB, page]),
        (40 * MIB, [page, page]),
        (60 * MIB, [3 * page]),
    ]
    assert (start.reserved, start.ranges()) == (0, [])


def test_the_profile_adds_up_to_what_is_reserved() -> None:
    made = convert.profile(fragmented(5 * MIB))
    assert made.total.inuse_space == 40 * MIB
    assert made.total.peak_space == 40 * MIB
    assert (made.total.alloc_objects, made.total.alloc_space) == (2, 16 * MIB)
    (failure,) = made.failures
    assert (failure.requested, failure.free, failure.in_use) == (30 * MIB, 5 * MIB, 40 * MIB)
    live = {made.samples[index].stack[0].name: size for index, size in failure.live}
    assert live == {"keep": 8 * MIB, "other": 8 * MIB}
    assert sum(live.values()) + failure.live_omitted == failure.in_use
    assert pprof.decode(pprof.encode(made)).total == made.total


def test_contradictions_of_a_file_are_told() -> None:
    one = segment(block(2 * MIB), block(2 * MIB))
    one["allocated_size"] = 1
    one["blocks"][1]["address"] += 512
    found = snapshot([one])
    assert len(found.warnings) == 2
    assert "allocated_size is 1, its blocks add up to 4,194,304" in " ".join(found.warnings)


REFUSED: dict[str, tuple[Any, str]] = {
    "a number": (5, "no segments"),
    "no segments": ({}, "no segments"),
    "segments of numbers": ({"segments": [1]}, "a segment is no dictionary"),
    "no blocks": ({"segments": [{"address": 1, "total_size": 1}]}, "no blocks"),
    "no size": ({"segments": [{"address": 1, "blocks": []}]}, "total_size is missing"),
    "a text as size": (
        {"segments": [{"address": 1, "total_size": "9", "blocks": []}]}, "no whole number",
    ),
    "a negative size": (
        {"segments": [{"address": 1, "total_size": -9, "blocks": []}]}, "is negative",
    ),
    "a size of exabytes": (
        {"segments": [{"address": 1, "total_size": 1 << 60, "blocks": []}]}, "too large",
    ),
    "an unknown state": (
        {"segments": [{"address": 1, "total_size": 1, "blocks": [{"size": 1, "state": "x"}]}]},
        "state that is not known",
    ),
    "a pool of three": (
        {"segments": [{"address": 1, "total_size": 0, "blocks": [], "segment_pool_id": (1,) * 3}]},
        "no pair",
    ),
    "traces of numbers": ({"segments": [], "device_traces": [5]}, "no list"),
    "an event of text": ({"segments": [], "device_traces": [["x"]]}, "a trace entry is no"),
    "a frame of nothing": (
        {"segments": [], "device_traces": [[{"action": "alloc", "frames": [{}]}]]}, "a frame has",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_pickle_that_is_no_snapshot_is_refused(name: str) -> None:
    value, why = REFUSED[name]
    with pytest.raises(UsageError, match=why):
        read.decode(pickle.dumps(value))


KEYS = st.sampled_from(
    ["segments", "device_traces", "blocks", "frames", "address", "total_size", "size", "state",
     "segment_pool_id", "action", "addr", "name", "filename", "line", "allocator_settings"]
)  # fmt: skip
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats()
    | st.sampled_from(["inactive", "active_allocated", "alloc", "oom", "segment_map", "x"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=8),
    max_leaves=40,
)  # fmt: skip


@given(st.dictionaries(KEYS, ANYTHING))
def test_any_plain_value_is_shown_or_refused(value: dict[str, Any]) -> None:
    try:
        found = read.decode(pickle.dumps({"segments": [], **value}))
    except UsageError:
        return
    summarise(found)
    pprof.encode(convert.profile(found))


_FREE = {"oom": {"device_free": 0}}


@given(
    st.lists(st.tuples(st.sampled_from(["alloc", "free_requested", "free_completed", "oom",
             "segment_alloc", "segment_free", "segment_map", "segment_unmap", "later"]),
             st.integers(0, 6), st.integers(0, 5))),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 5), st.booleans()), max_size=4),
)  # fmt: skip
def test_a_trace_that_contradicts_itself_is_shown_all_the_same(
    entries: list[tuple[str, int, int]], placed: list[tuple[int, int, bool]]
) -> None:
    trace = [
        event(
            action, BASE + at * MIB, size * MIB, **({"device_free": 0} if action == "oom" else {})
        )
        for action, at, size in entries
    ]
    segments = [
        segment(block(size * MIB), address=BASE + at * MIB, is_expandable=grows)
        for at, size, grows in placed
    ]
    made = snapshot(segments, trace)
    summary = summarise(made)
    assert summary.failed == sum(action == "oom" for action, _, _ in entries)
    profile = convert.profile(made)
    assert profile.total.inuse_space >= 0
    assert pprof.decode(pprof.encode(profile)).total == profile.total


def test_what_torch_save_writes_is_recognised() -> None:
    with pytest.raises(UsageError, match=r"torch\.save"):
        read.decode(b"PK\x03\x04rest")


def test_a_bomb_of_gzip_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "MAX_FILE", 1 << 20)
    with pytest.raises(UsageError, match="unpacks to more than"):
        read.decode(gzip.compress(bytes(8 << 20)))


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=60))
def test_replaying_backwards_ends_where_the_program_began(steps: list[tuple[bool, int]]) -> None:
    """A program that takes blocks of MiBs in a segment, and gives the oldest back."""
    live: list[tuple[int, int]] = []
    trace = [event("segment_alloc", BASE, 1 << 40)]
    at, most, held = BASE, 0, 0
    for take, count in steps:
        if take:
            live.append((at, count * MIB))
            trace.append(event("alloc", at, count * MIB))
            at += count * MIB
            held += count * MIB
        elif live:
            address, size = live.pop(0)
            trace.append(event("free_requested", address, size))
            trace.append(event("free_completed", address, size))
            held -= size
        most = max(most, held)
    blocks, place = [], BASE
    for address, size in live:
        if address > place:
            blocks.append(block(address - place, "inactive"))
        blocks.append(block(size))
        place = address + size
    blocks.append(block(BASE + (1 << 40) - place, "inactive"))
    made = snapshot([segment(*blocks)], trace)
    found = replay.peak(made, 0)
    assert found is not None
    assert (found.requested, found.before, found.reserved) == (most, 0, 1 << 40)
    assert sum(found.live.values()) == most


def run(tmp_path: Path, *arguments: str) -> str:
    kept, other = BASE, BASE + (1 << 30)
    data = pickled(
        [
            segment(block(8 * MIB, frames=frames("keep")), block(12 * MIB, "inactive")),
            segment(block(8 * MIB, frames=frames("evil[red]\x1b[31m")), address=other),
        ],
        [
            event("alloc", kept, 8 * MIB, frames=frames("keep")),
            event("oom", 0, 30 * MIB, device_free=MIB, frames=frames("ask")),
        ],
    )
    (tmp_path / "a.pickle").write_bytes(data)
    result = CliRunner().invoke(command, [str(tmp_path / "a.pickle"), *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_table_tells_totals_failures_and_stacks(tmp_path: Path) -> None:
    text = run(tmp_path)
    assert "reserved" in text and "29,360,128" in text
    assert "Out of memory on device 0: 30.00 MiB asked (31,457,280 bytes)" in text
    assert "keep  /app/train.py:7" in text
    assert "evil[red]\\x1b[31m" in text and "\x1b" not in text


def test_json_is_for_scripts(tmp_path: Path) -> None:
    told = json.loads(run(tmp_path, "--format", "json"))
    assert told["devices"]["0"]["reserved"] == 28 * MIB
    assert told["out_of_memory"][0]["requested"] == 30 * MIB
    assert told["request"] == 30 * MIB


def test_pprof_can_be_reported(tmp_path: Path) -> None:
    target = tmp_path / "out.pb.gz"
    run(tmp_path, "--format", "pprof", "-o", str(target))
    assert pprof.decode(target.read_bytes()).total.inuse_space == 28 * MIB


def test_what_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, why in (("pipe", "no plain file"), ("none", "No such file"), (".", "no plain file")):
        with pytest.raises(UsageError, match=why):
            read.load(tmp_path / name)


def test_an_empty_snapshot_is_a_snapshot() -> None:
    empty = summarise(snapshot([]))
    assert (empty.devices, empty.failures, empty.stacks) == ({}, [], [])


def test_a_snapshot_of_nothing_has_no_empty_headings(tmp_path: Path) -> None:
    (tmp_path / "a.pickle").write_bytes(pickled([]))
    result = CliRunner().invoke(command, [str(tmp_path / "a.pickle")])
    assert result.output == "no segments: PyTorch held no GPU memory when this was taken\n"


def test_a_trace_without_segments_has_its_peak(tmp_path: Path) -> None:
    (tmp_path / "a.pickle").write_bytes(pickled([], [event("alloc", BASE, MIB)]))
    result = CliRunner().invoke(command, [str(tmp_path / "a.pickle")])
    assert "Peaks in the trace" in result.output
    assert "By pool and stream" not in result.output and "Largest stacks" not in result.output


def test_one_is_not_several(tmp_path: Path) -> None:
    text = run(tmp_path, "--limit", "1")
    assert "and 1 more stack (--limit)" in text
    assert "bytes were free in 1 piece, the largest" in text
