"""gzip, bounded and reproducible."""

from __future__ import annotations

import zlib

from gpumemprof.errors import UsageError

_GZIP = 16 + zlib.MAX_WBITS
_PIECE = 64 << 10
_LEVEL = 6


def is_gzip(data: bytes) -> bool:
    """Whether ``data`` begins as gzip does."""
    return data[:2] == b"\x1f\x8b"


def compress(data: bytes) -> bytes:
    """``data`` as one gzip member without time or name: equal data give equal bytes."""
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    return compressor.compress(data) + compressor.flush()


def decompress(data: bytes, limit: int) -> bytes:
    """What the one gzip member ``data`` holds, checked, at most ``limit`` bytes.

    It is unpacked piece by piece and given up at the limit, so that a small file cannot fill the
    memory. Raises UsageError for anything else."""
    unpacked = bytearray()
    decompressor = zlib.decompressobj(_GZIP)
    offset = 0
    while not decompressor.eof:
        piece = decompressor.unconsumed_tail
        if not piece:
            piece = data[offset : offset + _PIECE]
            offset += len(piece)
        try:
            chunk = decompressor.decompress(piece, _PIECE)
        except zlib.error as error:
            raise UsageError("the profile is damaged: its gzip data cannot be unpacked") from error
        unpacked += chunk
        if len(unpacked) > limit:
            raise UsageError(f"the profile unpacks to more than {limit:,} bytes, the limit")
        if not piece and not chunk and not decompressor.eof:
            raise UsageError("the profile is cut off: its gzip data has no end")
    if decompressor.unused_data or offset < len(data):
        raise UsageError("the profile is damaged: something follows the end of its gzip data")
    return bytes(unpacked)
