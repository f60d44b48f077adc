"""Which GPU of the node a CUDA ordinal of a process is. Pure: a decision over gathered facts.

A process sees the GPUs whose device nodes its container has, in the order of their PCI addresses,
or of their speed; CUDA_VISIBLE_DEVICES picks some of these (CUDA programming guide, "CUDA
environment variables"). A program may set its variables itself before it calls CUDA, which nobody
sees from outside. So what follows from them is believed only if the driver says that the process
is on just those GPUs. What is not sure is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpumemprof.process.gpu import Gpu

VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES")
MAX_VALUE = 4096
_MAX_ITEMS = 256


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What is known of one process.

    ``used``: indices of the GPUs on which NVML sees it. ``ordinals``: the CUDA ordinals it was seen
    to use. ``nodes``: N of the ``/dev/nvidiaN`` that its root has, None if that cannot be told.
    ``variables``: those of ``VARIABLES`` it was started with, None if they cannot be read.
    """

    used: frozenset[int] = frozenset()
    ordinals: frozenset[int] = frozenset()
    nodes: frozenset[int] | None = None
    variables: Mapping[str, str] | None = field(default_factory=dict)


def gpu_of(ordinal: int, node: Sequence[Gpu], facts: GpuFacts) -> Gpu | None:
    """The GPU that the process calls ``ordinal`` (below 0: it is not known which), None if unknown.

    ``node``: the GPUs of the node by index.
    """
    if any(gpu.mig for gpu in node if gpu.index in facts.used):
        return None  # an instance of it is what the process has
    ordinals = facts.ordinals | ({ordinal} if ordinal >= 0 else set())
    if len(facts.used) == 1 and len(ordinals) <= 1:
        return _by_index(node, next(iter(facts.used)))
    seen = _in_container(node, facts)
    if any(gpu.mig for gpu in seen) or not facts.used <= {gpu.index for gpu in seen}:
        return None
    if len(seen) == 1 or ordinal < 0:  # a single one is it, whatever the variables say
        return seen[0] if len(seen) == 1 else None
    visible = _visible(seen, facts.variables) or []
    # A context alone is use as well: of all that it may see, or of just what it was seen to use.
    meant = {visible[n].index for n in ordinals if n < len(visible)}
    if facts.used not in (meant, {gpu.index for gpu in visible}):
        return None
    return visible[ordinal] if max(ordinals) < len(visible) else None


def _by_index(node: Sequence[Gpu], index: int) -> Gpu | None:
    return next((gpu for gpu in node if gpu.index == index), None)


def _in_container(node: Sequence[Gpu], facts: GpuFacts) -> list[Gpu]:
    """The GPUs that the process's container was given, in the order of PCI addresses; none if that
    cannot be told."""
    ordered = sorted(node, key=lambda gpu: gpu.index)
    if facts.nodes is not None:
        return [gpu for gpu in ordered if gpu.minor in facts.nodes]
    wanted = (facts.variables or {}).get("NVIDIA_VISIBLE_DEVICES", "")
    if wanted == "all" or len(node) == 1:
        return ordered
    chosen: list[Gpu] = []
    for item in wanted.split(",", _MAX_ITEMS):
        gpu = _named(ordered, item)
        if gpu is None:
            return []
        chosen.append(gpu)
    return sorted(set(chosen), key=lambda gpu: gpu.index)


def _visible(seen: Sequence[Gpu], variables: Mapping[str, str] | None) -> list[Gpu] | None:
    """What ordinals from 0 on stand for, None if it cannot be told."""
    if variables is None:
        return None
    by_address = variables.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    # Otherwise the fastest comes first: among equal ones the order stays.
    if not by_address and (len({gpu.name for gpu in seen}) != 1 or not seen[0].name):
        return None
    chosen = variables.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return list(seen)
    visible: list[Gpu] = []
    for item in chosen.split(",", _MAX_ITEMS):
        if _ends_the_list(item, len(seen)):
            break
        gpu = _named(seen, item)
        if gpu is None or gpu in visible:
            return None
        visible.append(gpu)
    return visible


def _ends_the_list(item: str, count: int) -> bool:
    """CUDA goes by the items before the first number that is no device's."""
    text = item.strip().removeprefix("-")
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        return False
    return item.strip().startswith("-") or int(text) >= count


def _named(gpus: Sequence[Gpu], item: str) -> Gpu | None:
    """The GPU that a number in this list, a UUID or the unique beginning of one names."""
    text = item.strip()
    if text.isascii() and text.isdigit() and len(text) <= 9:
        return gpus[int(text)] if int(text) < len(gpus) else None
    if not text.startswith("GPU-") or len(text) <= len("GPU-"):
        return None
    named = [gpu for gpu in gpus if gpu.uuid.startswith(text)]
    return named[0] if len(named) == 1 else None
