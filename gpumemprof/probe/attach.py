"""The three ways in which probes hang on a file, behind one function."""

from __future__ import annotations

import enum
import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gpumemprof.probe import syscalls
from gpumemprof.probe.syscalls import Descriptor


class AttachMode(enum.Enum):
    """How probes hang on a library, best first."""

    SESSION = "session"
    """One program for entry and return that asks for the return only when it wants it (6.13)."""
    MULTI = "multi"
    """One link for all entries of a file, one for all returns (6.6)."""
    SINGLE = "single"
    """A perf event for each entry and each return (cookies: 5.15). Detaching takes a tenth of a
    second for each: the kernel waits for a grace period, one event after the other."""


ATTACH_TYPES = {
    AttachMode.SESSION: syscalls.BPF_TRACE_UPROBE_SESSION,
    AttachMode.MULTI: syscalls.BPF_TRACE_UPROBE_MULTI,
    AttachMode.SINGLE: 0,
}
"""The expected attach type with which a program must be loaded."""


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

    def add(self, link: Descriptor) -> None:
        self._links.append(link)

    def close(self) -> None:
        for link in reversed(self._links):
            link.close()
        self._links.clear()


def attach(mode: AttachMode, fds: Sequence[int], path: str, targets: Sequence[Target]) -> Closable:
    """Hang the programs ``fds`` (entry, and return unless a session) on ``targets`` of a file.

    Returns before entries: a call whose entry was seen and its return not would seem to go on for
    ever. Raises OSError with the kernel's reason; then nothing stays attached.
    """
    links = _Links()
    try:
        if mode is AttachMode.SINGLE:
            for target in targets:
                if target.needs_return:
                    links.add(
                        syscalls.uprobe_perf_link(
                            fds[1], path, target.offset, target.cookie, returns=True
                        )
                    )
                links.add(syscalls.uprobe_perf_link(fds[0], path, target.offset, target.cookie))
            return links
        kind = ATTACH_TYPES[mode]
        batches: list[tuple[int, Sequence[Target], bool]] = [(fds[0], targets, False)]
        if mode is AttachMode.MULTI:
            batches.insert(0, (fds[1], [t for t in targets if t.needs_return], True))
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
    except BaseException:
        links.close()
        raise
    return links


def error_name(error: OSError) -> str:
    """For example ``EINVAL (Invalid argument)``."""
    code = error.errno or 0
    return f"{errno.errorcode.get(code, str(code))} ({os.strerror(code)})"
