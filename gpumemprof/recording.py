"""One recording from the command line: start, follow, end, write, tell."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from gpumemprof import __version__
from gpumemprof.errors import GpumemprofError, ProbeError, ProcessGone, RemoteDataError, UsageError
from gpumemprof.process import procfs
from gpumemprof.process.elf import EM_X86_64, ElfFile
from gpumemprof.process.launch import Command
from gpumemprof.profile import files, folded, perfetto, pprof, speedscope
from gpumemprof.profile.merge import gpu_only
from gpumemprof.profile.model import Profile
from gpumemprof.profile.text import printable
from gpumemprof.recorder import Recorder, RecorderOptions
from gpumemprof.report import html, units
from gpumemprof.report.table import make_console, render

FORMATS = {
    "pprof": "gpumemprof.pb.gz",
    "folded": "gpumemprof.folded",
    "speedscope": "gpumemprof.speedscope.json",
    "perfetto": "gpumemprof.perfetto.json",
    "html": "gpumemprof.html",
}
"""Format → default file name."""

_ENCODERS: dict[str, Callable[[Profile], bytes]] = {
    "pprof": pprof.encode,
    "folded": lambda profile: folded.encode(gpu_only(profile)).encode(),
    "speedscope": lambda profile: speedscope.encode(gpu_only(profile), "gpumemprof").encode(),
    "perfetto": lambda profile: perfetto.encode(profile).encode(),
    "html": lambda profile: html.page(profile).encode(),
}
_NOT_FOR_TERMINALS = {"pprof", "html"}
_LIVE_SECONDS = 0.5
_SETTLE_SECONDS = 0.05
"""After a command's end: the time for the kernel to tell its last events."""


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for on the command line."""

    options: RecorderOptions
    pids: tuple[int, ...] = ()
    everything: bool = False
    command: tuple[str, ...] = ()
    duration: float | None = None
    output: Path = Path(FORMATS["pprof"])
    form: str = "pprof"
    limit: int = 15
    invoked: str = ""


def run(request: Request) -> int:
    """Record as asked; returns the exit code. Raises GpumemprofError for what cannot work."""
    require_privileges()
    if str(request.output) == "-" and request.form in _NOT_FOR_TERMINALS and sys.stdout.isatty():
        raise UsageError("a profile is not for a terminal: give -o FILE")
    if not _is_writable(request.output):
        _say(f"warning: {request.output} cannot be written; the profile will go elsewhere")
    with contextlib.ExitStack() as stack:
        files_limit = stack.enter_context(many_files())
        # Before loading, in which an exception could come out of libbpf's own calls, and be lost.
        stops = stack.enter_context(_stop_signals())
        recorder = stack.enter_context(Recorder(request.options))
        if stops.take():
            raise KeyboardInterrupt
        command = _begin(recorder, request, files_limit)
        if command is not None:
            stack.callback(command.close)
        _loop(recorder, request, command, stops)
        profile = recorder.profile({"version": __version__, "command": request.invoked})
        recorder.pause()
        written = files.write_somewhere(request.output, _ENCODERS[request.form](profile))
        if written != request.output:
            _say(f"{request.output} cannot be written; the profile is in {written}")
        _tell(profile, request, written)
        recorder.close()
        code = 0 if written == request.output else 1
        return _exit_code(command, stops) or code


def require_privileges() -> None:
    """Raises ProbeError where nothing can be recorded: not root, or not the host's pids."""
    if os.geteuid() != 0:
        raise ProbeError("recording needs root (or run it in a privileged container)")
    if not procfs.in_initial_pid_namespace():
        raise ProbeError(
            "this is not the host's pid namespace, so processes cannot be told apart; "
            "run the container with the host's (docker: --pid=host, Kubernetes: hostPID: true)"
        )


@contextlib.contextmanager
def many_files() -> Iterator[tuple[int, int]]:
    """Raise the limit of open files as far as allowed: a perf event is one, and so is each library
    with symbols to look up. Gives what it was, for the command."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield soft, hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _begin(recorder: Recorder, request: Request, files_limit: tuple[int, int]) -> Command | None:
    if request.command:
        to_stderr = str(request.output) == "-"
        command = Command(request.command, files_limit, to_stderr=to_stderr)
        try:
            recorder.add(command.pid)
            command.go()
        except BaseException:
            command.close()
            raise
        return command
    if request.everything:
        recorder.add_all()
        return None
    for pid in request.pids:
        check_process(pid)
    for pid in request.pids:
        recorder.add(pid)
        recorder.add_children(pid)
    return None


def check_process(pid: int) -> None:
    """Raises UsageError when a process cannot be recorded, with the reason."""
    try:
        stat_, process = procfs.read_stat(pid), procfs.thread_group(pid)
    except ProcessGone:
        raise UsageError(f"there is no process {pid}") from None
    who = f"process {pid} ({printable(stat_.comm)})"
    if stat_.state == "Z":
        raise UsageError(f"{who} has ended already")
    if process != pid:
        raise UsageError(f"{pid} is a thread of process {process}: record that")
    try:
        executable = os.open(f"/proc/{pid}/exe", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise UsageError(f"{who} is a kernel thread") from None
    except OSError as error:
        raise UsageError(f"{who} cannot be looked at: {error.strerror}") from None
    try:
        with contextlib.closing(ElfFile.open(executable)) as elf:
            machine = elf.machine
    except RemoteDataError as error:
        raise UsageError(f"{who} is no 64-bit x86-64 program: {error}") from None
    if machine != EM_X86_64:
        raise UsageError(f"{who} is a program for another architecture")


class _Stops:
    """Signals by which the user asks to stop."""

    def __init__(self) -> None:
        self._last = 0
        self.passed_on = False
        """Whether the command was told already: it ends in its own way, unless asked again."""
        self.insisted = False

    def handle(self, number: int, _frame: FrameType | None) -> None:
        self._last = number

    def take(self) -> int:
        """The last signal since this was asked before, 0 if there was none."""
        # In this order: a signal may come between any two of these steps.
        taken = self._last
        if taken:
            self._last = 0
        return taken

    def pass_on(self, command: Command, number: int) -> None:
        """A terminal sends Ctrl-C to the command as well, anything else only we are sent."""
        self.passed_on = True
        if number != signal.SIGINT or not _in_foreground():
            command.send(number)


@contextlib.contextmanager
def _stop_signals() -> Iterator[_Stops]:
    stops = _Stops()
    old = {
        number: signal.signal(number, stops.handle)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield stops
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _loop(recorder: Recorder, request: Request, command: Command | None, stops: _Stops) -> None:
    """Until the command or the processes ended, the time is over, or the user stops it."""
    began = time.monotonic()
    live = _LiveLine(recorder)
    while True:
        recorder.step()
        live.show()
        if request.duration is not None and time.monotonic() - began >= request.duration:
            break
        if stop := stops.take():
            if command is None or stops.passed_on:
                stops.insisted = True
                break
            stops.pass_on(command, stop)
        if command is not None:
            if command.poll() is not None:
                recorder.step(_SETTLE_SECONDS)
                break
        elif request.pids and not recorder.processes.running:
            break
    live.clear()


def _in_foreground() -> bool:
    """Whether the terminal's Ctrl-C reaches our process group, and so the command."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _exit_code(command: Command | None, stops: _Stops) -> int:
    """Of the command, which may go on after its recording; one that was told to stop and does not
    is no longer waited for when the user asks again."""
    if command is None:
        return 0
    if stops.insisted:
        command.send(signal.SIGTERM)
    while (code := command.poll()) is None:
        if stop := stops.take():
            if stops.passed_on:
                return 128 + stop
            stops.pass_on(command, stop)
        time.sleep(0.02)
    return code


class _LiveLine:
    """One line on the terminal that says what goes on; nothing where there is no terminal."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._on = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._next = 0.0

    def show(self) -> None:
        now = time.monotonic()
        if not self._on or now < self._next:
            return
        self._next = now + _LIVE_SECONDS
        totals = self._recorder.totals()
        lost = self._recorder.lost()
        running = len(self._recorder.processes.running)
        text = (
            f"recording {running} {'process' if running == 1 else 'processes'}: "
            f"{units.size(totals.gpu_in_use)} in use, "
            f"{units.number(totals.alloc_count, 'allocation')}"
            + (f", {lost:,} lost" if lost else ", none lost")
        )
        sys.stderr.write(f"\r{text}\x1b[K")
        sys.stderr.flush()

    def clear(self) -> None:
        if self._on:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _is_writable(output: Path) -> bool:
    if str(output) == "-":
        return True
    target = output if output.exists() else output.parent
    return not output.is_dir() and os.access(target, os.W_OK)


def _tell(profile: Profile, request: Request, written: Path) -> None:
    to_stdout = str(written) == "-"
    console = make_console(sys.stderr if to_stdout else None)
    if not profile.samples and not profile.failures:
        _say("no GPU memory was allocated while recording; `gpumemprof doctor` tells what is seen")
    with contextlib.suppress(GpumemprofError):
        render(profile, console, sort="inuse", limit=request.limit, stacks=False)
    if not to_stdout:
        console.print(f"\nprofile: {written}", soft_wrap=True, markup=False)


def _say(text: str) -> None:
    sys.stderr.write(f"gpumemprof: {text}\n")
