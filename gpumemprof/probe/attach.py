"""The ways in which probes hang on a file, behind one function."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

from gpumemprof.probe import syscalls
from gpumemprof.probe.modes import AttachMode
from gpumemprof.probe.syscalls import (
    BPF_TRACE_UPROBE_MULTI,
    BPF_TRACE_UPROBE_SESSION,
    Descriptor,
)
from gpumemprof.probe.wrappers import Wrappers

__all__ = ["AttachMode", "Attacher", "Closable", "Target", "error_name"]


@dataclass(frozen=True, slots=True)
class Target:
    """One place to probe: a file offset, what the program is told, if returns are wanted."""

    offset: int
    cookie: int
    needs_return: bool


class Closable(Protocol):
    """Something attached."""

    def close(self) -> None:
        """Detach."""


class _Links:
    """Several links that are closed together."""

    def __init__(self) -> None:
        self._links: list[Descriptor] = []

    def add(self, link: Descriptor) -> Descriptor:
        self._links.append(link)
        return link

    def close(self) -> None:
        for link in reversed(self._links):
            link.close()
        self._links.clear()


class _PerfEvents(_Links):
    """Perf events and the programs on them. The kernel waits for a grace period for each that is
    closed, one after the other: half a minute for all calls of the CUDA libraries."""

    def close(self) -> None:
        if len(self._links) <= _CLOSED_HERE:
            super().close()
            return
        with _held_elsewhere([link.fd for link in self._links]):
            super().close()


_CLOSED_HERE = 6


@contextlib.contextmanager
def _held_elsewhere(fds: Sequence[int]) -> Iterator[None]:
    """What is closed inside is closed for good, and waited for, by a process of its own, which has
    nothing else open and ends with it. If there can be none, who closes waits."""
    waiting, closed = os.pipe()
    try:
        try:
            child = os.fork()
        except OSError:
            child = -1
        if child == 0:
            # Nothing here may fail, or do more than system calls: this is a copy of one thread.
            try:
                if os.fork() == 0:
                    _close_all_but({*fds, waiting})
                    os.read(waiting, 1)  # until the other has closed them: who is last waits
            finally:
                os._exit(0)
        if child > 0:
            os.waitpid(child, 0)
        yield
    finally:
        os.close(waiting)
        os.close(closed)


def _close_all_but(kept: Set[int]) -> None:
    start = 0
    for fd in sorted(kept):
        os.closerange(start, fd)
        start = fd + 1
    os.closerange(start, os.sysconf("SC_OPEN_MAX"))


@dataclass(frozen=True, slots=True)
class Attacher:
    """What attaching takes besides the places: the programs for entry and return (or the session),
    or what makes programs for single places."""

    mode: AttachMode
    fds: Sequence[int] = ()
    wrappers: Wrappers | None = None

    def attach(self, path: str, targets: Sequence[Target]) -> Closable:
        """Hang the programs on ``targets`` of a file.

        Returns before entries: a call whose entry was seen and its return not would seem to go on
        for ever. Raises OSError with the kernel's reason; then nothing stays attached.
        """
        links = _Links() if self._is_multi else _PerfEvents()
        try:
            if self._is_multi:
                self._attach_all(links, path, targets)
            else:
                for target in targets:
                    if target.needs_return:
                        self._attach_one(links, path, target, returns=True)
                    self._attach_one(links, path, target, returns=False)
        except BaseException:
            links.close()
            raise
        return links

    def close(self) -> None:
        """Let go of what attaching took; what is attached stays."""
        if self.wrappers is not None:
            self.wrappers.close()

    @property
    def _is_multi(self) -> bool:
        return self.mode in (AttachMode.SESSION, AttachMode.MULTI)

    def _attach_one(self, links: _Links, path: str, target: Target, *, returns: bool) -> None:
        event = links.add(syscalls.uprobe_event(path, target.offset, returns=returns))
        if self.wrappers is None:
            fd = self.fds[int(returns)]
            links.add(syscalls.perf_link(fd, event, target.cookie))
            return
        program = self.wrappers.program(target.cookie, returns=returns)
        syscalls.perf_set_program(program.fd, event)
        program.close()  # the event holds it

    def _attach_all(self, links: _Links, path: str, targets: Sequence[Target]) -> None:
        kind = BPF_TRACE_UPROBE_SESSION
        batches: list[tuple[int, Sequence[Target], bool]] = [(self.fds[0], targets, False)]
        if self.mode is AttachMode.MULTI:
            kind = BPF_TRACE_UPROBE_MULTI
            batches.insert(0, (self.fds[1], [t for t in targets if t.needs_return], True))
        for fd, batch, returns in batches:
            if batch:
                links.add(
                    syscalls.uprobe_multi_link(
                        fd,
                        path,
                        [target.offset for target in batch],
                        [target.cookie for target in batch],
                        attach_type=kind,
                        returns=returns,
                    )
                )


def error_name(error: OSError) -> str:
    """For example ``EINVAL (Invalid argument)``, or with what was said in place of that."""
    code = error.errno or 0
    return f"{errno.errorcode.get(code, str(code))} ({error.strerror or os.strerror(code)})"
