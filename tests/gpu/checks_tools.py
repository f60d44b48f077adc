"""The command line's live view and HTML report, of PyTorch programs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from checks_agent import CONFIGURATION, phases
from common import gpumemprof, script, session
from compare import select, sums, torch_allocator
from results import Run, check

from gpumemprof.profile import pprof
from gpumemprof.profile.model import TYPE_NAMES
from gpumemprof.report import units

NAME = "gpu-top"


# Live


@check("top-torch", "agent", 90)
def top_torch(run: Run) -> None:
    """``gpumemprof top --count 3`` into a file, of all processes and of one, while a program begins
    to use CUDA."""
    with session(run, record=False) as s, contextlib.ExitStack() as stack:
        program = phases(run, s, NAME, "import", "take=256", "oom")
        program.ready(90)
        every = stack.enter_context(_top(run, "all"))
        one = stack.enter_context(_top(run, "one", "--pid", str(program.pid)))
        program.answer()
        held = program.ready()["reserved"][0]
        program.answer()
        program.ready()  # what did not fit
        for name, (process, text) in (("all", every), ("one", one)):
            run.equal(f"{name}: exit code of top", process.wait(40), 0)
            pictures = text.read_text().split("gpumemprof top")[1:]
            run.equal(f"{name}: pictures", len(pictures), 3)
            _row(run, name, program.pid, pictures[-1], held)
        _function(run, one[1].read_text().split("gpumemprof top")[-1], held)
        program.answer()
        run.equal("exit code of the program", program.finish(), 0)


@contextlib.contextmanager
def _top(run: Run, name: str, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """It runs, and has shown its first picture."""
    text = run.logs / f"top-{name}.txt"
    command = gpumemprof("top", "--count", "3", "--interval", "5", *options)
    with text.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        end = time.monotonic() + 30
        while not text.stat().st_size and process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        yield process, text
    finally:
        process.kill()
        process.wait()
        run.detail(f"what top wrote ({name})", text.read_text())


def _row(run: Run, name: str, pid: int, picture: str, held: int) -> None:
    found = re.search(rf"^ *{pid} .*$", picture, re.M)
    columns = re.split(r" {2,}", found[0].strip()) if found else [""] * 7
    run.true(f"{name}: a row of the process", bool(found), " ".join(columns))
    run.equal(f"{name}: in use, of PyTorch's reserved bytes", columns[1], units.size(held))
    run.true(f"{name}: its failures are told", columns[5].isdigit(), columns[5])
    run.true(f"{name}: its program is told", "gpu-top" in columns[6], columns[6])


def _function(run: Run, picture: str, held: int) -> None:
    """What holds it: the nearest Python function (the stand-in's allocator is one)."""
    name = r"CUDACachingAllocator\.segment" if run.stand_ins else "take"
    found = re.search(rf"^ *(\S+ [KMG]?i?B) .*\b{name}\b.*:\d+ *$", picture, re.M)
    run.true("one: the function that holds it", bool(found), found[0].strip() if found else "")
    run.equal("one: what it holds", found[1] if found else "", units.size(held))


# HTML


@check("html", "agent", 120)
def html(run: Run) -> None:
    """``record --format html``; and ``report --format html`` of a profile has the same totals."""
    page, file = run.logs / "torch.html", run.logs / "torch.pb.gz"
    steps = ["first", "take=64", *(() if run.stand_ins else ("train",)), "oom", "drop"]
    truth = _record(run, steps, "--format", "html", "-o", str(page))
    data = _embedded(page)
    run.report("torch.html, bytes", page.stat().st_size)
    ours = _of_allocator(data)
    run.equal("record --format html: allocations by the allocator, of PyTorch's",
              ours["alloc_objects"], truth[-1]["device_allocs"][0])  # fmt: skip
    run.equal("failed allocations in it", {each["requested"] for each in data["failures"]},
              {truth[steps.index("oom")]["asked"]})  # fmt: skip
    commands = [each["command"] for each in data["processes"]]
    run.true("its command in it", any("torch_phases.py" in x for x in commands), str(commands))

    truth = _record(run, steps, "-o", str(file))
    profile = pprof.decode(file.read_bytes())
    allocator = sums(select(profile, where=torch_allocator))
    run.equal("record: allocations by the allocator, of PyTorch's", allocator.alloc_count,
              truth[-1]["device_allocs"][0])  # fmt: skip
    again = run.logs / "torch-report.html"
    done = subprocess.run(
        gpumemprof("report", "--format", "html", "-o", str(again), str(file)),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    run.equal("report --format html: exit code", done.returncode, 0, done.stderr[-300:])
    data = _embedded(again)
    for column, name in enumerate(TYPE_NAMES):
        run.equal(f"report --format html: {name}, of the profile's",
                  sum(data["samples"]["values"][column]), profile.total[column])  # fmt: skip
    run.equal("its failures, of the profile's", data["failed"], len(profile.failures))
    run.equal("its allocations by the allocator", _of_allocator(data)["alloc_objects"],
              allocator.alloc_count)  # fmt: skip


def _record(run: Run, steps: list[str], *options: str) -> list[dict[str, Any]]:
    """Record the program to its end; what it told of itself."""
    command = gpumemprof("record", *options, "--", *script(run, "torch_phases.py", NAME, *steps))
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **run.env, **CONFIGURATION},
    )  # fmt: skip
    try:
        out, err = process.communicate("go\n" * len(steps), timeout=80)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate()
    (run.logs / f"record{'-html' if '--format' in options else ''}.out").write_text(out + err)
    run.equal("record: exit code", process.returncode, 0, err[-300:] if process.returncode else "")
    lines = [line for line in out.splitlines() if line.startswith("READY ")]
    return [json.loads(line.removeprefix("READY ")) for line in lines]


def _embedded(page: Path) -> dict[str, Any]:
    """The data of a report."""
    found = re.search(
        r'<script type="application/json" id="gpumemprof-data">(.*?)</script>',
        page.read_text(), re.S,
    )  # fmt: skip
    if found is None:
        raise RuntimeError(f"{page} has no data")
    data: dict[str, Any] = json.loads(found[1])
    return data


def _of_allocator(data: dict[str, Any]) -> Counter[str]:
    """Totals of the stacks of GPU memory that pass PyTorch's caching allocator."""
    strings, functions, frames = data["strings"], data["functions"], data["frames"]
    passes = [
        "CUDACachingAllocator" in strings[name]
        or strings[module].rsplit("/", 1)[-1].startswith("libc10_cuda")
        for name, module in zip(functions["name"], functions["module"], strict=True)
    ]
    within: list[bool] = []
    for node, (up, frame) in enumerate(
        zip(data["nodes"]["up"], data["nodes"]["frame"], strict=True)
    ):
        within.append(passes[frames["function"][frame]] or (up > 0 and within[node - up]))
    kinds = [strings[kind] for kind in data["labels"]["kind"]]
    totals: Counter[str] = Counter()
    samples = data["samples"]
    for position, (node, labels) in enumerate(zip(samples["node"], samples["labels"], strict=True)):
        if within[node] and kinds[labels] != data["pinned"]:
            for name, values in zip(data["types"], samples["values"], strict=True):
                totals[name] += values[position]
    return totals
