"""Sizes from safetensors files: their headers only, never the data. The files are hostile.

Format: 8 bytes with the length of the header (little endian), the header as JSON (tensor name →
dtype, shape, begin and end of its data), then the data without gaps.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpumemprof.errors import UsageError
from gpumemprof.plan.dtypes import SAFETENSORS
from gpumemprof.profile.text import printable

MAX_HEADER = 100 << 20
"""Bytes of a header: the format's own limit."""
MAX_FILES = 2_000
MAX_TENSORS = 2_000_000
_MAX_INDEX = 256 << 20
_MAX_RANK = 16
_MAX_SIDE = 1 << 50
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor in a file; ``size``: bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """``size``: bytes of all tensors. ``tensors`` is empty where only the index was there, and
    ``files`` is what was read."""

    size: int
    tensors: tuple[Stored, ...]
    files: tuple[str, ...]


def read_directory(directory: Path) -> Checkpoint | None:
    """What the checkpoint in ``directory`` holds; None if it has no safetensors.

    With an index the files it names are read; where they are not there (a download of the small
    files only) the index tells the total. Raises UsageError for a damaged or hostile file."""
    index = directory / INDEX
    if index.is_file():
        names, total = _read_index(index)
        present = [name for name in names if (directory / name).is_file()]
        if len(present) < len(names):
            if total is None:
                raise UsageError(f"{printable(str(index))} names files that are not there")
            return Checkpoint(total, (), (INDEX,))
    else:
        names = sorted(path.name for path in directory.glob("*.safetensors"))[: MAX_FILES + 1]
        if not names:
            return None
    if len(names) > MAX_FILES:
        raise UsageError(f"more than {MAX_FILES:,} safetensors files, the limit")
    tensors: dict[str, Stored] = {}
    for name in names:
        for tensor in read_header(directory / name):
            if tensor.name in tensors:
                raise UsageError(f"two files hold the tensor {_short(tensor.name)}")
            tensors[tensor.name] = tensor
        if len(tensors) > MAX_TENSORS:
            raise UsageError(f"more than {MAX_TENSORS:,} tensors, the limit")
    return Checkpoint(
        sum(tensor.size for tensor in tensors.values()), tuple(tensors.values()), tuple(names)
    )


def read_header(path: Path) -> list[Stored]:
    """The tensors of one file. Raises UsageError, with the file and the reason, if it is no
    safetensors file or its header contradicts itself or the file's size."""
    try:
        if path.exists() and not path.is_file():  # a pipe without a writer would never answer
            raise UsageError("it is no plain file")
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > size - 8:
                raise UsageError("it is cut off, or no safetensors file")
            if length > MAX_HEADER:
                raise UsageError(f"its header has more than {MAX_HEADER:,} bytes, the limit")
            header = _parse(file.read(length))
        return _tensors(header, size - 8 - length)
    except OSError as error:
        raise UsageError(f"{printable(str(path))} cannot be read: {error.strerror}") from error
    except UsageError as error:
        raise UsageError(f"{printable(str(path))}: {error}") from error


def _tensors(header: dict[str, Any], data: int) -> list[Stored]:
    found: list[Stored] = []
    spans: list[tuple[int, int]] = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        stored, begin = _tensor(name, entry)
        found.append(stored)
        spans.append((begin, begin + stored.size))
    spans.sort()
    at = 0
    for begin, end in spans:
        if begin != at:
            raise UsageError("the tensors overlap, or leave gaps")
        at = end
    if at != data:
        raise UsageError(f"the header tells of {at:,} bytes of data, the file has {data:,}")
    return found


def _tensor(name: str, entry: object) -> tuple[Stored, int]:
    if not isinstance(entry, dict):
        raise UsageError(f"the tensor {_short(name)} is not described")
    dtype = entry.get("dtype")
    bits = SAFETENSORS.get(dtype) if isinstance(dtype, str) else None
    if bits is None:
        raise UsageError(f"the tensor {_short(name)} has an unknown dtype")
    shape = _numbers(entry.get("shape"))
    if shape is None or len(shape) > _MAX_RANK:
        raise UsageError(f"the tensor {_short(name)} has no valid shape")
    offsets = _numbers(entry.get("data_offsets"))
    if offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise UsageError(f"the tensor {_short(name)} has no valid data_offsets")
    elements = math.prod(shape)
    begin, end = offsets
    if elements > _MAX_SIDE or -(-elements * bits // 8) != end - begin:
        raise UsageError(f"the shape of the tensor {_short(name)} does not fit its bytes")
    return Stored(name, str(dtype), shape, end - begin), begin


def _numbers(value: object) -> tuple[int, ...] | None:
    if not isinstance(value, list):
        return None
    if not all(type(side) is int and 0 <= side <= _MAX_SIDE for side in value):
        return None
    return tuple(value)


def _read_index(path: Path) -> tuple[list[str], int | None]:
    """The files that an index names, and the total bytes it tells."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_INDEX + 1)
        if len(data) > _MAX_INDEX:
            raise UsageError(f"it has more than {_MAX_INDEX:,} bytes, the limit")
        index = _parse(data)
        weights = index.get("weight_map")
        if not isinstance(weights, dict):
            raise UsageError("it has no weight_map")
        names = set(weights.values())
        for name in names:
            if not isinstance(name, str) or not _plain_name(name):
                raise UsageError("it names something that is no file beside it")
        metadata = index.get("metadata")
        total = metadata.get("total_size") if isinstance(metadata, dict) else None
        valid = type(total) is int and 0 <= total <= _MAX_SIDE
        return sorted(names), total if valid else None
    except OSError as error:
        raise UsageError(f"{printable(str(path))} cannot be read: {error.strerror}") from error
    except (UsageError, TypeError) as error:
        raise UsageError(f"{printable(str(path))}: {error}") from error


def _plain_name(name: str) -> bool:
    return name.endswith(".safetensors") and "/" not in name and "\0" not in name


def _parse(data: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError("its header is not JSON") from error
    if not isinstance(parsed, dict):
        raise UsageError("its header is no JSON object")
    return parsed


def _short(name: str) -> str:
    return printable(name[:80])
