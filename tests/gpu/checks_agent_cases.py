"""The node agent in other cases: a program that was there before, two GPUs, a leak."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from checks_agent import complete, ended, gpu_places, nonzero, phases, pool, texts
from common import session
from compare import is_before_attach, label
from node_agent import Agent, Place, agent, places, settled
from results import Run, Skipped, check
from session import Program, Session

from gpumemprof.profile.model import Profile

# A program that was there before


@check("agent-late", "agent", 90)
def agent_late(run: Run) -> None:
    """The agent comes later."""
    name = "gpu-late"
    with session(run, record=False) as s:
        program = phases(run, s, name, "take=1024", "take=512", "drop")
        before = program.ready(90)["reserved"][0]
        with agent(run) as a:
            driver = s.driver_bytes(program.pid) or 0
            profile = settled(lambda: a.profile(name), lambda p: _before(p, program) == driver)
            held = _before(profile, program)
            run.true("NVML tells of the process", driver or run.stand_ins, driver)
            run.equal("before attach: bytes, as NVML tells", held, driver)
            if driver:
                run.at_most("before attach: PyTorch's reserved bytes, of these", before, held)
            run.equal("before attach: in use by the metrics", a.memory(name, "memory_in_use_bytes"),
                      {})  # fmt: skip
            for step, given_back in (("taken", 0), ("dropped", before)):
                program.answer()
                truth = program.ready()
                right = truth["reserved"][0] - before + given_back
                profile = settled(
                    lambda: a.profile(name),
                    lambda p: pool(p, program.pid).bytes == right,  # noqa: B023
                )
                ours = pool(profile, program.pid).bytes
                run.equal(f"{step}: taken since, of reserved_bytes", ours, right)
                held = _before(profile, program)
                metric = a.memory(name, "memory_in_use_bytes")
                run.equal(f"{step}: metrics", texts(metric),
                          texts({gpu_places(run, s, truth)[0]: right}))  # fmt: skip
                driver = s.driver_bytes(program.pid)
                if driver is not None:
                    run.at_most(f"{step}: all that is told, of NVML's bytes", ours + held, driver)
                run.report(f"{step}: [before attach]", held)
            run.equal("exit code of the program", program.finish(), 0)
            ended(run, a, name)
            complete(run, a)


def _before(profile: Profile, program: Program) -> int:
    return sum(
        x.values.inuse_space
        for x in profile.samples
        if is_before_attach(x) and label(x, "pid") == str(program.pid)
    )


# Two GPUs


@check("agent-two-gpus", "agent", 90)
def agent_two_gpus(run: Run) -> None:
    """One process on both GPUs, and one whose only device is the second GPU."""
    fakes = {"GPUMEMPROF_FAKE_DEVICES": "2"} if run.stand_ins else {}
    with session(run, record=False) as s, agent(run) as a:
        if len(s.gpus()) < 2 and not run.stand_ins:
            raise Skipped(f"this machine has {len(s.gpus())} GPU")
        both = phases(run, s, "gpu-both", "take=96@1", "take=32@0", "take=40@1", env=fakes)
        one = phases(
            run, s, "gpu-second", "take=64", "take=48", env={**fakes, "CUDA_VISIBLE_DEVICES": "1"}
        )
        for programs in ((both, one), (both, one), (both,)):
            for program in programs:
                _on_each_gpu(run, s, a, program, program.ready(90))
            for program in programs:
                program.answer()
        for program in (one, both):
            run.equal(f"{program.name}: exit code", program.finish(), 0)
            ended(run, a, program.name)
        complete(run, a)


def _on_each_gpu(run: Run, s: Session, a: Agent, program: Program, truth: dict[str, Any]) -> None:
    what = f"{program.name}, {truth['phase']}"
    wanted: Counter[Place] = Counter()
    expected = gpu_places(run, s, truth)
    if program.name == "gpu-second":
        run.equal(f"{what}: devices that it sees", truth["count"], 1)
        if s.gpus():
            run.equal(f"{what}: UUID of its device 0, of NVML's GPU 1", expected[0].gpu_uuid,
                      s.gpus()[1].uuid)  # fmt: skip
    for place, reserved in zip(expected, truth["reserved"], strict=True):
        wanted[place] += reserved
    right = nonzero(dict(wanted))
    held = settled(
        lambda: a.memory(program.name, "memory_in_use_bytes"), lambda m: nonzero(m) == right
    )
    run.equal(f"{what}: metrics by GPU", texts(nonzero(held)), texts(right))
    profile = a.profile(program.name)
    run.equal(f"{what}: profile by GPU", texts(places(profile)), texts(right))
    for device, reserved in enumerate(truth["reserved"]):
        run.equal(f"{what}: profile, device {device}", pool(profile, program.pid, device).bytes,
                  reserved)  # fmt: skip


# A leak


@check("growth", "agent", 100)
def growth(run: Run) -> None:
    """A slow leak is named, beside memory that comes and goes."""
    name = "gpu-leak"
    with session(run, record=False) as s, agent(run, interval="1s") as a:
        program = phases(run, s, name, "leak", "stop")
        program.ready(90)
        begun = time.monotonic()
        found = settled(lambda: _growing(a, name), lambda g: g["stacks"], 70)
        took = time.monotonic() - begun
        stored = a.json("/api/history", owner=(a.row(name) or {})["id"])["profiles"]
        run.true("a stack is named", bool(found["stacks"]), found["observations"])
        names = sorted({each["function"] for each in found["stacks"]})
        leaking = {"grow", "CUDACachingAllocator.segment"} if run.stand_ins else {"grow"}
        run.true("it is that of the leak", names and leaking.issuperset(names), ", ".join(names))
        through = [[frame for frame, _ in each["stack"]] for each in found["stacks"]]
        run.equal("stacks through what comes and goes", sum("churn" in x for x in through), 0)
        run.equal("stacks through the leak", sum("grow" in x for x in through), len(through))
        program.answer()
        truth = program.ready()
        elapsed = time.monotonic() - begun
        leaked = round(truth["reserved"][0] / elapsed * 60)
        for each in found["stacks"]:
            rate = each["trend"]["bytes_per_minute"]
            run.report("bytes a minute, beside what it leaked", rate, leaked)
        run.report("seconds until it was named", round(took, 1))
        run.report("observations, of profiles stored", found["observations"], len(stored))
        run.detail("growth", found)
        run.equal("exit code of the program", program.finish(), 0)
        ended(run, a, name)
        complete(run, a)


def _growing(a: Agent, name: str) -> Any:
    row = a.row(name)
    if row is None:
        return {"stacks": [], "observations": 0}
    return a.json("/api/growth", owner=row["id"], since="0")
