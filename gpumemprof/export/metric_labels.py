"""Label values as Prometheus stores take them. Pure functions on text that others chose."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from gpumemprof.export.model import MemoryKey
from gpumemprof.ledger.events import MemoryKind
from gpumemprof.profile.text import printable
from gpumemprof.report import cuda_errors

MAX_VALUE_BYTES = 256
"""Kubernetes' names have at most 253; managed collectors of Azure drop a whole scrape for one
value above 1,023."""
_DIGEST_LETTERS = 16

OTHER = "other"
"""The label of what has no name of its own here, so that no program can make endless series."""

MEMORY_LABELS = ("namespace", "pod", "container", "workload", "node", "kind", "gpu", "gpu_uuid")
FAILURE_LABELS = (*MEMORY_LABELS, "error", "code")

_KINDS = frozenset(kind.value for kind in MemoryKind)
OUT_OF_MEMORY = 2


def value(text: str) -> str:
    r"""``text`` as a label value: printable (a line break is ``\n``, two letters), valid UTF-8, at
    most ``MAX_VALUE_BYTES`` long. What is cut ends in a digest, so that different texts stay so."""
    shown = printable(text)
    encoded = shown.encode("utf-8")
    if len(encoded) <= MAX_VALUE_BYTES:
        return shown
    digest = hashlib.sha256(encoded).hexdigest()[:_DIGEST_LETTERS]
    head = encoded[: MAX_VALUE_BYTES - 1 - _DIGEST_LETTERS].decode("utf-8", "ignore")
    return f"{head}~{digest}"


def of_memory(key: MemoryKey) -> tuple[str, ...]:
    """Values of ``MEMORY_LABELS``."""
    owner = key.owner
    return (
        value(owner.namespace),
        value(owner.pod),
        value(owner.container),
        value(owner.workload),
        value(owner.node),
        key.kind if key.kind in _KINDS else OTHER,
        value(key.gpu),
        value(key.gpu_uuid),
    )


def of_error(code: int) -> tuple[str, str]:
    """Values of ``error`` and ``code``: (``out_of_memory``, ``2``). Codes come from the program's
    own library, so those that CUDA does not define are one: (``other``, ``other``)."""
    name = cuda_errors.name(code, "cu") or cuda_errors.name(code, "cuda")
    if not name:
        return OTHER, OTHER
    if name.startswith("CUDA_ERROR_"):
        return name.removeprefix("CUDA_ERROR_").lower(), str(code)
    words = name.removeprefix("cudaError")
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in words).lstrip("_"), str(code)


def by_name(counts: Mapping[str, int], limit: int = 64) -> list[tuple[tuple[str, ...], int]]:
    """One-label samples of ``counts``, in the order of names; beyond ``limit`` names, the rest is
    summed as ``other``."""
    merged: dict[str, int] = {}
    for position, name in enumerate(sorted(counts)):
        shown = value(name) if position < limit else OTHER
        merged[shown] = merged.get(shown, 0) + counts[name]
    return [((name,), count) for name, count in merged.items()]
