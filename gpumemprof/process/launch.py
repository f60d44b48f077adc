"""Start a command that waits until it is recorded, so that not even its first call is missed."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
from collections.abc import Sequence

from gpumemprof.errors import UsageError

_OURS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Handled by us. Where they are ignored (a job in the background of a script), they stay so."""
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit codes of shells."""


class Command:
    """A child process that has not called exec yet: ``go`` lets it."""

    def __init__(
        self,
        arguments: Sequence[str],
        files: tuple[int, int] | None = None,
        *,
        to_stderr: bool = False,
    ) -> None:
        """``files``: the limits of open files that the command is to have, if not ours.
        ``to_stderr``: its standard output is taken for ours, and goes where errors go."""
        self._to_stderr = to_stderr
        self._arguments = list(arguments)
        self._files = files
        self._go_read, self._go_write = os.pipe2(os.O_CLOEXEC)
        self._error_read, self._error_write = os.pipe2(os.O_CLOEXEC)
        self._status: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            self._child()
        os.close(self._go_read)
        os.close(self._error_write)

    def _child(self) -> None:
        """Never returns."""
        try:
            if self._files is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, self._files)
            if self._to_stderr:
                os.dup2(2, 1)
            for number in _OURS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, signal.SIG_DFL)
            for number in _IGNORED_BY_PYTHON:
                signal.signal(number, signal.SIG_DFL)
            os.close(self._go_write)
            if not os.read(self._go_read, 1):  # the parent gave up
                os._exit(0)
            os.execvp(self._arguments[0], self._arguments)  # noqa: S606
        except OSError as error:
            os.write(self._error_write, str(error.errno).encode())
        finally:
            os._exit(127)

    def go(self) -> None:
        """Run the command. Raises UsageError, with the exit code of shells, when it cannot be
        executed."""
        with contextlib.suppress(BrokenPipeError):  # killed already: poll tells
            os.write(self._go_write, b"x")
        os.close(self._go_write)
        self._go_write = -1
        told = os.read(self._error_read, 16)  # ends when exec closes the other end
        if told:
            self._status = os.waitpid(self.pid, 0)[1]
            code = int(told)
            reason = "command not found" if code == errno.ENOENT else os.strerror(code)
            error = UsageError(f"{self._arguments[0]}: {reason}")
            error.exit_code = NOT_FOUND if code == errno.ENOENT else NOT_EXECUTABLE
            raise error

    def poll(self) -> int | None:
        """The exit code once it ended, 128 + n for death by signal n as shells have it."""
        if self._status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # we were started with SIGCHLD ignored: no one can know
                pid, status = self.pid, 0
            if pid:
                self._status = status
        if self._status is None:
            return None
        code = os.waitstatus_to_exitcode(self._status)
        return code if code >= 0 else 128 - code

    def send(self, number: int) -> None:
        """Send it a signal if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def close(self) -> None:
        """Let go of a command that never ran."""
        if self._go_write >= 0:
            os.close(self._go_write)
            self._go_write = -1
            with contextlib.suppress(ChildProcessError):
                self._status = os.waitpid(self.pid, 0)[1]
        if self._error_read >= 0:
            os.close(self._error_read)
            self._error_read = -1
