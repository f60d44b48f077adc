"""How far the processes that are looked at are trusted: one value, handed down to every stage."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Trust:
    """What processes may make us do, and hold for them.

    ``allow_fuse``: files on FUSE are opened; their server may delay every read for ever.
    ``patience``: seconds that one look at a process's files or memory may take before it is given
    up, None: for ever (and without a thread of its own for it). ``stacks``,
    ``stacks_per_process``: different stacks that are held at a time. ``bytes_per_process``: of the
    names in them. ``python_cache``: bytes of code objects of one process that are remembered.
    ``files_per_process``: code files opened for one process. ``waiting_stack_bytes``: of captured
    stacks that wait to be unwound (``Inbox``). ``libraries``,
    ``libraries_per_process``: files that are probed. ``share``: processor time, as a share of one
    core, that the stacks of one process may take once ``burst`` seconds were spent on them; None:
    any.
    """

    allow_fuse: bool = True
    patience: float | None = None
    stacks: int = 1 << 20
    stacks_per_process: int = 1 << 20
    bytes_per_process: int = 1 << 30
    python_cache: int = 8 << 20
    files_per_process: int = 4096
    waiting_stack_bytes: int = 64 << 20
    libraries: int = 1 << 15
    libraries_per_process: int = 1 << 15
    share: float | None = None
    burst: float = 5.0


OWN = Trust()
"""Processes that the user may trace anyway: nothing is kept from them."""

TENANTS = Trust(
    allow_fuse=False,
    patience=3.0,
    stacks=1 << 16,
    stacks_per_process=1 << 14,
    bytes_per_process=16 << 20,
    python_cache=2 << 20,
    files_per_process=512,
    waiting_stack_bytes=16 << 20,
    libraries=1024,
    libraries_per_process=16,
    share=0.1,
)
"""Processes of strangers: none may stop the recording of the others, or use up our memory."""
