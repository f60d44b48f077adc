"""A recorder and the programs it records: held until recorded, stopped at READY, let go again."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from compare import Taken, Where

from gpumemprof.ledger.events import (
    Allocated,
    AllocationFailed,
    LedgerEvent,
    MemoryKind,
    PhysicalCreated,
)
from gpumemprof.probe.loader import Options
from gpumemprof.process.gpu import Nvml
from gpumemprof.process.launch import Command
from gpumemprof.profile.model import Profile
from gpumemprof.recorder import Recorder, RecorderOptions

READY = "READY "


class ProgramFailed(Exception):
    """The program ended, or did not get ready in time; carries the end of its output."""


class Program:
    """A program of a check. It prints ``READY {json}`` and waits for a line on stdin."""

    def __init__(
        self, session: Session, name: str, argv: Sequence[str], env: Mapping[str, str]
    ) -> None:
        self.name, self._session = name, session
        self.output, self.errors = session.log_path(name, "out"), session.log_path(name, "err")
        self.output.write_bytes(b"")
        child_in, self._stdin = os.pipe()
        self._stdout, child_out = os.pipe()
        child_err = os.open(self.errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        with _as_standard(child_in, child_out, child_err), _environment(env):
            self._command = Command(argv)
        for fd in (child_in, child_out, child_err):
            os.close(fd)
        os.set_blocking(self._stdout, False)
        self._buffer = b""
        self._ready: list[dict[str, Any]] = []
        self.pid = self._command.pid

    def go(self) -> None:
        """Let it exec."""
        self._command.go()

    def answer(self, line: str = "go") -> None:
        """Let it go on from READY."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._stdin, line.encode() + b"\n")

    def read(self) -> None:
        """Take what it printed; never waits."""
        while True:
            try:
                part = os.read(self._stdout, 65536)
            except BlockingIOError:
                return
            if not part:
                return
            with self.output.open("ab") as file:
                file.write(part)
            self._buffer += part
            *lines, self._buffer = self._buffer.split(b"\n")
            for line in lines:
                text = line.decode(errors="replace")
                if text.startswith(READY):
                    self._ready.append(json.loads(text.removeprefix(READY)))

    def ready(self, seconds: float = 180) -> dict[str, Any]:
        """Record until its next READY; what it tells of itself."""
        end = time.monotonic() + seconds
        while True:
            self._session.step()
            self.read()
            if self._ready:
                return self._ready.pop(0)
            code = self._command.poll()
            if code is not None:
                self.read()
                if self._ready:
                    return self._ready.pop(0)
                raise ProgramFailed(f"{self.name} ended with {code}: {self.tail()}")
            if time.monotonic() > end:
                raise ProgramFailed(f"{self.name} was not ready in {seconds:g} s: {self.tail()}")

    def finish(self, seconds: float = 60) -> int:
        """Let it go on and record to its end; its exit code. Killed when it does not end."""
        self.answer()
        with contextlib.suppress(OSError):
            os.close(self._stdin)
        end = time.monotonic() + seconds
        while (code := self._command.poll()) is None:
            self._session.step()
            self.read()
            if time.monotonic() > end:
                self._command.send(signal.SIGKILL)
                raise ProgramFailed(f"{self.name} did not end in {seconds:g} s: {self.tail()}")
        self._session.step(0.1)
        return code

    def kill(self) -> None:
        """Whatever it does now."""
        with contextlib.suppress(OSError):
            self._command.send(signal.SIGKILL)
        self._command.close()

    def tail(self) -> str:
        """The end of what it wrote on stderr."""
        text = self.errors.read_text(errors="replace").strip()
        return text[-1500:] or "(nothing on stderr)"


class Session:
    """Programs under one recorder, with a log of every allocation. Use as a context manager."""

    def __init__(self, logs: Path, prefix: str, *, record: bool = True) -> None:
        self._logs, self._prefix = logs, prefix
        self.recorder: Recorder | None = None
        self.programs: list[Program] = []
        self.events: list[Allocated | PhysicalCreated | AllocationFailed] = []
        self._nvml = Nvml()
        if record:
            self.open()

    def open(self, options: Options | None = None) -> Recorder:
        """Begin to record."""
        recorder = Recorder(
            RecorderOptions(
                probe=options or Options(),
                library_path=os.environ.get("LD_LIBRARY_PATH", ""),
            )
        )
        self._log(recorder)
        self.recorder = recorder
        return recorder

    def _log(self, recorder: Recorder) -> None:
        apply = recorder.ledger.apply

        def logged(event: LedgerEvent) -> None:
            if isinstance(event, Allocated | PhysicalCreated | AllocationFailed):
                self.events.append(event)
            apply(event)

        recorder.ledger.apply = logged  # type: ignore[method-assign]

    def shut(self) -> None:
        """Stop recording; the programs go on."""
        if self.recorder is not None:
            self.recorder.close()
            self.recorder = None

    def log_path(self, name: str, ending: str) -> Path:
        """Where a program's output goes."""
        return self._logs / f"{self._prefix}-{name}.{ending}"

    def start(
        self,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        record: bool = True,
    ) -> Program:
        """Start a program, recorded from its first call on."""
        program = Program(self, name, argv, env or {})
        self.programs.append(program)
        if record and self.recorder is not None:
            self.recorder.add(program.pid)
        program.go()
        return program

    def step(self, seconds: float = 0.02) -> None:
        """Record for a moment, or wait."""
        if self.recorder is None:
            time.sleep(seconds)
        else:
            self.recorder.step(seconds)

    def profile(self) -> Profile:
        """What was recorded until now."""
        if self.recorder is None:
            raise RuntimeError("not recording")
        self.recorder.step(0.05)
        return self.recorder.profile()

    def driver_bytes(self, pid: int) -> int | None:
        """What NVML attributes to a process."""
        return self._nvml.process_bytes().get(pid)

    def gpus(self) -> list[Any]:
        """The GPUs as NVML tells them."""
        return self._nvml.gpus()

    def taken(self, pid: int, where: Where | None = None) -> list[Taken]:
        """Every GPU allocation of a process so far, in the order of time."""
        if self.recorder is None:
            raise RuntimeError("not recording")
        resolve = self.recorder.stacks.resolve
        found = (
            Taken(event.size, resolve(event.stack))
            for event in self.events
            if not isinstance(event, AllocationFailed)
            and event.process.pid == pid
            and event.kind is not MemoryKind.PINNED_HOST
        )
        return [one for one in found if where is None or where(one.stack)]

    def __enter__(self) -> Session:
        """Nothing to do."""
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """End programs and recording."""
        for program in self.programs:
            program.kill()
        self.shut()
        self._nvml.close()


class _as_standard(contextlib.AbstractContextManager[None]):  # noqa: N801
    """The descriptors are stdin, stdout and stderr meanwhile: what a forked child inherits."""

    def __init__(self, *fds: int) -> None:
        self._fds = fds

    def __enter__(self) -> None:
        self._saved = [os.dup(number) for number in range(3)]
        for number, fd in enumerate(self._fds):
            os.dup2(fd, number)

    def __exit__(self, *_: object) -> None:
        for number, fd in enumerate(self._saved):
            os.dup2(fd, number)
            os.close(fd)


@contextlib.contextmanager
def _environment(changes: Mapping[str, str]) -> Any:
    old = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(old)
