"""Short Python programs that make CUDA calls on the stand-in libraries, under a recorder."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpumemprof.probe.attach import AttachMode
from gpumemprof.process.launch import Command
from gpumemprof.recorder import Recorder
from tests.integration.recording import environment, options, until

PRELUDE = '''
import ctypes, os, sys, threading, time
from pathlib import Path
cuda = ctypes.CDLL("libcuda.so.1")
runtime = ctypes.CDLL("libcudart.so.12")
MIB = 1 << 20
here = Path(sys.argv[1])


def wide(arguments):
    return [ctypes.c_uint64(a) if isinstance(a, int) else a for a in arguments]


def call(name, *arguments):
    """Must succeed."""
    error = getattr(runtime if name.startswith("cuda") else cuda, name)(*wide(arguments))
    assert error == 0, f"{name}: {error}"


def new(name, *arguments):
    """What the call writes through its first argument."""
    out = ctypes.c_uint64()
    call(name, ctypes.byref(out), *arguments)
    return out.value


def reach(name):
    """Tell the test that this place was reached, and wait until it lets us go on."""
    (here / name).touch()
    deadline = time.monotonic() + 60  # the test may have failed
    while not (here / f"{name}.seen").exists():
        if time.monotonic() > deadline:
            os._exit(1)
        time.sleep(0.005)


'''


class Script:
    """A program that runs, and its recorder."""

    def __init__(self, recorder: Recorder, command: Command, here: Path) -> None:
        self.recorder, self.command, self._here = recorder, command, here

    @property
    def pid(self) -> int:
        return self.command.pid

    def at(self, name: str) -> None:
        """Record until the program reaches this place; it waits there."""
        place = self._here / name
        until(lambda: place.exists() or self.command.poll() is not None, self.recorder.step)
        assert place.exists(), "the program ended before it"
        self.recorder.drain()

    def go_on(self, name: str) -> None:
        (self._here / f"{name}.seen").touch()

    def finish(self) -> None:
        until(lambda: self.command.poll() is not None, self.recorder.step)
        assert self.command.poll() == 0


@contextmanager
def running(
    here: Path, body: str, mode: AttachMode | None = None, **settings: str
) -> Iterator[Script]:
    """The program ``body``, recorded from its first call on; at last it reaches ``end``."""
    path = here / "script.py"
    path.write_text(PRELUDE + textwrap.dedent(body) + "\nreach('end')\n")
    with environment(**settings), Recorder(options(mode)) as recorder:
        command = Command([sys.executable, str(path), str(here)])
        try:
            recorder.add(command.pid)
            command.go()
            yield Script(recorder, command, here)
        finally:
            command.send(9)
            command.close()
