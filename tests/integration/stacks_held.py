"""Programs whose hooked calls stop inside, so that another tool can look at the same stack.

``stacks_hold.c`` is preloaded: it stops every ``cudaMalloc`` until it is told to go on. The probes
took the stack at the entry of that call; whatever looks in between sees the same frames.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

from gpumemprof.probe.events import StackEvent
from gpumemprof.process.identity import ProcessId
from gpumemprof.process.launch import Command
from gpumemprof.recorder import Recorder
from gpumemprof.stack.frames import Stack
from gpumemprof.stack.merge import FrameMode
from gpumemprof.stack.unwind import Registers
from tests.integration.recording import FAKES, PATIENCE, environment, options, until

NATIVE = Path(__file__).parents[1] / "fakes" / "native"
_QUIET = 0.15
"""Seconds without another thread that stops, after which those that did are looked at."""

View = TypeVar("View")


@dataclass(frozen=True)
class Compared(Generic[View]):
    """One stack: ours, and what the other tool saw while the call lasted.

    ``lookups``: the address that each native frame was named by, leaf first.
    """

    stack: Stack
    lookups: tuple[int, ...]
    other: View


def build_hold(directory: Path) -> Path:
    """The library to preload."""
    library = directory / "stacks_hold.so"
    subprocess.run(
        ["gcc", "-O2", "-shared", "-fPIC", "-s", "-o", library, NATIVE / "stacks_hold.c",
         FAKES / "libcuda.so.1"],
        check=True,
    )  # fmt: skip
    return library


class _Held:
    """The pipes between a program's calls and us."""

    def __init__(self) -> None:
        self.told, self.tell = os.pipe()
        self.wait, self.go = os.pipe()
        os.set_inheritable(self.tell, True)
        os.set_inheritable(self.wait, True)

    def arrived(self, seconds: float) -> list[tuple[int, str]]:
        """Threads that stopped since the last call, and where."""
        if not select.select([self.told], [], [], seconds)[0]:
            return []
        lines = os.read(self.told, 1 << 16).decode().splitlines()
        return [(int(thread), where) for thread, where in map(str.split, lines)]

    def close(self) -> None:
        for fd in (self.told, self.tell, self.wait, self.go):
            os.close(fd)


def _captured(recorder: Recorder, thread: int) -> StackEvent:
    """What the kernel sent of the call that a thread is in."""
    waiting = recorder._inbox._stacks
    until(lambda: waiting.get(thread), recorder.step)
    return waiting[thread][-1]


def _counts(found: Mapping[int, Sequence[object]]) -> dict[int, int]:
    return {thread: len(ones) for thread, ones in found.items()}


@contextlib.contextmanager
def _true_return_addresses(pid: int, calls: Sequence[StackEvent]) -> Iterator[None]:
    """As long as a call lasts, a return probe has the kernel's trampoline stand in the place of its
    return address, and every tool that looks at the stack ends there. Put back what the call's
    caller left there, which is a word that the kernel read before, for the others to see."""
    with Path(f"/proc/{pid}/mem").open("r+b", buffering=0) as memory:
        before = []
        for call in calls:
            memory.seek(call.registers[1])
            before.append(memory.read(8))
            memory.seek(call.registers[1])
            memory.write(call.window[:8])
        try:
            yield
        finally:
            for call, word in zip(calls, before, strict=True):
                memory.seek(call.registers[1])
                memory.write(word)


def watch(
    command: Sequence[str],
    look: Callable[[int, Sequence[int]], dict[int, View]],
    hold: Path,
    *,
    frames: FrameMode = FrameMode.NATIVE,
    libraries: Path = FAKES,
    inside: Path | None = None,
    **settings: str,
) -> list[Compared[View]]:
    """Run a program to its end; ``look`` (process, threads) is called whenever calls are held and
    tells by thread what the other tool sees.

    ``libraries``: where the stand-ins are for us; ``inside``: where the program sees them.
    """
    held = _Held()
    seen: dict[int, list[View]] = defaultdict(list)
    recorded: dict[int, list[tuple[int, tuple[int, ...]]]] = defaultdict(list)
    preload = (inside or hold.parent) / hold.name
    if inside is not None:
        shutil.copy(hold, libraries)
    chosen = replace(options(), frames=frames, full_names=True, library_path=str(libraries))
    with environment(), Recorder(chosen) as recorder, ThreadPoolExecutor(1) as pool:
        intern = recorder.stacks.intern

        def listen(event: StackEvent, process: ProcessId) -> int:
            number = intern(event, process)
            unwinder = recorder.stacks._tracked[process].unwinder
            unwound = unwinder.unwind(Registers(*event.registers), event.window)
            recorded[event.tid].append((number, unwound.lookups))
            return number

        recorder.stacks.intern = listen  # type: ignore[method-assign]
        program = Command(
            [
                "env",
                f"LD_LIBRARY_PATH={inside or libraries}",
                f"LD_PRELOAD={preload}",
                f"STACKS_TELL={held.tell}",
                f"STACKS_GO={held.wait}",
                *(f"{name}={value}" for name, value in settings.items()),
                *command,
            ]
        )
        recorder.add(program.pid)
        program.go()
        deadline = time.monotonic() + 2 * PATIENCE
        while program.poll() is None:
            assert time.monotonic() < deadline, "the program does not end"
            recorder.step(0.005)
            stopped = held.arrived(0)
            while stopped and (more := held.arrived(_QUIET)):
                stopped += more
            threads = [thread for thread, where in stopped if where == "cudaMalloc"]
            if threads:
                calls = [_captured(recorder, thread) for thread in threads]
                with _true_return_addresses(program.pid, calls):
                    looking = pool.submit(look, program.pid, threads)
                    while not looking.done():
                        recorder.step(0.02)
                views = looking.result()
                for thread in threads:
                    seen[thread].append(views[thread])
            elif stopped:
                until(lambda: _counts(recorded) == _counts(seen), recorder.step)
            os.write(held.go, b"g" * len(stopped))
        assert program.poll() == 0, f"the program ended with {program.poll()}"
        recorder.drain()
        program.close()
        held.close()
        assert _counts(recorded) == _counts(seen)
        return [
            Compared(recorder.stacks.resolve(number), lookups, view)
            for thread, stacks in recorded.items()
            for (number, lookups), view in zip(stacks, seen[thread], strict=True)
        ]
