"""Where the running kernel keeps the few fields that bpf/kernel.bpf.h reads: by its BTF, and where
there is none by looking for values that are known (task_search.py)."""

from __future__ import annotations

import json
import os
import select
import signal
from collections.abc import Mapping
from pathlib import Path

from gpumemprof.errors import ProbeError
from gpumemprof.probe import task_search
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
_PATIENCE = 60.0
_ANSWER = 1 << 16

Offsets = Mapping[tuple[str, str], int]
"""(structure, field) → bytes from its begin."""


def from_btf(path: Path = KERNEL_BTF) -> Offsets:
    """As the kernel tells. Raises ProbeError when it does not."""
    try:
        btf = Btf(path.read_bytes())
        return {(structure, field): btf.offset(structure, field) for structure, field in FIELDS}
    except (OSError, ValueError, KeyError) as error:
        raise ProbeError(f"{path} does not tell the kernel's structures: {error}") from None


def by_value() -> Offsets:
    """As found in the memory of the kernel. Raises ProbeError when something is not found, or not
    sure. Looks from a process of its own, whose threads it can count."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(readable)
            os.write(writable, json.dumps(_told()).encode()[:_ANSWER])
        finally:
            os._exit(0)
    os.close(writable)
    try:
        answer = b""
        while select.select([readable], [], [], _PATIENCE)[0]:
            part = os.read(readable, _ANSWER)
            if not part:
                break
            answer += part
    finally:
        os.close(readable)
        os.kill(child, signal.SIGKILL)  # it has ended, or never will
        os.waitpid(child, 0)
    try:
        told = json.loads(answer)
    except ValueError:
        told = {"error": "no answer"}
    if "error" in told:
        raise ProbeError(f"the kernel's structures are not known: {told['error']}")
    flat = told["offsets"]
    # where one structure lies in the other does not matter: only their sum is read
    flat |= {"thread": flat["fsbase"], "fsbase": 0}
    return {(structure, field): flat[field] for structure, field in FIELDS}


def _told() -> dict[str, object]:
    try:
        return {"offsets": task_search.look()}
    except (ProbeError, OSError) as error:
        return {"error": str(error)}
    except Exception as error:  # the parent tells it
        return {"error": f"{type(error).__name__}: {error}"}


def told_and_found() -> dict[str, dict[str, int]]:
    """What the BTF tells (empty where there is none) and what is found by value, as one field each:
    they must be the same. Raises ProbeError."""
    both = {"told": from_btf() if KERNEL_BTF.exists() else {}, "found": by_value()}
    return {
        way: {
            "fs_base" if structure == "thread_struct" else field: (
                at + offsets["task_struct", "thread"] if structure == "thread_struct" else at
            )
            for (structure, field), at in offsets.items()
            if field != "thread"
        }
        for way, offsets in both.items()
    }


def find() -> Offsets:
    """By the kernel's BTF if it has one, else by value. Raises ProbeError."""
    return from_btf() if KERNEL_BTF.exists() else by_value()
