"""Where the running kernel keeps the few fields that bpf/kernel.bpf.h reads: from its BTF."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpumemprof.errors import ProbeError
from gpumemprof.probe.btf import KERNEL_BTF, Btf

FIELDS = (
    ("task_struct", "pid"),
    ("task_struct", "tgid"),
    ("task_struct", "group_leader"),
    ("task_struct", "signal"),
    ("task_struct", "start_boottime"),
    ("task_struct", "thread"),
    ("thread_struct", "fsbase"),
    ("signal_struct", "live"),
)

Offsets = Mapping[tuple[str, str], int]
"""(structure, field) → bytes from its begin."""


def from_btf(path: Path = KERNEL_BTF) -> Offsets:
    """As the kernel tells. Raises ProbeError when it does not."""
    try:
        btf = Btf(path.read_bytes())
        return {(structure, field): btf.offset(structure, field) for structure, field in FIELDS}
    except (OSError, ValueError, KeyError) as error:
        raise ProbeError(f"{path} does not tell the kernel's structures: {error}") from None


def find() -> Offsets:
    """From the kernel's BTF. Raises ProbeError."""
    return from_btf()
