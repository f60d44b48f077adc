"""Which memory is told to Prometheus when there is more than it should store."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gpumemprof.export import metric_labels
from gpumemprof.export.model import AgentView, MemoryUse

Labels = tuple[str, ...]


class Admission:
    """Chooses at most ``limit`` of the label sets of each view.

    Who is in stays in for as long as it is there: series that come and go would be counters that
    start again. Of newcomers those with the most bytes come first, then by their labels."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._in: set[Labels] = set()

    def admit(self, sizes: Mapping[Labels, int]) -> Collection[Labels]:
        """Those of ``sizes`` (labels → bytes, or a count) that are told now."""
        self._in &= sizes.keys()
        room = self._limit - len(self._in)
        if room > 0 and len(sizes) > len(self._in):
            newcomers = sorted(sizes.keys() - self._in, key=lambda labels: (-sizes[labels], labels))
            self._in.update(newcomers[:room])
        return frozenset(self._in)


@dataclass(frozen=True, slots=True)
class ToldMemory:
    """The part of a view that fits. Keys are values of ``metric_labels.MEMORY_LABELS`` and
    ``FAILURE_LABELS``; ``omitted_*`` counts what does not fit: label sets, and bytes in use."""

    memory: Mapping[Labels, MemoryUse]
    failures: Mapping[Labels, int]
    omitted_memory: int
    omitted_failures: int
    omitted_bytes: int


class MemoryCap:
    """Keeps the series of memory and failures within a limit, from one view to the next."""

    def __init__(self, limit: int) -> None:
        """``limit``: label sets of memory, and as many of failures."""
        self._memory = Admission(limit)
        self._failures = Admission(limit)

    def told(self, view: AgentView) -> ToldMemory:
        """What of ``view`` is told."""
        memory: dict[Labels, MemoryUse] = {}
        for key, use in view.memory.items():
            labels = metric_labels.of_memory(key)
            memory[labels] = _plus(memory[labels], use) if labels in memory else use
        admitted = self._memory.admit({labels: use.in_use for labels, use in memory.items()})
        failures: dict[Labels, int] = {}
        # From the start, so that the first failure is seen as an increase.
        out_of_memory = metric_labels.of_error(metric_labels.OUT_OF_MEMORY)
        for labels in admitted:
            failures[labels + out_of_memory] = 0
        for failure, count in view.failures.items():
            labels = metric_labels.of_memory(failure.memory) + metric_labels.of_error(failure.error)
            failures[labels] = failures.get(labels, 0) + count
        failed = self._failures.admit(failures)
        return ToldMemory(
            memory={labels: use for labels, use in sorted(memory.items()) if labels in admitted},
            failures={labels: n for labels, n in sorted(failures.items()) if labels in failed},
            omitted_memory=len(memory) - len(admitted),
            omitted_failures=len(failures) - len(failed),
            omitted_bytes=sum(
                use.in_use for labels, use in memory.items() if labels not in admitted
            ),
        )


def _plus(one: MemoryUse, other: MemoryUse) -> MemoryUse:
    """Two of equal labels: a pod that ended, and the next of its name (of a StatefulSet). Their
    peaks were not at one time, unless both hold what they hold now."""
    total = MemoryUse(*(a + b for a, b in zip(one, other, strict=True)))
    return total._replace(peak=max(one.peak, other.peak, total.in_use))
