"""What a cudaMalloc/cudaFree pair costs: bare, with probes that do nothing, recorded.

All in one run, in turn, in short batches: on shared processors a long batch measures the
neighbours. The figure that compares is recording minus empty probes at the same places; the
absolute ones depend on what a breakpoint costs on this machine.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from gpumemprof.errors import ProbeError
from gpumemprof.probe.attach import AttachMode
from gpumemprof.probe.kernel_side import LoaderChoice
from gpumemprof.probe.loader import Options, Probes
from gpumemprof.process.libraries import LibraryProber, installed_libraries
from gpumemprof.recorder import Recorder, RecorderOptions
from tests.bench import load

ROUNDS = 7
ARGUMENTS = (
    "--pairs", "20000", "--batch", "200", "--depth", "30", "--cpu", str(load.PROGRAM_CPU),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cost:
    """Nanoseconds a pair: the best batch, and the median over the rounds of their medians."""

    best: float
    median: float


def _run() -> dict[str, float]:
    process = load.start(*ARGUMENTS)
    figures: dict[str, float] = load.result(process)["ns_per_pair"]
    return figures


@contextlib.contextmanager
def _empty(mode: AttachMode, loader: LoaderChoice) -> Iterator[None]:
    with Probes(Options(mode=mode, loader=loader, empty=True)) as probes:
        prober = LibraryProber(probes.attach)
        for path in installed_libraries(str(load.FAKES)):
            prober.probe_path(path)
        yield
        prober.close()


@contextlib.contextmanager
def _recording(mode: AttachMode, loader: LoaderChoice) -> Iterator[None]:
    options = RecorderOptions(
        probe=Options(mode=mode, loader=loader, record_all=True), library_path=str(load.FAKES)
    )
    with Recorder(options) as recorder:
        stop = threading.Event()

        def loop() -> None:
            while not stop.is_set():
                recorder.step()

        thread = threading.Thread(target=loop)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def _cost(figures: list[dict[str, float]]) -> Cost:
    return Cost(min(f["min"] for f in figures), statistics.median(f["median"] for f in figures))


def measure(mode: AttachMode, loader: LoaderChoice = LoaderChoice.AUTO) -> dict[str, Cost]:
    """Costs of ``bare``, ``empty`` and ``recording``. Raises ProbeError if the kernel refuses."""
    found: dict[str, list[dict[str, float]]] = {"bare": [], "empty": [], "recording": []}
    for _ in range(ROUNDS):
        found["bare"].append(_run())
        with _empty(mode, loader):
            found["empty"].append(_run())
        with _recording(mode, loader):
            found["recording"].append(_run())
    return {name: _cost(figures) for name, figures in found.items()}


def report() -> Iterator[str]:
    """Lines of the table."""
    yield "| attach | bare | empty probes | recording | beyond empty probes |"
    yield "|---|---|---|---|---|"
    for mode in (AttachMode.SESSION, AttachMode.MULTI, AttachMode.SINGLE):
        try:
            costs = measure(mode)
        except (ProbeError, subprocess.SubprocessError) as error:
            yield f"| {mode.value} | | | | {error} |"
            continue
        bare, empty, recording = costs["bare"], costs["empty"], costs["recording"]
        yield (
            f"| {mode.value} | {_us(bare)} | {_us(empty)} | {_us(recording)} | "
            f"**{(recording.best - empty.best) / 1000:.2f}** / "
            f"{(recording.median - empty.median) / 1000:.2f} |"
        )


def _us(cost: Cost) -> str:
    return f"{cost.best / 1000:.2f} / {cost.median / 1000:.2f}"
