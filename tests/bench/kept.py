"""How many events are kept: several processes at a given rate, and as fast as they can."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator

from gpumemprof.probe.loader import Options
from gpumemprof.recorder import Recorder, RecorderOptions
from tests.bench import load

PROCESSES = 8
SECONDS = 5


def _measure(rate: float) -> tuple[int, dict[str, int], float, int]:
    options = RecorderOptions(probe=Options(record_all=True), library_path=str(load.FAKES))
    with Recorder(options) as recorder:
        cpu = time.process_time()
        each = rate / PROCESSES if rate else 0
        pairs = str(int(each * SECONDS)) if rate else "20000"
        arguments = ["--pairs", pairs, "--depth", "30", "--batch", "50"]
        if rate:
            arguments += ["--rate", str(each)]
        began = time.monotonic()
        running = [load.start(*arguments) for _ in range(PROCESSES)]
        while any(process.poll() is None for process in running):
            recorder.step()
        seconds = time.monotonic() - began
        recorder.drain()
        made = sum(load.result(process)["pairs"] for process in running)
        counters = recorder.probes.counters()
        counted = sum(a.alloc_count for a in recorder.ledger.snapshot().aggregates)
        share = (time.process_time() - cpu) / seconds
        return made, {**counters, "counted": counted, "per_s": int(made / seconds)}, share, 0


def report() -> Iterator[str]:
    """Lines of the table."""
    yield "| load | pairs made | pairs/s | counted | events lost | stacks lost | recorder CPU |"
    yield "|---|---|---|---|---|---|---|"
    for label, rate in (("5,000/s of 8 processes", 5000.0), ("8 processes unlimited", 0.0)):
        made, found, share, _ = _measure(rate)
        yield (
            f"| {label} | {made:,} | {found['per_s']:,} | {found['counted']:,} | "
            f"{found['events_lost']:,} | {found['stacks_lost'] + found['stack_no_buffer']:,} | "
            f"{share:.0%} of a core |"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield ""
    yield f"Most memory this process held: {peak >> 10} MiB resident."
