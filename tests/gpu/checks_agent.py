"""The node agent against PyTorch: what Prometheus, the page and Pyroscope are told."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from common import LOST, gpumemprof, session
from compare import (
    GPU_KINDS,
    label,
    largest,
    python_frames,
    select,
    sums,
    told,
    torch_allocator,
)
from node_agent import (
    Agent,
    Place,
    places,
    pushed,
    pushed_in_use,
    pushing_agent,
    settled,
)
from results import Run, check
from session import Program, Session

from gpumemprof.profile.model import Profile

CONFIGURATION = {"PYTORCH_ALLOC_CONF": "expandable_segments:False"}
OUT_OF_MEMORY = "2"


def phases(
    run: Run, s: Session, name: str, *steps: str, env: dict[str, str] | None = None
) -> Program:
    """The program of all these checks; ``name`` is its workload: that of the file it is."""
    file = run.logs / name
    if not file.is_symlink():
        file.symlink_to(run.programs / "torch_phases.py")
    command = [run.python, "-u", str(file), name, *steps]
    return s.start(name, command, {**run.env, **CONFIGURATION, **(env or {})})


def gpu_places(run: Run, s: Session, truth: dict[str, Any]) -> list[Place]:
    """Where device memory of each of a program's devices has to be, by NVML and PyTorch."""
    gpus = {gpu.uuid: gpu for gpu in s.gpus()}
    if not gpus:
        if not run.stand_ins:
            run.true("NVML tells of GPUs", False)
        return [Place("device")] * truth["count"]
    uuids = truth["uuids"]
    if not all(uuids):  # a PyTorch that does not tell: the only one it can be
        uuids = list(gpus)
    return [Place("device", str(gpus[uuid].index), uuid) for uuid in uuids]


def pool(profile: Profile, pid: int, device: int | None = None) -> Any:
    """What PyTorch's allocator took, on a device or on all, by our profile."""
    samples = select(profile, pid, where=torch_allocator)
    return sums(x for x in samples if device is None or label(x, "device") == str(device))


def complete(run: Run, a: Agent) -> None:
    """Nothing was lost; what could not be resolved is told. All programs of the machine count: one
    without a GPU is likely to run other tests."""
    lost = a.lost()
    judge = run.report if run.stand_ins else run.equal
    for cause in LOST:
        if cause in lost:
            judge(f"lost: {cause}", lost[cause], 0)
    others = {cause: count for cause, count in lost.items() if cause not in LOST}
    run.report("other causes of losses", json.dumps(others) if others else "none")
    page = a.json("/api/agent")
    run.report("problems on the page", "; ".join(page["problems"]) or "none")
    run.detail("about", page["about"])
    run.detail("the agent's log", a.log.read_text()[-3000:])


# From the first allocation to the end


@check("agent-torch", "agent", 120)
def agent_torch(run: Run) -> None:
    """The agent is there before the program."""
    name = "gpu-torch"
    steps = ["first", "take=64", *(() if run.stand_ins else ("train",)), "oom", "drop"]
    with session(run, record=False) as s, pushing_agent(run) as (a, receiver):
        program = phases(run, s, name, *steps)
        profiles = []
        for step in steps:
            truth = program.ready(90)
            at = time.time_ns()
            profile = _phase(run, s, a, program, truth)
            if step == "first":
                _first(run, profile, program, truth)
            if step == "oom":
                _oom(run, a, name, profile, truth)
            in_use = _by_gpu(a.memory(name, "memory_in_use_bytes"))
            sent = settled(lambda: pushed_in_use(receiver, name, at), in_use.__eq__)  # noqa: B023
            run.equal(f"{step}: pushed to Pyroscope, by kind and GPU", texts(sent), texts(in_use))
            profiles.append((run.logs / f"{run.name}-{step.partition('=')[0]}.pb.gz", profile))
            profiles[-1][0].write_bytes(a.pprof(name))
            program.answer()
        _diff(run, profiles[0], profiles[-2])
        run.equal("exit code of the program", program.finish(), 0)
        allocations = ended(run, a, name)
        complete(run, a)
        run.true("the page is served", b"page.js" in a.get("/"))
        run.equal("exit code of the agent", a.stop(), 0)
        for what, number in allocations.items():
            run.equal(f"all pushes together: {what}", pushed(receiver, name, what), number)
        run.equal("what Pyroscope would lose or refuse", receiver.violations, [])


def _phase(run: Run, s: Session, a: Agent, program: Program, truth: dict[str, Any]) -> Profile:
    """The program is stopped: everything tells the same."""
    name, step, reserved = program.name, truth["phase"], truth["reserved"][0]
    profile = settled(lambda: a.profile(name), lambda p: pool(p, program.pid).bytes == reserved)
    ours = pool(profile, program.pid)
    run.equal(f"{step}: in use by the allocator, of reserved_bytes", ours.bytes, reserved)
    run.equal(f"{step}: allocations from the driver", ours.alloc_count, truth["device_allocs"][0])
    run.equal(
        f"{step}: frees to the driver", ours.alloc_count - ours.count, truth["device_frees"][0]
    )
    expected = places(profile)
    wanted = gpu_places(run, s, truth)[0]
    held = settled(lambda: a.memory(name, "memory_in_use_bytes"), lambda m: nonzero(m) == expected)
    run.equal(f"{step}: metrics, by kind and GPU, of the profile", texts(nonzero(held)),
              texts(expected))  # fmt: skip
    on = {place[1:] for place in nonzero(held) if place.kind in GPU_KINDS}
    run.equal(f"{step}: GPU index and UUID, of NVML's and PyTorch's", sorted(on), [wanted[1:]])
    gpu = sum(size for place, size in held.items() if place.kind in GPU_KINDS)
    row = a.row(name) or {}
    run.equal(f"{step}: the page's figure, of the metrics", row.get("in_use"), gpu)
    peak = sum(a.memory(name, "memory_peak_bytes").values())
    run.at_most(f"{step}: PyTorch's peak, of the metric", truth["most_reserved"][0], peak)
    driver = s.driver_bytes(program.pid)
    if driver is not None:
        run.at_most(f"{step}: metrics, of NVML's bytes", gpu, driver)
    beside = list(select(profile, program.pid, where=lambda stack: not torch_allocator(stack)))
    run.report(f"{step}: held beside the pool", sums(beside).bytes, "", "by stack in the JSON")
    run.detail(f"{step}: beside the pool", largest(beside))
    return profile


def _first(run: Run, profile: Profile, program: Program, truth: dict[str, Any]) -> None:
    """The very first allocation has its Python functions and line."""
    found = list(select(profile, program.pid, where=torch_allocator))
    run.equal("first: allocations of the allocator", sums(found).alloc_count, 1)
    frames = [f for x in found for f in python_frames(x.stack) if f.name == "first"]
    run.equal("first: line of its function", [f.line for f in frames], [truth["lines"]["first"]])
    roots = [python_frames(x.stack)[-1].name for x in found if python_frames(x.stack)]
    run.equal("first: outermost Python function", roots, ["<module>"])
    run.detail("first: stacks", [told(x.stack, 60) for x in found])


def _oom(run: Run, a: Agent, name: str, profile: Profile, truth: dict[str, Any]) -> None:
    """What did not fit is told everywhere."""
    asked = [f for f in profile.failures if f.requested == truth["asked"]]
    run.true("oom: failures in the profile", bool(asked), len(asked))
    run.equal("oom: their errors", sorted({f.error for f in asked}), [int(OUT_OF_MEMORY)])
    lines = {f.line for one in asked for f in python_frames(one.stack) if f.name == "oom"}
    run.equal("oom: line of their function", sorted(lines), [truth["lines"]["oom"]])
    metric = a.failures(name)
    run.equal("oom: metrics by error", metric, {OUT_OF_MEMORY: len(profile.failures)})
    row = a.row(name) or {}
    # The nearest Python function: the stand-in's allocator is written in Python.
    asking = "CUDACachingAllocator.segment" if run.stand_ins else "oom"
    run.equal("oom: failures on the page", row.get("failures"), len(profile.failures))
    notes = settled(
        lambda: [
            note
            for note in a.json("/api/history", owner=row["id"])["failures"]
            if note["requested"] == truth["asked"]
        ],
        lambda found: len(found) == len(asked),
    )
    run.equal("oom: notes in the history on the page", len(notes), len(asked))
    run.equal(
        "oom: error and function there",
        sorted({(note["error"].upper().replace("_", ""), note["function"]) for note in notes}),
        [("CUDAERRORMEMORYALLOCATION", asking)],
    )
    run.detail("oom: notes", notes)
    run.report("oom: PyTorch says", truth["message"])


def _diff(run: Run, before: tuple[Path, Profile], after: tuple[Path, Profile]) -> None:
    """``gpumemprof diff`` of two profiles that the page handed out."""
    command = gpumemprof(
        "diff", str(before[0]), str(after[0]), "--format", "json", "--type", "inuse"
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    run.equal("diff: exit code", done.returncode, 0, done.stderr[-300:])
    if done.returncode == 0:
        gpu = json.loads(done.stdout)["gpu"]
        run.detail(
            "diff", {key: value for key, value in gpu.items() if not isinstance(value, list)}
        )
        held = [sum(n for p, n in places(each[1]).items() if p.kind in GPU_KINDS)
                for each in (before, after)]  # fmt: skip
        run.equal(
            "diff: bytes before and after", [gpu["total"]["before"], gpu["total"]["after"]], held
        )


def ended(run: Run, a: Agent, name: str) -> dict[str, int]:
    """Nothing is held, and what was allocated was freed; the sums of all places."""
    held = settled(lambda: a.memory(name, "memory_in_use_bytes"), lambda m: not any(m.values()))
    run.equal("ended: in use, by kind and GPU", texts(nonzero(held)), [])
    counters = {
        what: a.memory(name, f"{what}_total")
        for what in ("memory_allocated_bytes", "memory_freed_bytes", "allocations", "frees")
    }
    run.equal("ended: bytes freed, of allocated", texts(counters["memory_freed_bytes"]),
              texts(counters["memory_allocated_bytes"]))  # fmt: skip
    run.equal("ended: frees, of allocations", texts(counters["frees"]),
              texts(counters["allocations"]))  # fmt: skip
    return {
        "alloc_space": sum(counters["memory_allocated_bytes"].values()),
        "alloc_objects": sum(counters["allocations"].values()),
    }


def nonzero(held: dict[Place, int]) -> dict[Place, int]:
    return {place: size for place, size in held.items() if size}


def _by_gpu(held: dict[Place, int]) -> dict[tuple[str, str], int]:
    return {(place.kind, place.gpu): size for place, size in held.items() if size}


def texts(held: Any) -> list[str]:
    """For tables: places and bytes."""
    return [f"{' '.join(filter(None, place))}: {size:,}" for place, size in sorted(held.items())]
