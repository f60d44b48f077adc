"""What the recordings in a virtual machine must show, as values: from what a machine told to a
verdict. No kernel is needed here."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpumemprof.profile import pprof
from gpumemprof.profile.completeness import lost
from gpumemprof.profile.model import Profile
from gpumemprof.stack.frames import Stack

OLDEST = (5, 10)
SINCE = {"session": (6, 13), "multi": (6, 6), "single": (5, 15), "wrapped": OLDEST}
"""Way to attach → the first kernel that must take it. Best first; the last is only for kernels that
take no other."""
SHOWN = {
    "driver_loop": {"cudaMalloc", "allocate_block", "descend", "run_batch", "leak_blocks",
                    "worker_main"},
    "driver_only": {"cuMemAlloc_v2", "allocate_scratch", "main"},
    "llm_server": {"cudaMalloc", "PrefixCache.insert", "LLMServer.worker_loop", "Linear.__init__",
                   "main", "<module>"},
}  # fmt: skip
"""Program → functions that every recording of it must name."""
IN_FULL = ("driver_loop", "driver_only", "llm_server")
"""Recorded in the way that is chosen on a kernel."""
IN_BRIEF = ("driver_loop",)
"""Recorded in other ways that it takes."""
WITHOUT_BTF = ("driver_loop", "llm_server")
"""Recorded with the kernel's BTF hidden, where bcc is in the machine."""
STEPS_ALLOWED = 500_000
"""Of the million steps that a verifier takes: half is left for kernels not tried here."""

Content = Mapping[tuple[Stack, tuple[tuple[str, str], ...]], tuple[int, ...]]
"""Everything of a profile that must not depend on the kernel."""


def version(series: str) -> tuple[int, int]:
    """
    >>> version("6.12")
    (6, 12)
    """
    major, minor = series.split(".")[:2]
    return int(major), int(re.match(r"\d+", minor)[0])  # type: ignore[index]


def best(series: str) -> str:
    """The way to attach that must be chosen, "none" before the oldest kernel.

    >>> best("6.1")
    'single'
    """
    return next((mode for mode in SINCE if _must_work(series, mode)), "none")


def plan(series: str, *, bcc: bool) -> dict[str, Any]:
    """What to do in a machine: ``modes``: way to attach → programs to record, none of those that it
    must refuse; ``without_btf``: programs to record without BTF."""
    tried = [mode for mode in SINCE if mode != "wrapped" or best(series) in ("wrapped", "none")]
    modes = {
        mode: IN_FULL if mode == best(series) else IN_BRIEF if _must_work(series, mode) else ()
        for mode in tried
    }
    return {"modes": modes, "without_btf": WITHOUT_BTF if bcc else ()}


@dataclass
class Attached:
    """One way to attach on one kernel. Seconds are of an emulated processor."""

    refused: str = ""
    load: float = 0.0
    attach: float = 0.0
    detach: float = 0.0
    calls: int = 0
    steps: int = 0
    """That the verifier took for the largest program."""


@dataclass
class Verdict:
    """What one kernel showed. ``problems``: sentences; empty when all is as it must be."""

    series: str
    release: str = "did not start"
    btf: bool = False
    loaders: dict[str, str] = field(default_factory=dict)
    """What was recorded with ("libbpf", "bcc") → what it calls itself."""
    chosen: str = "none"
    without_btf: str = ""
    """The way to attach that was chosen with the BTF hidden; empty when it was not tried."""
    advice: str = ""
    modes: dict[str, Attached] = field(default_factory=dict)
    programs: dict[tuple[str, str], Content] = field(default_factory=dict)
    """(mode, program) → what was recorded."""
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


def judge(series: str, told: Sequence[Mapping[str, Any]]) -> Verdict:
    """The verdict on one kernel by itself; ``same_stacks`` compares several."""
    verdict = Verdict(series)
    for step in told:
        _STEPS[step["step"]](verdict, step)
    if not any(step["step"] == "end" for step in told):
        verdict.problems.append("it did not come to the end")
    for mode in plan(series, bcc=False)["modes"]:
        refused = verdict.modes.get(mode, Attached("not tried")).refused
        if _must_work(series, mode) and refused:
            verdict.problems.append(f"{mode} must work and does not")
        if not _must_work(series, mode) and not refused:
            verdict.problems.append(f"{mode} works, and is not expected to")
    for what, chosen in (("doctor", verdict.chosen), ("without BTF", verdict.without_btf)):
        if chosen not in (best(series), ""):
            verdict.problems.append(f"{what}: {chosen} is chosen, not {best(series)}")
    return verdict


def _must_work(series: str, mode: str) -> bool:
    return version(series) >= SINCE[mode]


def _machine(verdict: Verdict, step: Mapping[str, Any]) -> None:
    verdict.release = step["release"]
    verdict.btf = step["btf"]


def _offsets(verdict: Verdict, step: Mapping[str, Any]) -> None:
    try:
        both = json.loads(step["stdout"])
    except ValueError:
        verdict.problems.append(f"fields of the kernel are not found: {step['stderr'][-500:]}")
        return
    if both["found"] != both["told"]:
        verdict.problems.append(f"fields of the kernel: {both}")


def _doctor(verdict: Verdict, step: Mapping[str, Any]) -> None:
    try:
        report = json.loads(step["stdout"])
    except ValueError:
        verdict.problems.append(f"doctor: {step['stderr'][-500:]}")
        return
    found = {check["name"]: check for check in report["checks"]}
    chosen = "none"
    if found["attaching"]["status"] == "ok":
        chosen = found["attaching"]["found"].removeprefix("by ").split(";")[0]
        loader = found["loader"]["found"].split(";")[0]
        verdict.loaders["libbpf"] = loader
        if not loader.startswith("libbpf"):
            verdict.problems.append(f"doctor loads by {loader}, not by libbpf")
    verdict.chosen = chosen
    failed = [check for check in report["checks"] if check["status"] == "fail"]
    advice = "; ".join(f"{c['name']}: {c['found']}: {c['advice']}" for c in failed[:1])
    verdict.advice = verdict.advice or advice
    supported = version(verdict.series) >= OLDEST
    if report["works"] is not supported or (step["exit"] == 0) is not supported:
        verdict.problems.append(f"doctor says works: {report['works']}, exit {step['exit']}")


def _attach(verdict: Verdict, step: Mapping[str, Any]) -> None:
    if step["exit"]:
        last = (step["stderr"].strip().splitlines() or ["no reason"])[-1]
        reason = re.sub(r"^this kernel cannot record \(\w+: \w+: (.*)\)$", r"\1", last)
        verdict.modes[step["mode"]] = Attached(refused=reason)
        return
    told = json.loads(step["stdout"])
    verdict.modes[step["mode"]] = attached = Attached(
        load=told["load_seconds"], attach=told["attach_seconds"], detach=told["detach_seconds"],
        calls=told["calls"], steps=max(told["verified"]),
    )  # fmt: skip
    if told["problems"]:
        verdict.problems.append(f"{step['mode']}: {told['problems']}")
    if told["lifecycle_error"]:
        verdict.problems.append(f"ends of processes are not told: {told['lifecycle_error']}")
    if attached.steps > STEPS_ALLOWED:
        verdict.problems.append(f"{step['mode']}: the verifier took {attached.steps:,} steps")


def _record(verdict: Verdict, step: Mapping[str, Any]) -> None:
    mode, program = step["mode"], step["program"]
    if not step["btf"]:
        mode = "without BTF"
    if step["exit"] or not step["profile"] or len(step["truths"]) != 1:
        verdict.problems.append(
            f"{mode}, {program}: exit {step['exit']}, {len(step['truths'])} truths, "
            f"{step['stderr'][-500:]}"
        )
        return
    profile = pprof.decode(base64.b64decode(step["profile"]))
    verdict.programs[mode, program] = content(profile)
    loader, expected = profile.about["loader"], "libbpf"
    if not step["btf"]:
        expected, verdict.without_btf = "bcc", profile.about["attach"]
        verdict.loaders["bcc"] = loader
    if not loader.startswith(expected):
        verdict.problems.append(f"{mode}, {program}: loaded by {loader}")
    found = [*differences(profile, step["truths"][0]), *lost(profile.completeness)]
    if program == "llm_server":
        found += book_differences(profile, json.loads(step["stdout"].split("\n", 1)[0]))
    named = {frame.name for sample in profile.samples for frame in sample.stack}
    found += [f"{name} is in no stack" for name in sorted(SHOWN[program] - named)]
    verdict.problems += [f"{mode}, {program}: {problem}" for problem in found]


def _kernel_log(verdict: Verdict, step: Mapping[str, Any]) -> None:
    verdict.problems += [f"the kernel says: {line}" for line in step["complaints"]]


def _crashed(verdict: Verdict, step: Mapping[str, Any]) -> None:
    verdict.problems.append(f"{step['problem']} {step['console'][-1000:]}".strip())


def _error(verdict: Verdict, step: Mapping[str, Any]) -> None:
    verdict.problems.append(step["trace"])


def _took(verdict: Verdict, step: Mapping[str, Any]) -> None:
    verdict.seconds = step["seconds"]


_STEPS = {
    "machine": _machine, "offsets": _offsets, "doctor": _doctor, "attach": _attach,
    "record": _record, "kernel log": _kernel_log,
    "crashed": _crashed, "error": _error, "took": _took, "end": lambda *_: None,
}  # fmt: skip


def differences(profile: Profile, truth: Mapping[str, Any]) -> Iterator[str]:
    """Where a profile's totals are not those of the stand-in libraries (tests/fakes/truth.c)."""
    for kind in ("device", "managed", "array", "pinned_host"):
        samples = [s for s in profile.samples if dict(s.labels)["kind"] == kind]
        for ours, theirs in (("alloc_objects", "total_count"), ("alloc_space", "total_bytes")):
            recorded = sum(getattr(s.values, ours) for s in samples)
            true = sum(device[kind][theirs] for device in truth["devices"])
            if recorded != true:
                yield f"{kind}: {ours} is {recorded:,}, the program's own {true:,}"
    peak = sum(process.peak for process in profile.processes)
    if peak != truth["process_gpu"]["peak_bytes"]:
        yield f"the peak is {peak:,}, the program's own {truth['process_gpu']['peak_bytes']:,}"


def book_differences(profile: Profile, books: Mapping[str, Any]) -> Iterator[str]:
    """Where a profile is not what the demo server wrote down itself."""
    recorded = sum(sample.values.alloc_objects for sample in profile.samples)
    if recorded != books["allocations"]:
        yield f"{recorded} allocations, the program's own {books['allocations']}"
    failed = sorted((failure.error, failure.requested) for failure in profile.failures)
    own = sorted((failure["error"], failure["requested"]) for failure in books["failures"])
    if failed != own:
        yield f"failures {failed}, the program's own {own}"


def content(profile: Profile) -> Content:
    """Stacks with functions, files and lines, labels without the pid, and all five values."""
    found: dict[tuple[Stack, tuple[tuple[str, str], ...]], tuple[int, ...]] = {}
    for sample in profile.samples:
        labels = tuple((key, value) for key, value in sample.labels if key != "pid")
        found[sample.stack, labels] = tuple(sample.values)
    return found


def same_stacks(verdicts: Sequence[Verdict]) -> None:
    """Compares every recording with the first of the same program; adds to ``problems``."""
    first: dict[str, tuple[str, Content]] = {}
    for verdict in verdicts:
        for (mode, program), found in verdict.programs.items():
            name, expected = first.setdefault(program, (f"{verdict.series} {mode}", found))
            if found != expected:
                verdict.problems.append(
                    f"{mode}, {program}: stacks differ from those of {name}: "
                    f"{_difference(expected, found)}"
                )


def _difference(expected: Content, found: Content) -> str:
    for key in [*expected, *found]:
        if expected.get(key) != found.get(key):
            stack = " < ".join(f"{frame.name}:{frame.line}" for frame in key[0])
            return f"{stack}: {expected.get(key)} and {found.get(key)}"
    return "none"
