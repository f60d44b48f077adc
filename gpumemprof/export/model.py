"""What the agent publishes, as plain values: profiles of containers, and gauges of the node."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpumemprof.profile.model import Profile


class Owner(NamedTuple):
    """Whose memory it is. A process of no pod has an empty ``namespace``, ``pod`` and
    ``container``; its ``workload`` is the program's name."""

    namespace: str
    pod: str
    container: str
    workload: str
    """The name of what runs the pod (Deployment, Job, RayCluster…), or the pod's own."""
    node: str
    pod_uid: str = ""
    """Tells two pods of one name apart; not for labels."""


@dataclass(frozen=True, slots=True)
class ContainerProfile:
    """What one container did in one interval, and holds at its end.

    ``time_ns``: wall clock of that end, a whole multiple of the interval; no two profiles of one
    owner have the same, so after the clock was set back it is some milliseconds more. In
    ``profile``, alloc_* are of this interval only (every allocation is in exactly one profile),
    inuse_* and peak_space are as of ``time_ns``, failures are those of this interval, and samples
    have the labels pid, comm, call, kind, device and, where known, gpu (the GPU's index on the
    node, as NVML and DCGM count) and gpu_uuid.

    ``snapshot``: whether it tells what is held. False for what is sent when the agent stops: only
    what was allocated since the last interval; inuse_* and peak_space are 0.
    """

    owner: Owner
    time_ns: int
    interval_ns: int
    profile: Profile
    snapshot: bool = True


class MemoryKey(NamedTuple):
    """What gauges are told apart by. ``kind``: a value of MemoryKind. ``gpu``: the GPU's index on
    the node, ``gpu_uuid``: as NVML writes it; both empty where not known, and for host memory."""

    owner: Owner
    kind: str
    gpu: str
    gpu_uuid: str


class MemoryUse(NamedTuple):
    """Bytes and counts of one ``MemoryKey``. Sums since its container was first seen."""

    in_use: int = 0
    peak: int = 0
    """Most bytes in use at once, exact at every event."""
    allocated_bytes: int = 0
    freed_bytes: int = 0
    """Of frees, and of what the ends of contexts and processes gave back."""
    allocations: int = 0
    frees: int = 0


class FailureKey(NamedTuple):
    """Failed allocations are told apart by this. ``error``: the CUDA error code (2: out of
    memory)."""

    memory: MemoryKey
    error: int


@dataclass(frozen=True, slots=True)
class AgentView:
    """The state of an agent at one moment, for Prometheus and the agent's page.

    ``running``: those of whom a process runs; ``memory`` tells of ended ones too, for some time.
    ``counters``: events received, and everything lost, cut or unresolved, by name
    (profile/completeness.py says which names mean a loss). ``processes``: state (``on``, ``off``,
    ``held``: its pod is not known yet) → number. ``libraries``: libcuda, libcudart, loader →
    probed files. ``api``: the watches of the Kubernetes API, name → whether it is up to date;
    ``api_errors``: watch → requests that failed since the agent started. ``switch_rejected``:
    values of the switch that were not understood, so that the last good ones stayed in force.
    ``api`` is empty without Kubernetes.
    """

    time_ns: int
    node: str
    memory: Mapping[MemoryKey, MemoryUse] = field(default_factory=dict)
    failures: Mapping[FailureKey, int] = field(default_factory=dict)
    running: Collection[Owner] = frozenset()
    owners_overflowed: int = 0
    """Processes since the agent started that are in none of the above: their container was beyond
    the limit."""
    counters: Mapping[str, int] = field(default_factory=dict)
    processes: Mapping[str, int] = field(default_factory=dict)
    libraries: Mapping[str, int] = field(default_factory=dict)
    libraries_not_probed: int = 0
    api: Mapping[str, bool] = field(default_factory=dict)
    api_errors: Mapping[str, int] = field(default_factory=dict)
    switch_rejected: int = 0
    about: Mapping[str, str] = field(default_factory=dict)
    """Version, loader, way of attaching, kernel."""


@dataclass(frozen=True, slots=True)
class PushStatus:
    """How the sending of profiles goes, for Prometheus and the agent's page.

    ``results``: how pushes ended since the agent started (``delivered``, ``rejected``…; the names
    are in export/pyroscope/pusher.py). ``queued``: pushes that wait. ``last_success_ns``: wall
    clock of the last one that was accepted, None if there was none. ``attempts``: requests made,
    by what was answered (``delivered``, ``throttled``, ``unreachable``…). ``last_error``: why the
    last one failed, a line without secrets; empty if it was accepted.
    """

    results: Mapping[str, int] = field(default_factory=dict)
    queued: int = 0
    last_success_ns: int | None = None
    attempts: Mapping[str, int] = field(default_factory=dict)
    last_error: str = ""
