"""PyTorch's caching allocator: what it says it reserved, against what we saw it take."""

from __future__ import annotations

import json
from typing import Any

from common import (
    device_labels,
    end,
    reconcile,
    remainder,
    script,
    session,
    source_line,
)
from compare import (
    Theirs,
    is_before_attach,
    label,
    largest,
    match_stacks,
    select,
    sums,
    their_python_frames,
    told,
    torch_allocator,
)
from results import Run, check
from session import Program, Session

from gpumemprof.profile.model import Profile

DEFAULT = "expandable_segments:False"
EXPANDABLE = "expandable_segments:True"
ASYNC = "backend:cudaMallocAsync"


def _env(run: Run, configuration: str) -> dict[str, str]:
    return {
        **run.env,
        "PYTORCH_ALLOC_CONF": configuration,
        "PYTORCH_CUDA_ALLOC_CONF": configuration,
    }


def _pool(run: Run, profile: Profile, program: Program, truth: dict[str, Any]) -> None:
    phase = truth["phase"]
    pool = list(select(profile, program.pid, where=torch_allocator))
    ours = sums(pool)
    if truth["backend"] == "cudaMallocAsync":
        run.within(
            f"{phase}: in use, of the pool's used bytes (each rounded up to 512)",
            ours.bytes, truth["allocated"], 512 * max(1, ours.count),
        )  # fmt: skip
        run.report(f"{phase}: pool reserved", "", truth["reserved"])
    else:
        run.equal(
            f"{phase}: in use by the allocator, of reserved_bytes", ours.bytes, truth["reserved"]
        )
        if "segment_bytes" in truth:
            run.equal(f"{phase}: the same, of all segments", ours.bytes, truth["segment_bytes"])
    named = sums(x for x in pool if any("CUDACachingAllocator" in f.name for f in x.stack)).bytes
    run.report(f"{phase}: of these, at stacks that name CUDACachingAllocator", named, ours.bytes)
    run.report(f"{phase}: allocations in use, segments", ours.count, truth.get("segments", ""))
    run.detail(f"{phase}: the allocator's stacks", largest(pool))


def _device_calls(run: Run, profile: Profile, program: Program, truth: dict[str, Any]) -> None:
    """cudaMalloc by cudaMalloc: only the default backend counts calls."""
    if truth["backend"] == "cudaMallocAsync":
        return
    ours = sums(select(profile, program.pid, where=torch_allocator))
    phase, freed = truth["phase"], ours.alloc_count - ours.count
    exact = run.name == "torch-default"
    tell = run.equal if exact else run.report
    tell(f"{phase}: allocations from the driver", ours.alloc_count, truth["device_allocs"])
    tell(f"{phase}: frees to the driver", freed, truth["device_frees"])


def _llama(run: Run, configuration: str) -> None:
    with session(run) as s:
        program = s.start("llama", script(run, "torch_llama.py"), _env(run, configuration))
        for phase in ("trained", "emptied"):
            truth = program.ready()
            run.equal(f"{phase}: phase", phase, truth["phase"])
            if phase == "trained":
                run.report("PyTorch", truth["version"], truth["backend"])
            profile = s.profile()
            _pool(run, profile, program, truth)
            _device_calls(run, profile, program, truth)
            remainder(run, profile, program, phase, torch_allocator)
            device_labels(run, profile, program, phase)
            reconcile(run, s, profile, program, phase)
            if phase == "trained":
                _quality(run, profile, program)
            program.answer()
        end(run, program, s)


def _quality(run: Run, profile: Profile, program: Program) -> None:
    """What share of the allocator's bytes have Python frames, and reach the root."""
    samples = list(select(profile, program.pid, where=torch_allocator))
    total = sum(x.values.alloc_objects for x in samples)
    python = sum(
        x.values.alloc_objects for x in samples if any(f.kind.value == "python" for f in x.stack)
    )
    notes = sum(
        x.values.alloc_objects for x in samples if any(f.kind.value == "note" for f in x.stack)
    )
    run.report("allocations with Python frames", python, total, "autograd's threads have none")
    run.equal("allocations with an incomplete stack", notes, 0)
    ours = [x for x in samples if any(f.name == "train" for f in x.stack)]
    run.true("some stacks name train()", bool(ours), f"{len(ours)} of {len(samples)} stacks")


@check("torch-default", "torch", 240)
def torch_default(run: Run) -> None:
    _llama(run, DEFAULT)


@check("torch-expandable", "torch", 240)
def torch_expandable(run: Run) -> None:
    _llama(run, EXPANDABLE)


@check("torch-async", "torch", 240)
def torch_async(run: Run) -> None:
    _llama(run, ASYNC)


# Stacks


def _stacks(run: Run, configuration: str) -> None:
    trace = run.logs / f"{run.name}-history.json"
    trace.unlink(missing_ok=True)
    with session(run) as s:
        arguments = ("--history", str(trace), "--steps", "3")
        program = s.start(
            "llama", script(run, "torch_llama.py", *arguments), _env(run, configuration)
        )
        truth = program.ready(240)
        run.report("events in PyTorch's trace", "", truth["events"])
        theirs = [
            Theirs(e["action"], e["size"], their_python_frames(e["frames"]))
            for e in json.loads(trace.read_text())
        ]
        ours = s.taken(program.pid, torch_allocator)
        match = match_stacks(ours, theirs)
        run.true("PyTorch's trace has segments", bool(theirs), len(theirs))
        run.report("of these with Python frames", match.with_python, match.theirs)
        run.equal("segments without an event of ours", match.missing, 0)
        run.equal("events of ours without a segment", match.unclaimed, 0)
        run.equal("stacks equal, functions and lines", match.equal, match.theirs)
        run.report("share equal", match.share)
        run.report("same functions, other lines", match.functions_only)
        run.detail("misses", match.misses)
        run.detail("first stacks", [told(one.stack, 60) for one in ours[:3]])
        program.answer()
        program.ready()
        end(run, program, s)


@check("stacks-default", "stacks", 300)
def stacks_default(run: Run) -> None:
    _stacks(run, DEFAULT)


@check("stacks-expandable", "stacks", 300)
def stacks_expandable(run: Run) -> None:
    _stacks(run, EXPANDABLE)


# Out of memory


@check("torch-oom", "torch", 180, alone=True)
def torch_oom(run: Run) -> None:
    source = run.programs / "torch_oom.py"
    with session(run) as s:
        program = s.start("oom", script(run, "torch_oom.py"), _env(run, DEFAULT))
        seen = 0
        for mark in ("too much", "fill"):
            truth = program.ready()
            phase = truth["phase"]
            profile = s.profile()
            failures = profile.failures[seen:]
            seen = len(profile.failures)
            asked = [f for f in failures if f.requested == truth["asked"]]
            run.true(f"{phase}: failures recorded", bool(asked), f"{len(asked)} of {len(failures)}")
            if asked:
                _failure(run, s, asked[-1], truth, phase)
                line = source_line(source, f"MARK: {mark}")
                frames = [f for f in asked[-1].stack if f.file.endswith("torch_oom.py")]
                run.equal(f"{phase}: line of the stack", frames[0].line if frames else None, line)
            ours = sums(select(profile, program.pid, where=torch_allocator)).bytes
            run.equal(f"{phase}: in use by the allocator", ours, truth["reserved"])
            run.report(f"{phase}: PyTorch says", truth["message"])
            program.answer()
        end(run, program, s)


def _failure(run: Run, s: Session, failure: Any, truth: dict[str, Any], phase: str) -> None:
    run.equal(f"{phase}: error", failure.error, 2)
    run.equal(f"{phase}: requested", failure.requested, truth["asked"])
    run.detail(f"{phase}: stack", told(failure.stack, 40))
    live = sum(size for _, size in failure.live) + failure.live_omitted
    run.equal(f"{phase}: the live set sums to what was in use", live, failure.in_use)
    gpu = s.gpus()[0] if s.gpus() else None
    if failure.total is None:
        run.true(f"{phase}: the driver's total was seen", False, "the program asked before")
    else:
        run.equal(f"{phase}: total, as the program was told", failure.total, truth["total"])
        if gpu is not None:
            run.within(f"{phase}: total, of NVML's", failure.total, gpu.total, gpu.total * 0.05)
    if phase == "too-much":
        run.equal(f"{phase}: free, as the program was told last", failure.free, truth["free"])
    else:
        # What the program was told last was before the fill: PyTorch asks only after it failed.
        run.report(f"{phase}: free, as the program was told last", failure.free, truth["free"])
        if gpu is not None:
            run.report(f"{phase}: free by NVML now", "", gpu.total - gpu.used)


# A process that ran before


@check("torch-attach", "torch", 120)
def torch_attach(run: Run) -> None:
    with session(run, record=False) as s:
        program = s.start("attach", script(run, "torch_attach.py"), _env(run, DEFAULT))
        before = program.ready()
        driver = s.driver_bytes(program.pid)
        recorder = s.open()
        recorder.add(program.pid)
        profile = s.profile()
        held = _before_attach(profile, program)
        run.true("NVML tells of the process", driver is not None, driver)
        run.equal("before attach: bytes, as NVML tells", held, driver or 0)
        run.at_most("before attach: PyTorch's reserved bytes, of these", before["reserved"], held)
        program.answer()
        more = program.ready()
        profile = s.profile()
        ours = sums(select(profile, program.pid, where=torch_allocator)).bytes
        run.equal("taken since", ours, more["reserved"] - before["reserved"])
        run.report("before attach, then", _before_attach(profile, program), held)
        devices = sorted({label(x, "device") for x in select(profile, program.pid)})
        run.report("device of what was taken since", ", ".join(devices), "0")
        reconcile(run, s, profile, program, "more")
        program.answer()
        back = program.ready()
        profile = s.profile()
        ours = sums(select(profile, program.pid, where=torch_allocator)).bytes
        held = _before_attach(profile, program)
        driver = s.driver_bytes(program.pid) or 0
        run.equal("taken since, after the first was given back", ours, back["reserved"])
        run.at_most("all that is told, of NVML's bytes", ours + held, driver)
        run.report("unknown frees", profile.completeness.get("unknown_frees"), 1)
        end(run, program, s)


def _before_attach(profile: Profile, program: Program) -> int:
    return sum(
        x.values.inuse_space
        for x in profile.samples
        if is_before_attach(x) and label(x, "pid") == str(program.pid)
    )
