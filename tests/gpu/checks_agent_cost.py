"""What the agent costs a node: processor and memory, beside eight programs with contexts."""

from __future__ import annotations

import statistics
import time

from checks_agent import complete, phases
from common import session
from node_agent import Agent, agent, settled
from results import Run, check
from session import Program, Session

from gpumemprof.probe.loader import Options

PROCESSES = 8
SECONDS = 30


@check("agent-cost", "agent", 150, alone=True)
def agent_cost(run: Run) -> None:
    """Told beside the targets of the design."""
    with session(run, record=False) as s:
        with agent(run, interval="15s") as a:
            run.report("starting: processor, s", round(sum(a.cpu()), 2))
            _tell_memory(run, a, "before any program")
            programs = [
                phases(run, s, f"gpu-idle-{number}", "take=1", "take=1")
                for number in range(PROCESSES)
            ]
            for program in programs:
                program.ready(90)
            _all_seen(run, a, programs)
            run.report("with all programs begun: processor since the start, s",
                       round(sum(a.cpu()), 2))  # fmt: skip
            _idle(run, a)
            for what, ask in (("/metrics", lambda: a.memory("gpu-idle-0", "allocations_total")),
                              ("a profile", lambda: a.pprof("gpu-idle-0"))):  # fmt: skip
                before = sum(a.cpu())
                for _ in range(10):
                    ask()
                run.report(f"{what}: processor, ms", round((sum(a.cpu()) - before) * 100, 1))
            _tell_memory(run, a, "in the end")
            complete(run, a)
            run.equal("exit code of the agent", a.stop(), 0)
        _switch(run, s, programs)
        for program in programs:
            program.answer()
            program.ready()
            run.equal("exit code of a program", program.finish(), 0)


def _all_seen(run: Run, a: Agent, programs: list[Program]) -> None:
    def seen() -> int:
        return sum(bool(a.memory(each.name, "memory_in_use_bytes")) for each in programs)

    run.equal("programs that are told", settled(seen, len(programs).__eq__), len(programs))


def _idle(run: Run, a: Agent) -> None:
    """Nothing happens, two intervals end."""
    time.sleep(2 if run.stand_ins else 16)
    seconds = 4 if run.stand_ins else SECONDS
    begun, before = time.monotonic(), a.cpu()
    time.sleep(seconds)
    passed, after = time.monotonic() - begun, a.cpu()
    used = [(now - then) / passed * 100 for now, then in zip(after, before, strict=True)]
    run.report(f"idle: % of a processor over {seconds} s", round(sum(used), 2), "", "target 0.5")
    run.report("idle: of it user and system", round(used[0], 2), round(used[1], 2))
    _tell_memory(run, a, f"idle with {PROCESSES} programs")


def _tell_memory(run: Run, a: Agent, when: str) -> None:
    memory = a.memory_mib()
    run.report(f"{when}: resident, MiB", memory["VmRSS"], "", "target 150 with 8 programs")
    run.report(f"{when}: of it anonymous, and most so far, MiB", memory["RssAnon"],
               memory["VmHWM"])  # fmt: skip


def _switch(run: Run, s: Session, programs: list[Program]) -> None:
    """What a switch of a namespace costs the agent, for each process in it."""
    recorder = s.open(Options())
    first = [recorder.add(program.pid) for program in programs]
    times: dict[str, list[float]] = {"off": [], "on": []}
    for _ in range(5):
        for word, switch in (("off", recorder.switch_off), ("on", recorder.switch_on)):
            for process in first:
                begun = time.perf_counter()
                switch(process)
                times[word].append((time.perf_counter() - begun) * 1e3)
    s.shut()
    for word, took in times.items():
        run.report(f"switched {word}: ms a process (median, most)",
                   round(statistics.median(took), 2), round(max(took), 2))  # fmt: skip
