"""Helpers of the recording tests: programs on the stand-in libraries, and what they say is true."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpumemprof.probe.attach import AttachMode
from gpumemprof.probe.kernel_side import LoaderChoice
from gpumemprof.probe.loader import Options
from gpumemprof.process.launch import Command
from gpumemprof.profile.merge import GPU_KINDS, label
from gpumemprof.profile.model import Profile, Sample
from gpumemprof.recorder import Recorder, RecorderOptions

CHECKOUT = Path(__file__).parents[2]
FAKES = CHECKOUT / "build" / "fakes"
PATIENCE = 30.0
"""Seconds after which something that should have happened never will."""


def options(
    mode: AttachMode | None = None,
    *,
    record_all: bool = False,
    loader: LoaderChoice = LoaderChoice.AUTO,
) -> RecorderOptions:
    """Options for programs on the stand-in libraries."""
    probe = Options(mode=mode, record_all=record_all, loader=loader)
    return RecorderOptions(probe=probe, library_path=str(FAKES))


@contextmanager
def environment(**settings: str) -> Iterator[None]:
    """Environment of the programs that are started inside."""
    old = dict(os.environ)
    os.environ.update(LD_LIBRARY_PATH=str(FAKES), **settings)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(old)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A profile taken while the program still ran, and the program's own truth (JSON)."""

    profile: Profile
    truth: Mapping[str, Any]
    pid: int

    @property
    def device(self) -> Mapping[str, Any]:
        """The truth of device 0, by kind."""
        found: Mapping[str, Any] = self.truth["devices"][0]
        return found


def until(condition: Callable[[], object], step: Callable[[], object]) -> None:
    """Repeat ``step`` until the condition holds; fails when it never does."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("it never happened")
        step()


@contextmanager
def standard_output(fd: int) -> Iterator[None]:
    """Programs that are started inside write to ``fd``."""
    saved = os.dup(1)
    os.dup2(fd, 1)
    try:
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)


def record(
    tmp_path: Path,
    *arguments: str,
    program: str = "driver_loop",
    mode: AttachMode | None = None,
    loader: LoaderChoice = LoaderChoice.AUTO,
    settings: Mapping[str, str] | None = None,
) -> Recorded:
    """Run a program to its end under a recorder; the profile is of the moment before its exit.

    The programs print one line when they did their work and then hold for a second.
    """
    stats = tmp_path / "stats.%p.json"
    out = tmp_path / "out"
    with (
        environment(GPUMEMPROF_FAKE_STATS=str(stats), **(settings or {})),
        Recorder(options(mode, loader=loader)) as recorder,
        out.open("wb") as stdout,
    ):
        with standard_output(stdout.fileno()):
            command = Command([str(FAKES / program), *arguments, "--hold", "0.3"])
        recorder.add(command.pid)
        command.go()
        until(lambda: out.stat().st_size > 0 or command.poll() is not None, recorder.step)
        profile = recorder.profile()
        until(lambda: command.poll() is not None, recorder.step)
        assert command.poll() == 0, out.read_text()
        command.close()
    path = tmp_path / f"stats.{command.pid}.json"
    return Recorded(profile, json.loads(path.read_text()), command.pid)


def samples(profile: Profile, *, kinds: set[str] | None = None, **labels: str) -> list[Sample]:
    """Samples of the given kinds (GPU memory by default) that have all of the labels."""
    chosen = kinds or set(GPU_KINDS)
    return [
        sample
        for sample in profile.samples
        if label(sample.labels, "kind") in chosen
        and all(label(sample.labels, name) == value for name, value in labels.items())
    ]


def total(found: list[Sample], name: str) -> int:
    """The sum of one sample type."""
    return sum(getattr(sample.values, name) for sample in found)


def command_line(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run ``gpumemprof`` as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "gpumemprof", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "LD_LIBRARY_PATH": str(FAKES), **settings},
    )
