"""Objects out of a stream of JSON, one at a time, so that neither many nor large ones are ever held
as a whole: the list of a node's pods can have several megabytes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from gpumemprof.errors import RemoteDataError
from gpumemprof.kube.json_object import mapping_in, text_in

MAX_OBJECT_BYTES = 4 << 20
"""JSON of one object. Stored ones have at most 1.5 MB; those of real pods, 10 to 50 KB."""
MAX_SKELETON_BYTES = 1 << 20
"""What a list has besides its objects."""
_PREFIX_BYTES = 4096
"""Kept of an object that is too large: its uid stands before anything that its author could make
long."""

_UID = re.compile(rb'"uid":\s*"([0-9A-Za-z-]{1,64})"')
_OUTSIDE = re.compile(rb'[{}\[\]"]')
_IN_STRING = re.compile(rb'["\\]')
_QUOTE, _BACKSLASH = b'"\\'
_OPENING = b"{["


class Piece(NamedTuple):
    """The text of one object; only its beginning where it is not ``whole``."""

    data: bytes
    whole: bool = True

    def json(self) -> dict[str, Any]:
        """Raises RemoteDataError when it is not a whole JSON object."""
        if not self.whole:
            raise RemoteDataError(f"an object has more than {MAX_OBJECT_BYTES:,} bytes")
        try:
            value = json.loads(self.data)
        except (ValueError, RecursionError) as error:
            raise RemoteDataError(f"not JSON: {str(error)[:100]}") from error
        if not isinstance(value, dict):
            raise RemoteDataError("not a JSON object")
        return value

    def uid(self) -> str:
        """The uid of the object, without reading all of it; empty if it has none."""
        match = _UID.search(self.data[:_PREFIX_BYTES])
        return match[1].decode() if match else ""


class _Bounded:
    """Bytes of one object as they come; no more than the beginning once they are too many."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = bytearray()
        self._whole = True

    def add(self, data: bytes | memoryview) -> None:
        if self._whole:
            self._data += data
            if len(self._data) > self._limit:
                self._whole = False
                del self._data[_PREFIX_BYTES:]

    def piece(self) -> Piece:
        return Piece(bytes(self._data), self._whole)


def lines(chunks: Iterable[bytes], limit: int = MAX_OBJECT_BYTES) -> Iterator[Piece]:
    """The lines of a watch. One that the end of the stream cuts off is not among them."""
    line = _Bounded(limit)
    for chunk in chunks:
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            line.add(end)
            piece = line.piece()
            line = _Bounded(limit)
            if piece.data.strip():
                yield piece
        line.add(rest)


class ObjectList:
    """The objects of ``{"metadata": {…}, "items": [{…}, …]}``. Iterate once.

    Raises RemoteDataError, after the last object at the latest, for what is no such list or is cut
    off.
    """

    def __init__(self, chunks: Iterable[bytes], limit: int = MAX_OBJECT_BYTES) -> None:
        self._chunks = chunks
        self._limit = limit
        self._skeleton = bytearray()
        """The list with a 0 in the place of each object."""
        self.resource_version = ""
        """Of the list; known when all objects were read."""

    def __iter__(self) -> Iterator[Piece]:
        nesting = bytearray()
        item: _Bounded | None = None
        in_string = False
        skip = 0  # bytes of the next chunk that belong to an escape sequence
        for chunk in self._chunks:
            start, at = 0, skip
            while match := (_IN_STRING if in_string else _OUTSIDE).search(chunk, at):
                byte, at = chunk[match.start()], match.end()
                if byte == _BACKSLASH:
                    at += 1
                elif byte == _QUOTE:
                    in_string = not in_string
                elif byte in _OPENING:
                    if item is None and nesting == b"{[" and byte == _OPENING[0]:
                        self._add(chunk[start : match.start()] + b"0")
                        start, item = match.start(), _Bounded(self._limit)
                    nesting.append(byte)
                else:
                    if not nesting:
                        raise RemoteDataError("a list ends before it begins")
                    nesting.pop()
                    if item is not None and len(nesting) == 2:
                        item.add(chunk[start:at])
                        yield item.piece()
                        start, item = at, None
            skip = max(0, at - len(chunk))
            if item is None:
                self._add(chunk[start:])
            else:
                item.add(chunk[start:])
        if nesting or in_string:
            raise RemoteDataError("a list is cut off")
        self.resource_version = self._version()

    def _version(self) -> str:
        skeleton = Piece(bytes(self._skeleton)).json()
        version = text_in(mapping_in(skeleton, "metadata"), "resourceVersion")
        if "items" not in skeleton or not version:
            raise RemoteDataError("not a list: no resource version, or no items")
        return version

    def _add(self, data: bytes) -> None:
        self._skeleton += data
        if len(self._skeleton) > MAX_SKELETON_BYTES:
            raise RemoteDataError("a list has too much besides its objects")
