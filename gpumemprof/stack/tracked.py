"""What the resolver knows of one process, and a stack between its capture and its names."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from gpumemprof.errors import GpumemprofError
from gpumemprof.process.pace import Pace
from gpumemprof.stack.frames import Frame
from gpumemprof.stack.holding import Holding
from gpumemprof.stack.python.frames import PythonFrames, Run
from gpumemprof.stack.python.interpreter import Interpreter
from gpumemprof.stack.python.memory import CopiedMemory, ProcessMemory
from gpumemprof.stack.unwind import ProcessImage, Unwinder


@dataclass(slots=True)
class RawStack:
    """A stack before it has symbols. ``places``: (code file id, address in it), leaf first."""

    holding: Holding
    places: tuple[tuple[int, int], ...]
    evaluates: tuple[bool, ...]
    runs: tuple[Run, ...]
    interpreter: str
    notes: tuple[Frame, ...]


@dataclass(slots=True)
class Tracked:
    """What is known of one process."""

    image: ProcessImage
    unwinder: Unwinder
    holding: Holding
    interpreter: Interpreter | None = None
    python: PythonFrames | None = None
    memory: ProcessMemory | CopiedMemory | None = None
    python_seen: set[int] = field(default_factory=set)
    """Hashes of Python stacks whose code objects were read."""
    problem: str = ""
    """Why its interpreter cannot be read, the last time it was tried: a process that is just
    calling exec or ending is tried in vain, and it does not matter."""
    silent: bool = False
    """Its memory or its interpreter's file does not answer."""
    known: dict[tuple[object, ...], int] = field(default_factory=dict)

    def runs(
        self, interpreter: Interpreter, memory: ProcessMemory | CopiedMemory, code_bytes: int
    ) -> Mapping[str, int]:
        """The process runs Python. Returns what the kernel is to be told of it."""
        self.interpreter, self.memory = interpreter, memory
        self.python = PythonFrames(
            memory,
            interpreter.layout,
            interpreter.code_type,
            interpreter.none,
            code_bytes=code_bytes,
        )
        return asdict(interpreter.target)


class RefreshOnMiss:
    """Reads the mappings again when an address is in none, since libraries are loaded at any
    time; not more often than it may help."""

    def __init__(self) -> None:
        self._pace = Pace()

    def __call__(self, image: ProcessImage) -> None:
        """An address of this image is in no mapping that is known."""
        if self._pace.ready:
            # If the process ended, what is known stays.
            with self._pace, contextlib.suppress(GpumemprofError):
                image.refresh()


def python_counts(tracked: Tracked) -> dict[str, int]:
    """What could not be told of its Python frames, by counter."""
    if tracked.python is None:
        return {}
    return {f"python_{name}": number for name, number in asdict(tracked.python.counts).items()}
