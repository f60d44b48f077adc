"""Bytes and counts of each container, for gauges: exact peaks, and sums that outlive processes.

The ledger tells every change of what is held; what was allocated is summed from its aggregates when
it is asked for. A container's counters go on when one of its processes ends and another begins, and
end with the container.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gpumemprof.export.model import FailureKey, MemoryKey, MemoryUse, Owner
from gpumemprof.ledger.events import UNKNOWN_DEVICE, MemoryKind
from gpumemprof.ledger.model import LedgerSnapshot
from gpumemprof.process.identity import ProcessId

Gpu = tuple[str, str]
"""(index on the node, UUID), both empty where not known."""
GpuOf = Callable[[ProcessId, int], Gpu]
"""The GPU behind a process's CUDA ordinal."""
NO_GPU: Gpu = ("", "")
_Place = tuple[str, Gpu]
"""(kind, GPU)."""


@dataclass(slots=True)
class _Held:
    """Bytes and allocations in use, and the most bytes there were."""

    in_use: int = 0
    count: int = 0
    peak: int = 0

    def add(self, size: int, count: int) -> None:
        self.in_use += size
        self.count += count
        self.peak = max(self.peak, self.in_use)


@dataclass(slots=True)
class _Sums:
    """Of allocations and failures."""

    bytes: Counter[_Place] = field(default_factory=Counter)
    count: Counter[_Place] = field(default_factory=Counter)
    failures: Counter[tuple[_Place, int]] = field(default_factory=Counter)

    def add(self, other: _Sums) -> None:
        self.bytes.update(other.bytes)
        self.count.update(other.count)
        self.failures.update(other.failures)


@dataclass(slots=True)
class _Account:
    """One container."""

    held: dict[_Place, _Held] = field(default_factory=dict)
    ended: _Sums = field(default_factory=_Sums)
    """What its ended processes allocated."""
    freed: dict[_Place, tuple[int, int]] = field(default_factory=dict)
    """Freed bytes and frees as told last: a free that fails is put back, and counters must not
    decrease."""

    def at(self, place: _Place) -> _Held:
        return self.held.setdefault(place, _Held())


class Accounts:
    """Use ``changed`` as the ledger's ``on_change``."""

    def __init__(self, gpu_of: GpuOf) -> None:
        self._gpu_of = gpu_of
        self._owners: dict[Owner, _Account] = {}
        self._owner_of: dict[ProcessId, Owner] = {}
        self._waiting: dict[ProcessId, dict[tuple[MemoryKind, int], _Held]] = {}
        """What processes hold that belong to nobody yet."""
        self._failures_told: dict[ProcessId, int] = {}

    @property
    def owners(self) -> tuple[Owner, ...]:
        """All that have an account."""
        return tuple(self._owners)

    def changed(
        self, process: ProcessId, kind: MemoryKind, device: int, size: int, count: int, _time: int
    ) -> None:
        """A process holds ``size`` bytes more, or fewer."""
        owner = self._owner_of.get(process)
        if owner is None:
            held = self._waiting.setdefault(process, {}).setdefault((kind, device), _Held())
        else:
            held = self._owners[owner].at(self._place(process, kind, device))
        held.add(size, count)

    def assign(self, process: ProcessId, owner: Owner) -> None:
        """From now on it is known whose a process is; what it held before is counted too."""
        if self._owner_of.get(process) == owner:
            return
        account = self._owners.setdefault(owner, _Account())
        self._owner_of[process] = owner
        for (kind, device), before in self._waiting.pop(process, {}).items():
            held = account.at(self._place(process, kind, device))
            held.add(before.in_use, before.count)
            held.peak = max(held.peak, before.peak)

    def owner_of(self, process: ProcessId) -> Owner | None:
        """Whose it is, if that is known."""
        return self._owner_of.get(process)

    def forget(self, process: ProcessId, last: LedgerSnapshot | None) -> None:
        """A process is no longer followed. ``last``: what is known of it after its end, to be kept
        in its container's sums; None when nothing of it is to be kept."""
        owner = self._owner_of.pop(process, None)
        self._waiting.pop(process, None)
        if last is not None and owner is not None:
            self._owners[owner].ended.add(self._sums(last))

    def close(self, owner: Owner) -> None:
        """A container is gone, or nothing of it is to be kept. Its processes must be forgotten."""
        self._owners.pop(owner, None)

    def has_processes(self, owner: Owner) -> bool:
        """Whether a process of this container is followed."""
        return owner in self._owner_of.values()

    def view(
        self, snapshot: Callable[[Iterable[ProcessId]], LedgerSnapshot]
    ) -> tuple[Mapping[MemoryKey, MemoryUse], Mapping[FailureKey, int]]:
        """All containers now. ``snapshot``: the ledger's, of some processes."""
        processes: dict[Owner, list[ProcessId]] = {owner: [] for owner in self._owners}
        for process, owner in self._owner_of.items():
            processes[owner].append(process)
        memory: dict[MemoryKey, MemoryUse] = {}
        failures: dict[FailureKey, int] = {}
        for owner, account in self._owners.items():
            sums = self._sums(snapshot(processes[owner]))
            sums.add(account.ended)
            for place in sorted({*account.held, *sums.count}):
                memory[_key(owner, place)] = _use(account, place, sums)
            for (place, error), number in sums.failures.items():
                failures[FailureKey(_key(owner, place), error)] = number
        return memory, failures

    def _place(self, process: ProcessId, kind: MemoryKind, device: int) -> _Place:
        if device == UNKNOWN_DEVICE or not kind.on_gpu:
            return kind.value, NO_GPU
        return kind.value, self._gpu_of(process, device)

    def _sums(self, snapshot: LedgerSnapshot) -> _Sums:
        sums = _Sums()
        for aggregate in snapshot.aggregates:
            key = aggregate.key
            place = self._place(key.process, key.kind, key.device)
            sums.bytes[place] += aggregate.alloc_bytes
            sums.count[place] += aggregate.alloc_count
        for process in snapshot.processes:
            for (kind, device, error), number in process.failures_by_error.items():
                sums.failures[self._place(process.process, kind, device), error] += number
        return sums


def _key(owner: Owner, place: _Place) -> MemoryKey:
    kind, (gpu, uuid) = place
    return MemoryKey(owner, kind, gpu, uuid)


def _use(account: _Account, place: _Place, sums: _Sums) -> MemoryUse:
    held = account.at(place)
    allocated, allocations = sums.bytes[place], sums.count[place]
    told_bytes, told_frees = account.freed.get(place, (0, 0))
    freed = max(told_bytes, allocated - held.in_use)
    frees = max(told_frees, allocations - held.count)
    account.freed[place] = freed, frees
    return MemoryUse(held.in_use, held.peak, allocated, freed, allocations, frees)
