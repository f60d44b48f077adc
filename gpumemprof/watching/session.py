"""The session: the recorder's loop, keys, signals, and the screen or plain text."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator

from rich.console import Console
from rich.live import Live
from rich.text import Text

from gpumemprof.recorder import Recorder, RecorderOptions
from gpumemprof.recording import check_process, many_files, require_privileges
from gpumemprof.report import live
from gpumemprof.report.live import LiveView
from gpumemprof.report.table import make_console
from gpumemprof.watching.watcher import Peaks, Request, Watcher


def run(request: Request) -> int:
    """Show until the user leaves; returns the exit code. Raises GpumemprofError."""
    require_privileges()
    for pid in request.pids:
        check_process(pid)
    peaks = Peaks()
    options = RecorderOptions(
        probe=request.options.probe,
        frames=request.options.frames,
        full_names=request.options.full_names,
        library_path=request.options.library_path,
        on_change=peaks.change,
    )
    with many_files(), Recorder(options) as recorder:
        if request.pids:
            for pid in request.pids:
                recorder.add(pid)
                recorder.add_children(pid)
        else:
            recorder.add_all()
        watcher = Watcher(recorder, peaks, request)
        if sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb":
            _on_screen(recorder, watcher, request)
        else:
            _as_text(recorder, watcher, request)
    return 0


def _rounds(recorder: Recorder, watcher: Watcher, request: Request) -> Iterator[bool]:
    """After each step of the recorder; true when it is time for a new picture."""
    shown, due = 0, time.monotonic() + min(request.interval, 0.3)
    while not watcher.left:
        recorder.step()
        if request.pids and not recorder.processes.running:
            return
        is_due = time.monotonic() >= due
        if is_due:
            due = time.monotonic() + request.interval
            watcher.look()
            shown += 1
        yield is_due
        if request.count and shown >= request.count:
            return


def _as_text(recorder: Recorder, watcher: Watcher, request: Request) -> None:
    """One picture after the other, for pipes and files."""
    console = make_console()
    first = True
    with _leaves_at_signals(watcher):
        for is_due in _rounds(recorder, watcher, request):
            if is_due:
                if not first:
                    console.print()
                first = False
                view = watcher.view()
                for line in live.lines(view, console, len(view.rows) + 15)[:-1]:
                    if line.plain.strip():
                        console.print(Text(line.plain.rstrip()), soft_wrap=True)
                sys.stdout.flush()


def _on_screen(recorder: Recorder, watcher: Watcher, request: Request) -> None:
    console = make_console()
    with (
        _leaves_at_signals(watcher),
        _keys(),
        Live(console=console, screen=True, auto_refresh=False) as screen,
    ):
        for is_due in _rounds(recorder, watcher, request):
            pressed = list(_pressed())
            for key in pressed:
                watcher.press(key)
            if is_due or pressed:
                _show(screen, console, watcher.view())


def _show(screen: Live, console: Console, view: LiveView) -> None:
    found = live.lines(view, console, console.height)
    screen.update(Text("\n").join(found), refresh=True)


@contextlib.contextmanager
def _keys() -> Iterator[None]:
    """Keys are read as they are pressed, and not shown."""
    if not sys.stdin.isatty():
        yield
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _pressed() -> Iterator[str]:
    """What was pressed since the last look."""
    if not sys.stdin.isatty():
        return
    fd = sys.stdin.fileno()
    if not select.select([fd], [], [], 0)[0]:
        return
    text = os.read(fd, 256).decode(errors="replace")
    while text:
        length = 3 if text[:2] in {"\x1b[", "\x1bO"} else 1
        yield text[:length]
        text = text[length:]


@contextlib.contextmanager
def _leaves_at_signals(watcher: Watcher) -> Iterator[None]:
    def leave(_number: int, _frame: object) -> None:
        watcher.left = True

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
