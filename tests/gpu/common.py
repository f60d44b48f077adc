"""What several checks do alike."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from compare import GPU_KINDS, label, largest, select, sums
from results import Run, Skipped
from session import Program, Session

from gpumemprof.profile.model import Profile

LOST = (
    "events_lost", "stacks_lost", "stack_no_buffer", "double", "abandoned", "out_unreadable",
    "in_unreadable", "calls_unreadable", "replaced", "untracked", "stacks_merged",
)  # fmt: skip
"""Counters that have to stay zero while a machine is not overloaded."""


def binary(run: Run, name: str) -> str:
    """A compiled program. Raises Skipped where it could not be built."""
    path = run.binaries / name
    if not path.exists():
        raise Skipped(f"{name} was not built: see logs/build.log")
    return str(path)


def script(run: Run, name: str, *arguments: str) -> list[str]:
    """The command line of a Python program of ours, under the frameworks' python."""
    return [run.python, "-u", str(run.programs / name), *arguments]


def gpumemprof(*arguments: str) -> list[str]:
    """The command line of gpumemprof itself, with the python and the modules that we run with."""
    path = os.pathsep.join(each for each in sys.path if each)
    return [sys.executable, "-E", "-s", "-S", "-c", _CLI, path, *arguments]


_CLI = """import os, sys
sys.path[:1] = sys.argv.pop(1).split(os.pathsep)
from gpumemprof.cli.main import main
sys.exit(main())"""


def session(run: Run, *, record: bool = True) -> Session:
    """A recorder whose programs log beside the others'."""
    return Session(run.logs, run.name, record=record)


def complete(run: Run, profile: Profile) -> None:
    """Nothing was lost; what could not be resolved is told."""
    for name in LOST:
        if profile.completeness.get(name):
            run.equal(f"lost: {name}", profile.completeness[name], 0)
    others = {k: v for k, v in profile.completeness.items() if v and k not in LOST}
    run.report("other counters", ", ".join(f"{k} {v}" for k, v in others.items()) or "all zero")
    notes = {
        frame.name: sample
        for sample in profile.samples
        for frame in sample.stack
        if frame.name.startswith("[") and frame.kind.value == "note"
    }
    run.detail(f"notes in stacks ({len(run.rows)})", sorted(notes))
    run.detail("about", dict(profile.about))


def reconcile(
    run: Run,
    session: Session,
    profile: Profile,
    program: Program,
    phase: str,
    *,
    strict: bool = True,
) -> None:
    """What NVML attributes to the process, what was tracked, and the difference."""
    driver = session.driver_bytes(program.pid)
    tracked = sums(select(profile, program.pid)).bytes
    if driver is None:
        run.report(f"{phase}: tracked", tracked, "", "NVML tells nothing of this process")
        return
    if strict:
        run.at_most(f"{phase}: tracked, of NVML's bytes", tracked, driver)
    else:
        run.report(f"{phase}: tracked, of NVML's bytes", tracked, driver)


def device_labels(run: Run, profile: Profile, program: Program, phase: str) -> None:
    """All GPU memory is on a known device."""
    devices: dict[str, int] = {}
    for sample in select(profile, program.pid):
        if sample.values.inuse_space:
            name = label(sample, "device")
            devices[name] = devices.get(name, 0) + sample.values.inuse_space
    run.equal(f"{phase}: devices of what is held", sorted(devices), ["0"] if devices else [])


def by_kind(run: Run, profile: Profile, program: Program, truth: dict[str, Any]) -> None:
    """Each kind of memory is exactly what the program says it holds."""
    phase = truth["phase"]
    for kind in sorted((*GPU_KINDS, "pinned_host")):
        ours = sums(select(profile, program.pid, kinds=(kind,)))
        theirs = truth[kind]
        run.equal(f"{phase}: {kind} bytes", ours.bytes, theirs["bytes"])
        run.equal(f"{phase}: {kind} allocations", ours.count, theirs["count"])


def remainder(run: Run, profile: Profile, program: Program, phase: str, where: Any) -> None:
    """What is held beside the framework's pool, by stack."""
    rest = list(select(profile, program.pid, where=lambda stack: not where(stack)))
    total = sums(rest)
    run.report(f"{phase}: held beside the pool", total.bytes, "", f"{total.count} allocations")
    run.detail(f"{phase}: beside the pool", largest(rest))


def end(run: Run, program: Program, session: Session) -> None:
    """The program ends well and then holds nothing."""
    run.equal("exit code", program.finish(), 0)
    profile = session.profile()
    run.equal("held after its exit", sums(select(profile, program.pid)).bytes, 0)
    complete(run, profile)


def source_line(path: Path, mark: str) -> int:
    """The line of a program that carries a mark."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if mark in line:
            return number
    raise AssertionError(f"no {mark} in {path}")
