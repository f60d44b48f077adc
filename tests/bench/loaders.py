"""What the two loaders take: time to load and attach, memory, cost of a call once attached."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpumemprof.errors import ProbeError
from gpumemprof.probe.attach import AttachMode
from gpumemprof.probe.kernel_side import LoaderChoice
from gpumemprof.probe.loader import Options, Probes
from gpumemprof.process.libraries import LibraryProber, installed_libraries
from tests.bench import load

ROUNDS = 5
CHOICES = (LoaderChoice.LIBBPF, LoaderChoice.BCC)


def _once(loader: LoaderChoice) -> dict[str, Any]:
    """Seconds and KiB, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.loaders", loader.value],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _measure(loader: LoaderChoice) -> dict[str, Any]:
    began = time.monotonic()
    with Probes(Options(loader=loader)) as probes:
        loaded = time.monotonic()
        prober = LibraryProber(probes.attach)
        for path in installed_libraries(str(load.FAKES)):
            prober.probe_path(path)
        attached = time.monotonic()
        status = Path("/proc/self/status").read_text()
        found = {
            "name": probes.loader,
            "load": loaded - began,
            "attach": attached - loaded,
            "calls": sum(len(file.calls) for file in prober.probed),
            "resident": int(status.split("VmRSS:")[1].split()[0]),
            "compiler": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss,
        }
        prober.close()
    return found


def report() -> Iterator[str]:
    """Lines of the table."""
    from tests.bench import pair_cost  # not in the processes whose memory is measured

    yield (
        "| loader | load | attach | memory | of the compiler, while it loads "
        "| a pair, beyond empty probes |"
    )
    yield "|---|---|---|---|---|---|"
    for loader in CHOICES:
        try:
            Probes(Options(loader=loader)).close()
        except ProbeError as error:
            yield f"| {loader.value} | | | | | {error} |"
            continue
        found = [_once(loader) for _ in range(ROUNDS)]
        best = {name: min(one[name] for one in found) for name in ("load", "attach")}
        one = found[0]
        costs = pair_cost.measure(AttachMode.SESSION, loader)
        beyond = (costs["recording"].best - costs["empty"].best) / 1000
        compiler = f"{one['compiler'] >> 10} MiB" if loader is LoaderChoice.BCC else ""
        yield (
            f"| {one['name']} | {best['load']:.2f} s | {best['attach'] * 1000:.0f} ms for "
            f"{one['calls']} calls | {one['resident'] >> 10} MiB | {compiler} | {beyond:.2f} µs |"
        )


if __name__ == "__main__":
    print(json.dumps(_measure(LoaderChoice(sys.argv[1]))))
