"""Physical memory of the virtual memory management calls (cuMemCreate, cuMemMap, ...).

Physical memory lives while a handle to it is unreleased or a mapping of it exists. So an unmap
without a release is not a free, and neither is a release while it is mapped.
"""

from __future__ import annotations

from collections import Counter

from gpumemprof.ledger.model import Count
from gpumemprof.ledger.names import Named, NameTable
from gpumemprof.ledger.peaks import Holding
from gpumemprof.ledger.ranges import RangeMap


class Physical:
    """Physical memory. ``holding`` None: of another owner, or from before attach: not counted.
    ``pins``: references and mappings that keep it alive."""

    __slots__ = ("holding", "pins", "size")

    def __init__(self, holding: Holding | None, size: int) -> None:
        self.holding = holding
        self.size = size
        self.pins = 0

    def pin(self, time_ns: int) -> None:
        """One reference or mapping more."""
        if not self.pins and self.holding is not None:
            self.holding.put(self.size, time_ns)
        self.pins += 1

    def unpin(self, pins: int, time_ns: int) -> None:
        """So many references or mappings fewer."""
        self.pins -= pins
        if not self.pins and self.holding is not None:
            self.holding.take(self.size, time_ns)


class Handle(Named):
    """A handle's number, and the references obtained under it."""

    __slots__ = ("physical",)

    def __init__(self, physical: Physical) -> None:
        super().__init__()
        self.physical = physical

    @property
    def counted(self) -> bool:  # type: ignore[override]
        """Whether its memory is this process's own."""
        return self.physical.holding is not None

    def take(self, references: int, time_ns: int) -> None:
        """So many references are gone."""
        self.physical.unpin(references, time_ns)

    def put(self, time_ns: int) -> None:
        """One reference came (back)."""
        self.physical.pin(time_ns)


class Mapping:
    """``physical`` is mapped at [start, end)."""

    __slots__ = ("end", "physical", "start")

    def __init__(self, start: int, end: int, physical: Physical) -> None:
        self.start = start
        self.end = end
        self.physical = physical


class VirtualMemory:
    """Handles and mappings of one process."""

    __slots__ = ("_counts", "_limit", "handles", "mapped", "unmapped")

    def __init__(self, limit: int, counts: Counter[Count]) -> None:
        self._limit = limit
        self._counts = counts
        self.handles: NameTable[Handle] = NameTable(limit, counts)
        self.mapped: RangeMap[Mapping] = RangeMap()
        self.unmapped: RangeMap[Mapping] = RangeMap()
        """Unmapped by calls that may still fail."""

    def retain(self, number: int, address: int, time_ns: int) -> None:
        """One more reference, to what is mapped at ``address``, under handle ``number``."""
        handles = self.handles
        handle = handles.live.get(number)
        mapping = self.mapped.covering(address)
        if mapping is None:
            if handle is None:
                self._counts[Count.UNKNOWN_RETAINS] += 1
            else:
                handles.share(number, handle, time_ns)
            return
        if handle is None:
            # The address proves that this is the same memory, not the number given out anew.
            handle = handles.dropped.get(number)
        if handle is not None and handle.physical is mapping.physical:
            handles.share(number, handle, time_ns)
        else:
            handles.issue(number, Handle(mapping.physical), time_ns)

    def map(self, number: int, start: int, end: int, time_ns: int) -> None:
        """Map what handle ``number`` names at [start, end)."""
        self.unmapped.take_overlapping(start, end)
        handle = self.handles.live.get(number)
        if handle is None:
            self._counts[Count.UNKNOWN_MAPS] += 1
            physical = Physical(None, 0)
        else:
            physical = handle.physical
        for old in self.mapped.take_overlapping(start, end):
            old.physical.unpin(1, time_ns)
            if old.physical.holding is not None:
                self._counts[Count.REPLACED] += 1
        if len(self.mapped) >= self._limit:
            self._counts[Count.UNTRACKED] += 1
            return
        physical.pin(time_ns)
        self.mapped.add(Mapping(start, end, physical))

    def unmap(self, start: int, end: int, time_ns: int) -> tuple[list[Mapping], bool]:
        """Unmap the whole mappings in a range. Returns them, and whether the range was made of
        them: the driver unmaps no part of a mapping. To be remapped or settled."""
        taken = self.mapped.take_inside(start, end)
        covered = 0
        for mapping in taken:
            covered += mapping.end - mapping.start
            mapping.physical.unpin(1, time_ns)
        self.unmapped.add_all(taken)  # overlaps nothing: ``map`` keeps the two apart
        return taken, covered == end - start

    def remap(self, mappings: list[Mapping], time_ns: int) -> bool:
        """An unmap failed: the mappings are back. False if a part of the range was mapped anew
        meanwhile; that part's mappings stay unmapped."""
        back = self.unmapped.take_these(mappings)
        self.mapped.add_all(back)
        for mapping in back:
            mapping.physical.pin(time_ns)
        return len(back) == len(mappings)

    def settle(self, mappings: list[Mapping]) -> None:
        """An unmap can no longer fail."""
        self.unmapped.take_these(mappings)
