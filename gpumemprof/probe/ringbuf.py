"""Reads a BPF ring buffer in place, without a copy and without a callback per record.

Layout (kernel/bpf/ringbuf.c): a page with the consumer position, a page with the producer
position, then the data, which the kernel maps twice in a row so that no record is ever split.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable

_PAGE = mmap.PAGESIZE
_BUSY = 1 << 31
_DISCARD = 1 << 30
_HEADER = 8


class RingBuffer:
    """The reading side of one ring. Not thread-safe: one reader."""

    def __init__(self, fd: int, size: int) -> None:
        """``size``: max_entries of the map, in bytes."""
        self.fd = fd
        self._size = size
        self._mask = size - 1
        self._consumer_map = mmap.mmap(fd, _PAGE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._producer_map = mmap.mmap(
            fd, _PAGE + 2 * size, mmap.MAP_SHARED, mmap.PROT_READ, offset=_PAGE
        )
        # A memoryview of 8-byte items loads and stores a position in one instruction.
        self._consumer = memoryview(self._consumer_map).cast("Q")
        view = memoryview(self._producer_map)
        self._producer = view[:8].cast("Q")
        self._data = view[_PAGE:]
        self._words = self._data.cast("I")

    @property
    def waiting(self) -> int:
        """Bytes that wait to be read."""
        return self._producer[0] - self._consumer[0]

    @property
    def position(self) -> int:
        """Where reading goes on: grows for ever."""
        return self._consumer[0]

    @property
    def blocked(self) -> bool:
        """Whether the next record is there but not finished: what follows it has to wait."""
        start = self._consumer[0]
        return start < self._producer[0] and bool(self._words[(start & self._mask) >> 2] & _BUSY)

    def drain(self, handle: Callable[[memoryview], None], limit: int = 1 << 30) -> int:
        """Pass each waiting record, at most ``limit``, to ``handle``; returns how many.

        The memoryview is valid only during the call. Space is given back record by record, so
        that a burst finds room as soon as it can.
        """
        consumer, words, data, mask = self._consumer, self._words, self._data, self._mask
        position, producer, count = consumer[0], self._producer[0], 0
        while position < producer and count < limit:
            start = position & mask
            length = words[start >> 2]
            if length & _BUSY:
                break
            size = length & ~_DISCARD
            if not length & _DISCARD:
                with data[start + _HEADER : start + _HEADER + size] as record:
                    handle(record)
                count += 1
            position += (size + _HEADER + 7) & ~7
            consumer[0] = position
            if position >= producer:
                producer = self._producer[0]
        return count

    def close(self) -> None:
        """Unmap. The ring must not be used afterwards."""
        for view in (self._words, self._data, self._producer, self._consumer):
            view.release()
        self._producer_map.close()
        self._consumer_map.close()
