"""A trace for ui.perfetto.dev and chrome://tracing.

``checked`` holds the rules of the Trace Event Format and of the importer of Perfetto's
trace_processor (src/trace_processor/importers/json): what it would count as json_parser_failure.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from profile_examples import GIB, HELD_OVER_TIME, SECOND, START, TRAINING, profiles

from gpumemprof.profile.model import Profile, Series
from gpumemprof.profile.perfetto import encode


def no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def checked(profile: Profile) -> list[dict[str, Any]]:
    """The events, each of which keeps the rules."""
    trace = json.loads(encode(profile), parse_constant=no_constant)
    assert isinstance(trace, dict)
    assert trace["displayTimeUnit"] in {"ms", "ns"}
    assert isinstance(trace["otherData"], dict)
    named = set()
    for event in trace["traceEvents"]:
        assert isinstance(event["name"], str)
        assert event["name"]
        for number in (event["pid"], event["tid"]):
            assert type(number) is int
            assert 0 < number < 2**32
        assert math.isfinite(event["ts"])
        assert event["ts"] >= 0
        assert isinstance(event["args"], dict)
        if event["ph"] == "M":
            assert event["name"] == "process_name"
            assert event["args"]["name"]
            assert event["pid"] not in named
            named.add(event["pid"])
        elif event["ph"] == "C":
            assert event["args"]
            assert all(type(value) is int for value in event["args"].values())
        else:
            assert event["ph"] == "i"
            assert event["s"] in {"g", "p", "t"}
            assert all(isinstance(value, str | int) for value in event["args"].values())
        assert event["ph"] == "M" or event["pid"] in named
    times = [event["ts"] for event in trace["traceEvents"]]
    assert times == sorted(times)
    return list(trace["traceEvents"])


def counters(events: list[dict[str, Any]]) -> dict[tuple[int, str], list[tuple[float, int]]]:
    tracks: dict[tuple[int, str], list[tuple[float, int]]] = {}
    for event in events:
        if event["ph"] == "C":
            track = tracks.setdefault((event["pid"], event["name"]), [])
            track.append((event["ts"], event["args"]["bytes"]))
    return tracks


def test_each_process_kind_and_device_is_a_counter_to_the_end_of_the_recording() -> None:
    tracks = counters(checked(TRAINING))
    assert set(tracks) == {
        (4242, "device memory, device 0"),
        (4242, "pinned host memory"),
    }
    assert tracks[4242, "device memory, device 0"] == [
        (1_000_000, 13 * GIB),
        (4_000_000, 61 * GIB + (96 << 20)),
        (79_000_000, 70 * GIB + (96 << 20)),
        (81_000_000, 61 * GIB + (96 << 20)),
        (83_400_000, 61 * GIB + (96 << 20)),
    ]


def test_times_keep_their_nanoseconds() -> None:
    series = replace(HELD_OVER_TIME, points=((START + SECOND + 1, 5), (START + SECOND + 2, 6)))
    (track,) = counters(checked(replace(TRAINING, series=(series,)))).values()
    assert track[:2] == [(1_000_000.001, 5), (1_000_000.002, 6)]


def test_a_failed_allocation_is_an_instant_of_its_process_with_what_is_known() -> None:
    (failed,) = [event for event in checked(TRAINING) if event["ph"] == "i"]
    assert (failed["name"], failed["pid"], failed["ts"]) == ("cudaMalloc failed", 4242, 80_000_000)
    args = failed["args"]
    assert (args["requested"], args["free"], args["in_use"]) == (20 * GIB, 9 * GIB, 70 * GIB)
    assert "KVCache.grow (/app/cache.py:58)" in args["stack"]


def test_processes_are_named() -> None:
    (named,) = [event for event in checked(TRAINING) if event["ph"] == "M"]
    assert named["args"]["name"] == "python (4242)"


def test_programs_with_one_pid_have_tracks_of_their_own() -> None:
    other = Series(
        tuple(sorted({**dict(HELD_OVER_TIME.labels), "comm": "sh"}.items())), ((START, 7),)
    )
    events = checked(replace(TRAINING, series=(HELD_OVER_TIME, other)))
    names = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert sorted(names.values()) == ["python (4242)", "sh (4242)"]
    assert len(counters(events)) == 2


def test_the_header_says_what_was_recorded_and_when() -> None:
    other = json.loads(encode(TRAINING))["otherData"]
    assert other["start_ns"] == str(START)
    assert other["command"] == "python train.py --epochs 3"


@settings(deadline=None)
@given(profiles())
def test_any_profile_becomes_a_trace_that_keeps_the_rules(profile: Profile) -> None:
    checked(profile)
