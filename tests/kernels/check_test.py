"""The verdict itself: what is wrong with a recording is told. No virtual machine is needed."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import pytest

from gpumemprof.profile import pprof
from gpumemprof.profile.model import ProcessInfo, Profile, Sample, Values
from gpumemprof.stack.frames import Frame
from tests.kernels.check import IN_BRIEF, IN_FULL, SHOWN, Verdict, judge, plan, same_stacks
from tests.kernels.table import render

MIB = 1 << 20
STACK = tuple(Frame(name) for name in ("cuMemAlloc_v2", "allocate_scratch", "main"))
PROCESS = ProcessInfo(7, "driver_only", "driver_only", 1, 2, "exit", 0, 4 * MIB, 0, 0)
PROFILE = Profile(
    samples=(
        Sample(
            STACK,
            (("call", "cuMemAlloc_v2"), ("device", "0"), ("kind", "device"), ("pid", "7")),
            Values(2, 4 * MIB, 0, 0, 4 * MIB),
        ),
    ),
    time_ns=1,
    duration_ns=1,
    processes=(PROCESS,),
    about={"loader": "libbpf 1.1", "attach": "single"},
)
BY_BCC = replace(PROFILE, about={"loader": "bcc 0.26.0", "attach": "single"})
FIELDS = {"pid": 2232, "signal": 2832}
NOTHING = {"live_bytes": 0, "live_count": 0, "total_bytes": 0, "total_count": 0, "peak_bytes": 0}
DEVICE = {**NOTHING, "total_bytes": 4 * MIB, "total_count": 2, "peak_bytes": 4 * MIB}
TRUTH = {
    "process_gpu": DEVICE,
    "devices": [
        {"device": DEVICE, "managed": NOTHING, "array": NOTHING, "pinned_host": NOTHING}
    ],
}  # fmt: skip
ATTACHED = {
    "load_seconds": 1, "attach_seconds": 1, "detach_seconds": 18, "calls": 116,
    "loader": "libbpf 1.1", "verified": [200_000, 1000], "problems": {}, "lifecycle_error": None,
}  # fmt: skip


def doctor(chosen: str) -> dict[str, Any]:
    found = [
        {"name": "loader", "status": "ok", "found": "libbpf 1.1; no bcc", "advice": ""},
        {"name": "attaching", "status": "ok", "found": f"by {chosen}; session: no", "advice": ""},
    ]
    return {
        "step": "doctor", "exit": 0, "stderr": "",
        "stdout": json.dumps({"works": True, "checks": found}),
    }  # fmt: skip


def recorded(profile: Profile, *, btf: bool) -> dict[str, Any]:
    return {
        "step": "record", "btf": btf, "mode": "single" if btf else "", "program": "driver_only",
        "exit": 0, "stderr": "", "stdout": "", "truths": [TRUTH],
        "profile": base64.b64encode(pprof.encode(profile)).decode(),
    }  # fmt: skip


def told(
    profile: Profile = PROFILE,
    *,
    hidden: Profile = BY_BCC,
    found: object = FIELDS,
    **attached: object,
) -> list[dict[str, Any]]:
    """What a machine with Linux 6.1 tells when all is well."""
    refused = [
        {"step": "attach", "mode": mode, "exit": 1, "stdout": "", "stderr": f"no {mode} here"}
        for mode in ("session", "multi")
    ]
    return [
        {"step": "machine", "release": "6.1.0", "btf": True},
        {"step": "offsets", "exit": 0, "stdout": json.dumps({"told": FIELDS, "found": found})},
        doctor("single"),
        *refused,
        {"step": "attach", "mode": "single", "exit": 0, "stderr": "",
         "stdout": json.dumps({**ATTACHED, **attached})},
        recorded(profile, btf=True),
        recorded(hidden, btf=False),
        {"step": "end"},
    ]  # fmt: skip


def with_values(values: Values) -> Profile:
    return replace(PROFILE, samples=(replace(PROFILE.samples[0], values=values),))


def test_a_recording_that_is_right_has_no_problems() -> None:
    verdict = judge("6.1", told())
    assert verdict.problems == []
    assert verdict.chosen == "single"
    page = render([verdict])
    assert "| yes | libbpf 1.1 | single | the kernel's | refused | refused | works |" in page
    assert "| hidden | bcc 0.26.0 | single | the kernel's |" in page


@pytest.mark.parametrize(
    ("profile", "problem"),
    [
        (with_values(Values(2, 4 * MIB - 1, 0, 0, 4 * MIB)), "device: alloc_space is 4,194,303"),
        (with_values(Values(3, 4 * MIB, 0, 0, 4 * MIB)), "device: alloc_objects is 3"),
        (replace(PROFILE, processes=(replace(PROCESS, peak=1),)), "the peak is 1"),
        (replace(PROFILE, completeness={"events_lost": 1}), "events were lost"),
    ],
)
def test_a_wrong_total_or_a_loss_is_told(profile: Profile, problem: str) -> None:
    (found,) = judge("6.1", told(profile)).problems
    assert problem in found


def test_a_function_that_is_missing_is_told() -> None:
    bare = replace(PROFILE, samples=(replace(PROFILE.samples[0], stack=STACK[:1]),))
    problems = judge("6.1", told(bare)).problems
    assert len(problems) == len(SHOWN["driver_only"]) - 1


def test_a_way_to_attach_that_must_work_and_does_not_is_told() -> None:
    problems = judge("6.12", told()).problems
    assert "multi must work and does not" in problems
    assert "doctor: single is chosen, not multi" in problems


def test_a_program_that_the_verifier_is_near_to_refuse_is_told() -> None:
    (problem,) = judge("6.1", told(verified=[900_000])).problems
    assert "900,000 steps" in problem


def test_fields_found_in_other_places_than_the_kernel_tells_are_told() -> None:
    (problem,) = judge("6.1", told(found={**FIELDS, "signal": 8})).problems
    assert "fields of the kernel" in problem


def test_a_recording_by_another_loader_than_expected_is_told() -> None:
    assert judge("6.1", told(hidden=PROFILE)).problems == [
        "without BTF, driver_only: loaded by libbpf 1.1"
    ]


def test_each_kernel_is_asked_for_what_it_can() -> None:
    assert plan("5.10", bcc=True)["modes"] == {
        "session": (), "multi": (), "single": (), "wrapped": IN_FULL,
    }  # fmt: skip
    assert plan("6.12", bcc=False) == {
        "modes": {"session": (), "multi": IN_FULL, "single": IN_BRIEF}, "without_btf": (),
    }  # fmt: skip


def test_a_machine_that_stops_before_the_end_is_told() -> None:
    crash = {"step": "crashed", "problem": "", "console": "panic"}
    problems = judge("6.1", [*told()[:1], crash]).problems
    assert "panic" in problems
    assert "it did not come to the end" in problems


def test_stacks_that_differ_between_kernels_are_told() -> None:
    other = replace(PROFILE.samples[0], stack=(*STACK[:2], replace(STACK[2], line=5)))
    verdicts: list[Verdict] = [
        judge("6.1", told()),
        judge("6.1", told(hidden=replace(BY_BCC, samples=(other,)))),
    ]
    same_stacks(verdicts)
    assert verdicts[0].problems == []
    assert "stacks differ from those of 6.1 single" in verdicts[1].problems[0]
