"""What recording costs: per allocation, per training step, to attach, to resolve, in memory.

Measured in short batches that take turns (bare, empty probes, recording) within one run, since
machines change their speed; told as medians and as the least. Targets are told, not judged.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from common import binary, complete, script, session
from results import Run, check
from session import Program, Session

from gpumemprof.probe.loader import Options

MODES = ("bare", "empty", "recording")
ROUNDS = 12
BATCHES, PAIRS = 8, 100
STEPS = 60


def _in_mode(s: Session, mode: str, program: Program) -> float:
    """Begin to record in one of the modes; the milliseconds it took."""
    s.shut()
    begun = time.monotonic()
    if mode != "bare":
        s.open(Options(empty=mode == "empty")).add(program.pid)
    took = (time.monotonic() - begun) * 1e3
    s.step(0.05)
    return took


def _ask(s: Session, program: Program, line: str) -> list[float]:
    program.answer(line)
    told: list[float] = program.ready(60)["ns"]
    return told


def _own_processors() -> int:
    """Keep off one processor, which is the program's; its number."""
    available = sorted(os.sched_getaffinity(0))
    if len(available) > 1:
        os.sched_setaffinity(0, available[:-1])
    return available[-1]


def _pairs(run: Run, variant: str) -> None:
    with session(run, record=False) as s:
        cpu = _own_processors()
        program = s.start("loop", [binary(run, f"cost_loop_{variant}"), str(cpu)], run.env)
        program.ready()
        _ask(s, program, f"{BATCHES} {PAIRS}")
        times: dict[str, list[float]] = defaultdict(list)
        attach: list[float] = []
        lost = recorded = 0
        for number in range(ROUNDS):
            for mode in MODES[number % 3 :] + MODES[: number % 3]:
                took = _in_mode(s, mode, program)
                times[mode] += _ask(s, program, f"{BATCHES} {PAIRS}")
                if mode == "recording":
                    attach.append(took)
                    profile = s.profile()
                    lost += (
                        profile.completeness["events_lost"] + profile.completeness["stacks_lost"]
                    )
                    recorded += profile.total.alloc_objects
                    if number == 0:
                        complete(run, profile)
                        run.detail("attach", dict(profile.about))
        s.shut()
        run.detail("ns", times)
        _tell_pairs(run, variant, times)
        run.equal(f"{variant}: allocations recorded", recorded, ROUNDS * BATCHES * PAIRS)
        run.equal(f"{variant}: events and stacks lost", lost, 0)
        run.report(f"{variant}: attach and see the process, ms (median)", statistics.median(attach))
        run.equal("exit code", program.finish(), 0)


def _tell_pairs(run: Run, variant: str, times: dict[str, list[float]]) -> None:
    middle = {mode: statistics.median(times[mode]) / 1e3 for mode in MODES}
    least = {mode: min(times[mode]) / 1e3 for mode in MODES}
    for mode in MODES:
        run.report(f"{variant}: µs a pair, {mode} (median, least)", round(middle[mode], 3),
                   round(least[mode], 3))  # fmt: skip
    for one, other in (("empty", "bare"), ("recording", "empty"), ("recording", "bare")):
        run.report(
            f"{variant}: µs a pair, {one} beyond {other} (median, least)",
            round(middle[one] - middle[other], 3), round(least[one] - least[other], 3),
            "target of recording beyond empty: 6, later 3" if other == "empty" else "",
        )  # fmt: skip


@check("cost-pair", "cost", 150, alone=True)
def cost_pair(run: Run) -> None:
    _pairs(run, "shared")


@check("cost-pair-static", "cost", 150, alone=True)
def cost_pair_static(run: Run) -> None:
    _pairs(run, "static")


@check("cost-step", "cost", 200, alone=True)
def cost_step(run: Run) -> None:
    """A small training step, bare and recorded in turn."""
    with session(run, record=False) as s:
        program = s.start("steps", script(run, "torch_steps.py"), run.env)
        program.ready(120)
        for empty_every, name in ((0, "steady"), (10, "empties its cache every 10th step")):
            times: dict[str, list[float]] = defaultdict(list)
            attach: list[float] = []
            for number in range(8):
                for mode in ("bare", "recording")[:: 1 if number % 2 else -1]:
                    took = _in_mode(s, mode, program)
                    if mode == "recording":
                        attach.append(took)
                    times[mode] += _ask(s, program, f"{STEPS} {empty_every}")
            s.shut()
            _tell_steps(run, name, times)
            run.report(
                f"{name}: attach and see the process, ms (median)", statistics.median(attach)
            )
        run.equal("exit code", program.finish(), 0)


def _tell_steps(run: Run, name: str, times: dict[str, list[float]]) -> None:
    def told(reduce: Any) -> tuple[float, float]:
        return reduce(times["recording"]) / 1e3, reduce(times["bare"]) / 1e3

    for what, reduce in (("median", statistics.median), ("mean", statistics.fmean), ("least", min)):
        recorded, bare = told(reduce)
        run.report(f"{name}: µs a step, {what}", round(recorded, 1), round(bare, 1))
        run.report(f"{name}: ratio, {what}", round(recorded / bare, 4), "", "target 1.01")


@check("cost-first", "cost", 120, alone=True)
def cost_first(run: Run) -> None:
    """A new PyTorch process: from its first allocation to its first profile, and our memory."""
    with session(run, record=False) as s:
        empty = _memory()
        begun = time.monotonic()
        s.open()
        run.report("load and attach to the driver, ms", round((time.monotonic() - begun) * 1e3, 1))
        run.report("own memory before, MiB (RSS, anonymous)", *_memory_mib(empty))
        program = s.start("steps", script(run, "torch_steps.py"), run.env)
        while not s.events:
            s.step()
            program.read()
            if program._command.poll() is not None:
                program.ready(1)
        seen = time.monotonic_ns()
        first = s.profile()
        done = time.monotonic_ns()
        run.report("first allocation to seen, ms", (seen - s.events[0].time_ns) / 1e6)
        run.report("first allocation to first profile, ms", (done - s.events[0].time_ns) / 1e6, "",
                   "target 3,000")  # fmt: skip
        run.true("it has samples", bool(first.samples), len(first.samples))
        program.ready(120)
        begun = time.monotonic()
        s.profile()
        run.report("a profile after training began, ms", round((time.monotonic() - begun) * 1e3, 1))
        begun = time.monotonic()
        profile = s.profile()
        run.report("the next one, ms", round((time.monotonic() - begun) * 1e3, 1))
        run.report("samples", len(profile.samples))
        run.report("own memory with it, MiB (RSS, anonymous)", *_memory_mib(_memory()))
        used = time.process_time()
        end = time.monotonic() + 3
        while time.monotonic() < end:
            s.step()
        idle = round((time.process_time() - used) / 3 * 100, 2)
        run.report("own processor use while idle, %", idle, "", "target 0.5")
        complete(run, profile)
        run.equal("exit code", program.finish(), 0)


def _memory() -> dict[str, int]:
    """Of this process, in KiB: the harness itself is in it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return {name: int(fields[name].split()[0]) for name in ("VmRSS", "RssAnon")}


def _memory_mib(memory: dict[str, int]) -> tuple[float, float]:
    return round(memory["VmRSS"] / 1024, 1), round(memory["RssAnon"] / 1024, 1)
