"""How many bytes a call obtained, or asked for, by its row of the table of calls.

Descriptor layouts: CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR, cudaChannelFormatDesc and
cudaExtent of the CUDA headers. Alignment that the driver adds to arrays is not visible.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from gpumemprof.probe.calls import Call, Size
from gpumemprof.probe.events import CallEvent

_READ_IN, _READ_OUT1, _READ_OUT2, _READ_STACK_ARGS = 1, 2, 4, 8

_FORMAT_BYTES = {0x01: 1, 0x02: 2, 0x03: 4, 0x08: 1, 0x09: 2, 0x0A: 4, 0x10: 2, 0x20: 4}
"""CUarray_format: unsigned, signed 8/16/32 bits, half, float. Others (planar video, block
compression) are counted as one byte per channel, which errs low."""

_UINT32 = 0xFFFFFFFF


_LAYERS = 0x01 | 0x04
"""CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP, as cudaArrayLayered | cudaArrayCubemap: the depth is
a number of layers or faces, which every mipmap level has."""


def _cells(width: int, height: int, depth: int, levels: int = 1, flags: int = 0) -> int:
    """Elements of an array and its mipmap levels; the driver ignores levels past the smallest."""
    if not width:
        return 0
    total = 0
    deep = 1 if flags & _LAYERS else max(1, depth)
    for level in range(max(1, min(levels, max(width, height, deep).bit_length()))):
        total += max(1, width >> level) * max(1, height >> level) * max(1, deep >> level)
    return total * (max(1, depth) if flags & _LAYERS else 1)


def _words(event: CallEvent) -> bytes:
    return struct.pack(f"<{len(event.in_words)}Q", *event.in_words)


def _levels(call: Call, event: CallEvent) -> int:
    return event.args[call.levels_arg - 1] & _UINT32 if call.levels_arg else 1


def _size_argument(call: Call, event: CallEvent, position: int) -> int:
    size = event.args[position - 1]
    return size & _UINT32 if call.narrow else size


def _argument(call: Call, event: CallEvent) -> int:
    return _size_argument(call, event, call.size_arg)


def _pitch(call: Call, event: CallEvent) -> int | None:
    height = _size_argument(call, event, call.size_arg)
    if event.error:  # it wrote no pitch: this is what was asked for
        return _size_argument(call, event, call.size_arg - 1) * height
    return event.out2 * height if event.readable & _READ_OUT2 else None


def _pitched_pointer(_: Call, event: CallEvent) -> int | None:
    width, height, depth = event.stack_args[:3]
    if not event.error:
        if not event.readable & _READ_OUT1:
            return None
        width = event.out1[1]
    return width * max(1, height) * max(1, depth)


def _array_descriptor(call: Call, event: CallEvent, layout: str) -> int:
    *extent, form, channels = struct.unpack_from(layout, _words(event))
    width, height, depth = (*extent, 0)[:3]
    return int(_cells(width, height, depth) * _FORMAT_BYTES.get(form, 1) * channels)


def _array3d_descriptor(call: Call, event: CallEvent, layout: str) -> int:
    width, height, depth, form, channels, flags = struct.unpack_from(layout, _words(event))
    cells = _cells(width, height, depth, _levels(call, event), flags)
    return int(cells * _FORMAT_BYTES.get(form, 1) * channels)


def _channel_bytes(event: CallEvent) -> int:
    bits: tuple[int, ...] = struct.unpack_from("<4i", _words(event))
    return sum(max(0, b) for b in bits) // 8


def _channels(call: Call, event: CallEvent) -> int:
    width, height = event.args[call.size_arg - 1 : call.size_arg + 1]
    return _cells(width, height, 0) * _channel_bytes(event)


def _channels_extent(call: Call, event: CallEvent) -> int:
    width, height, depth = event.stack_args[:3]
    flags = event.args[call.flags_arg - 1] & _UINT32 if call.flags_arg else 0
    return _cells(width, height, depth, _levels(call, event), flags) * _channel_bytes(event)


_RULES: dict[Size, tuple[int, Callable[[Call, CallEvent], int | None]]] = {
    Size.ARGUMENT: (0, _argument),
    Size.PITCH: (0, _pitch),
    Size.PITCHED_POINTER: (_READ_STACK_ARGS, _pitched_pointer),
    Size.ARRAY_DESCRIPTOR: (_READ_IN, lambda c, e: _array_descriptor(c, e, "<QQII")),
    Size.ARRAY_DESCRIPTOR_V1: (_READ_IN, lambda c, e: _array_descriptor(c, e, "<IIII")),
    Size.ARRAY3D_DESCRIPTOR: (_READ_IN, lambda c, e: _array3d_descriptor(c, e, "<QQQIII")),
    Size.ARRAY3D_DESCRIPTOR_V1: (_READ_IN, lambda c, e: _array3d_descriptor(c, e, "<IIIIII")),
    Size.CHANNELS: (_READ_IN, _channels),
    Size.CHANNELS_EXTENT: (_READ_IN | _READ_STACK_ARGS, _channels_extent),
}


def size_of(call: Call, event: CallEvent) -> int | None:
    """Bytes the call obtained, or asked for if it failed; None if what tells was unreadable."""
    rule = _RULES.get(call.size)
    if rule is None:
        return 0
    needs, function = rule
    if event.readable & needs != needs:
        return None
    return function(call, event)
