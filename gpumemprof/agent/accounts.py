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
from gpumemprof.ledger.events import MemoryKind
from gpumemprof.ledger.failures import UNKNOWN_ERROR
from gpumemprof.ledger.model import LedgerSnapshot
from gpumemprof.process.identity import ProcessId

Gpu = tuple[str, str]
"""(index on the node, UUID), both empty where not known."""
GpuOf = Callable[[ProcessId, int], Gpu]
"""The GPU behind a process's CUDA ordinal."""
NO_GPU: Gpu = ("", "")
MAX_ERRORS = 256
"""Of one container: places and error codes that are told apart; more go under UNKNOWN_ERROR."""
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
class _Part:
    """What one process holds of one kind on one device, and where its container's account has it.

    On which GPU a device is may be known only seconds after the first allocation. So what is freed
    is taken from where it was put, not from where it would be put now; ``Accounts`` moves it.
    """

    held: _Held = field(default_factory=_Held)
    place: _Place = ("", NO_GPU)
    total: _Held | None = None
    """The container's; None while the process belongs to nobody."""

    def add(self, size: int, count: int) -> None:
        self.held.add(size, count)
        if self.total is not None:
            self.total.add(size, count)

    def put(self, place: _Place, total: _Held) -> None:
        """It is counted here from now on."""
        self.take()
        self.place, self.total = place, total
        total.add(self.held.in_use, self.held.count)
        total.peak = max(total.peak, self.held.peak)

    def take(self) -> None:
        """It is counted nowhere any more."""
        if self.total is not None:
            self.total.add(-self.held.in_use, -self.held.count)
            self.total = None


@dataclass(slots=True)
class _Sums:
    """Of allocations and failures."""

    bytes: Counter[_Place] = field(default_factory=Counter)
    count: Counter[_Place] = field(default_factory=Counter)
    failures: Counter[tuple[_Place, int]] = field(default_factory=Counter)

    def add(self, other: _Sums) -> None:
        self.bytes.update(other.bytes)
        self.count.update(other.count)
        for (place, error), number in other.failures.items():
            self.fail(place, error, number)

    def fail(self, place: _Place, error: int, number: int) -> None:
        """Count failures; a program chooses its errors, so not all are told apart."""
        if (place, error) not in self.failures and len(self.failures) >= MAX_ERRORS:
            error = UNKNOWN_ERROR
        self.failures[place, error] += number


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
        self._processes: Counter[Owner] = Counter()
        self._parts: dict[ProcessId, dict[tuple[MemoryKind, int], _Part]] = {}

    @property
    def owners(self) -> tuple[Owner, ...]:
        """All that have an account."""
        return tuple(self._owners)

    def changed(
        self, process: ProcessId, kind: MemoryKind, device: int, size: int, count: int, _time: int
    ) -> None:
        """A process holds ``size`` bytes more, or fewer."""
        parts = self._parts.get(process)
        if parts is None:
            parts = self._parts[process] = {}
        part = parts.get((kind, device))
        if part is None:
            part = parts[kind, device] = _Part()
            owner = self._owner_of.get(process)
            if owner is not None:
                self._put(part, owner, self._place(process, kind, device))
        part.add(size, count)

    def assign(self, process: ProcessId, owner: Owner) -> None:
        """From now on it is known whose a process is; what it held before is counted too."""
        if self._owner_of.get(process) == owner:
            return
        self._leave(process)
        self._owners.setdefault(owner, _Account())
        self._owner_of[process] = owner
        self._processes[owner] += 1
        for (kind, device), part in self._parts.get(process, {}).items():
            self._put(part, owner, self._place(process, kind, device))

    def owner_of(self, process: ProcessId) -> Owner | None:
        """Whose it is, if that is known."""
        return self._owner_of.get(process)

    def forget(self, process: ProcessId, last: LedgerSnapshot | None) -> None:
        """A process is no longer followed. ``last``: what is known of it after its end, to be kept
        in its container's sums; None when nothing of it is to be kept."""
        owner = self._owner_of.get(process)
        if last is not None and owner is not None:
            self._locate(process, owner)
            self._owners[owner].ended.add(self._sums(last))
        for part in self._parts.pop(process, {}).values():
            part.take()
        self._leave(process)

    def _leave(self, process: ProcessId) -> None:
        owner = self._owner_of.pop(process, None)
        if owner is not None:
            self._processes[owner] -= 1
            if not self._processes[owner]:
                del self._processes[owner]

    def close(self, owner: Owner) -> None:
        """A container is gone, or nothing of it is to be kept. Its processes must be forgotten."""
        self._owners.pop(owner, None)

    def has_processes(self, owner: Owner) -> bool:
        """Whether a process of this container is followed."""
        return owner in self._processes

    def view(
        self, snapshot: Callable[[Iterable[ProcessId]], LedgerSnapshot]
    ) -> tuple[Mapping[MemoryKey, MemoryUse], Mapping[FailureKey, int]]:
        """All containers now. ``snapshot``: the ledger's, of some processes."""
        processes: dict[Owner, list[ProcessId]] = {owner: [] for owner in self._owners}
        for process, owner in self._owner_of.items():
            processes[owner].append(process)
            self._locate(process, owner)
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

    def _put(self, part: _Part, owner: Owner, place: _Place) -> None:
        part.put(place, self._owners[owner].at(place))

    def _locate(self, process: ProcessId, owner: Owner) -> None:
        """Move what is held on a GPU that has become known."""
        for (kind, device), part in self._parts.get(process, {}).items():
            if part.total is None or part.place[1] != NO_GPU:
                continue
            place, before = self._place(process, kind, device), part.place
            if place != before:
                self._put(part, owner, place)
                self._clear(owner, before)

    def _clear(self, owner: Owner, place: _Place) -> None:
        """Let go of a place of which nothing is told any more."""
        account = self._owners[owner]
        mine = (parts for process, parts in self._parts.items() if self.owner_of(process) == owner)
        if place not in account.ended.count and all(
            part.place != place for parts in mine for part in parts.values()
        ):
            account.held.pop(place, None)
            account.freed.pop(place, None)

    def _told_at(self, process: ProcessId, kind: MemoryKind, device: int) -> _Place:
        part = self._parts.get(process, {}).get((kind, device))
        if part is not None and part.total is not None:
            return part.place
        return self._place(process, kind, device)

    def _place(self, process: ProcessId, kind: MemoryKind, device: int) -> _Place:
        if not kind.on_gpu:
            return kind.value, NO_GPU
        return kind.value, self._gpu_of(process, device)

    def _sums(self, snapshot: LedgerSnapshot) -> _Sums:
        sums = _Sums()
        for aggregate in snapshot.aggregates:
            key = aggregate.key
            place = self._told_at(key.process, key.kind, key.device)
            sums.bytes[place] += aggregate.alloc_bytes
            sums.count[place] += aggregate.alloc_count
        for process in snapshot.processes:
            for (kind, device, error), number in process.failures_by_error.items():
                place = self._told_at(process.process, kind, device)
                sums.fail(place, error, number)
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
