"""What the kernel side sends, made in memory: records by the layouts of the compiled object, and
rings as the kernel lays them out."""

from __future__ import annotations

import functools
import mmap
import os
from contextlib import closing
from pathlib import Path

from gpumemprof.probe.btf import Btf
from gpumemprof.probe.events import EventType, StackState
from gpumemprof.probe.ringbuf import RingBuffer
from gpumemprof.process.elf import ElfFile

OBJECT = Path(__file__).parents[2] / "gpumemprof" / "probe" / "gpumemprof.bpf.o"
PAGE = mmap.PAGESIZE
BUSY, DISCARD = 1 << 31, 1 << 30
HEADER = 8


@functools.cache
def btf() -> Btf:
    """The types of the compiled object."""
    with closing(ElfFile.open(OBJECT)) as elf:
        data = elf.section_data(".BTF", 1 << 20)
    assert data, "the BPF programs are not built: make build"
    return Btf(data)


def record(structure: str, **values: int) -> bytes:
    """A record by field name; ``pid`` and the like are of its header."""
    layout = btf().layout(structure)
    header = {name: f"h.{name}" for name in ("time_ns", "start_ns", "pid", "tid", "type", "call")}
    return layout.pack({header.get(name, name): value for name, value in values.items()})


def call_record(tid: int, time_ns: int, *, stack_id: int = 0, **values: int) -> bytes:
    """An allocation returned."""
    sent = StackState.SENT if stack_id else StackState.NONE
    defaults = {"pid": 1, "start_ns": 500, "type": EventType.RETURN, "stack_state": sent}
    return record(
        "call_event",
        **{**defaults, "tid": tid, "time_ns": time_ns, "stack_id": stack_id, **values},
    )


def stack_record(
    tid: int, time_ns: int, stack_id: int, window: bytes = b"w" * 16, **values: int
) -> bytes:
    """The stack of an allocation."""
    defaults = {"pid": 1, "start_ns": 500, "type": EventType.STACK, "stack_len": len(window)}
    named = {"tid": tid, "time_ns": time_ns, "stack_id": stack_id, **values}
    return record("stack_event", **{**defaults, **named}) + window


class Ring:
    """A ring of ``size`` bytes in a file of memory: consumer page, producer page, data twice."""

    def __init__(self, size: int = PAGE, start: int = 0) -> None:
        """``start``: where both positions stand; they only ever grow."""
        self.size = size
        self._fd = os.memfd_create("ring")
        os.ftruncate(self._fd, 2 * PAGE + 2 * size)
        self._map = mmap.mmap(self._fd, 2 * PAGE + 2 * size)
        self._consumer = memoryview(self._map)[:8].cast("Q")
        self._producer = memoryview(self._map)[PAGE : PAGE + 8].cast("Q")
        self._consumer[0] = self._producer[0] = start
        self.reader = RingBuffer(self._fd, size)

    @property
    def consumed(self) -> int:
        """The consumer's position."""
        return self._consumer[0]

    @property
    def room(self) -> int:
        """Bytes that the kernel could still write."""
        return self.size - (self._producer[0] - self._consumer[0])

    def send(self, data: bytes, flags: int = 0) -> int:
        """Write a record; returns its position."""
        length = (HEADER + len(data) + 7) & ~7
        assert length <= self.room, "the ring is full"
        position = self._producer[0]
        header = (len(data) | flags).to_bytes(4, "little") + b"\xaa" * 4  # page offset: not read
        for i, byte in enumerate(header + data):
            self._put((position + i) % self.size, byte)
        self._producer[0] = position + length
        return position

    def commit(self, position: int, flags: int = 0) -> None:
        """What was busy is ready, or with ``flags`` discarded."""
        place = position % self.size
        start = 2 * PAGE + place
        word = int.from_bytes(self._map[start : start + 4], "little") & ~BUSY | flags
        for i, byte in enumerate(word.to_bytes(4, "little")):
            self._put(place + i, byte)

    def _put(self, place: int, byte: int) -> None:
        # the kernel maps its pages twice in a row, a file has to hold them twice
        self._map[2 * PAGE + place] = self._map[2 * PAGE + self.size + place] = byte

    def drain(self, limit: int = 1 << 30) -> list[bytes]:
        """Copies of the records that can be read."""
        found: list[bytes] = []
        self.reader.drain(lambda view: found.append(bytes(view)), limit)
        return found

    def close(self) -> None:
        self.reader.close()
        self._consumer.release()
        self._producer.release()
        self._map.close()
        os.close(self._fd)
