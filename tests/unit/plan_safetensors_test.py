"""Exact sizes from safetensors headers, of files that may lie."""

from __future__ import annotations

import json
import os
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumemprof.errors import UsageError
from gpumemprof.plan import models, safetensors
from gpumemprof.plan.parameters import weights
from gpumemprof.plan.plan import make
from gpumemprof.plan.safetensors import INDEX, read_directory, read_header
from gpumemprof.plan.tensors import tensors
from tests.unit.plan_examples import LLAMA, llama, plan

_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "U8": 1}


def write(path: Path, held: dict[str, tuple[str, tuple[int, ...]]], **more: Any) -> None:
    """A real file, with as many bytes of data as its header tells (as a hole)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape) in held.items():
        size = _BYTES[dtype]
        for side in shape:
            size *= side
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    raw(path, {**header, **more}, at)


def raw(path: Path, header: Any, data: int) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(file.tell() + data)


def checkpoint_of(tmp_path: Path, files: int = 1, **changes: Any) -> Path:
    """A directory with the config and all tensors of the small Llama."""
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, **changes}))
    held: dict[str, tuple[str, tuple[int, ...]]] = {}
    for tensor in tensors(llama(**changes)):
        for layer in tensor.layers if tensor.layers is not None else (0,):
            name = tensor.name.replace("*", str(layer))
            if name.endswith("input_layernorm.weight"):
                held[name] = ("BF16", (LLAMA["hidden_size"],))
                other = name.replace("input", "post_attention")
                held[other] = ("BF16", (LLAMA["hidden_size"],))
            else:
                held[name] = ("BF16", tensor.shape)
    names = sorted(held)
    where = {}
    for number in range(files):
        part = f"model-{number + 1:05}-of-{files:05}.safetensors"
        write(tmp_path / part, {name: held[name] for name in names[number::files]})
        where.update(dict.fromkeys(names[number::files], part))
    if files > 1:
        total = sum(s.size for f in set(where.values()) for s in read_header(tmp_path / f))
        index = {"metadata": {"total_size": total}, "weight_map": where}
        (tmp_path / INDEX).write_text(json.dumps(index))
    return tmp_path


@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_headers_and_shapes_agree_on_every_rank(tmp_path: Path, files: int, ranks: int) -> None:
    model = models.find(str(checkpoint_of(tmp_path, files)))
    assert model.checkpoint is not None
    assert len(model.checkpoint.files) == files
    from_files = plan(model, ranks=ranks)
    assert "safetensors" in from_files.weights.formula
    assert from_files.weights.bytes == weights(llama(), ranks).total
    assert not any("files hold" in note for note in from_files.notes)


def test_what_files_hold_beyond_the_shapes_is_told(tmp_path: Path) -> None:
    folder = checkpoint_of(tmp_path)
    write(folder / "extra.safetensors", {"adapter.weight": ("F32", (10, 10))})
    made = plan(models.find(str(folder)))
    assert any("+400 bytes" in note for note in made.notes)
    assert made.weights.bytes == weights(llama()).total + 400


def test_quantisation_that_is_asked_for_goes_before_the_files(tmp_path: Path) -> None:
    model = models.find(str(checkpoint_of(tmp_path)))
    request = plan(model).request
    assert make(replace(request, dtype="float32")).weights.bytes == weights(
        llama(), dtype="float32").total  # fmt: skip


def test_an_index_alone_tells_the_total(tmp_path: Path) -> None:
    folder = checkpoint_of(tmp_path, 3)
    for file in folder.glob("*.safetensors"):
        file.unlink()
    found = read_directory(folder)
    assert found is not None
    assert found.size == weights(llama()).total
    assert not found.tensors
    assert any("the index tells of" in note for note in plan(models.find(str(folder))).notes)


def test_a_directory_without_safetensors_has_no_checkpoint(tmp_path: Path) -> None:
    assert read_directory(tmp_path) is None


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.safetensors")
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(UsageError, match="no plain file"):
        read_directory(tmp_path)
    with pytest.raises(UsageError, match="no plain file"):
        models.find(str(tmp_path))


GOOD = {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}
HOSTILE: dict[str, tuple[Any, int, str]] = {
    "not JSON": (b"{", 0, "not JSON"),
    "too deep": (b"[" * 100_000, 0, "not JSON"),
    "a list": ([], 0, "no JSON object"),
    "a tensor of text": ({"a": "b"}, 0, "not described"),
    "no dtype": ({"a": {**GOOD, "dtype": None}}, 12, "unknown dtype"),
    "a dtype of lists": ({"a": {**GOOD, "dtype": [[]]}}, 12, "unknown dtype"),
    "a later dtype": ({"a": {**GOOD, "dtype": "F7"}}, 12, "unknown dtype"),
    "a negative side": ({"a": {**GOOD, "shape": [-2, -3]}}, 12, "no valid shape"),
    "a side of text": ({"a": {**GOOD, "shape": ["2"]}}, 12, "no valid shape"),
    "a side too large": ({"a": {**GOOD, "shape": [10**40]}}, 12, "no valid shape"),
    "a product too large": ({"a": {**GOOD, "shape": [1 << 40] * 10}}, 12, "does not fit"),
    "too many sides": ({"a": {**GOOD, "shape": [1] * 100}}, 12, "no valid shape"),
    "another size": ({"a": {**GOOD, "shape": [2, 4]}}, 12, "does not fit"),
    "no offsets": ({"a": {**GOOD, "data_offsets": None}}, 12, "no valid data_offsets"),
    "offsets backwards": ({"a": {**GOOD, "data_offsets": [12, 0]}}, 12, "no valid data_offsets"),
    "a gap": ({"a": {**GOOD, "data_offsets": [4, 16]}}, 16, "overlap, or leave gaps"),
    "an overlap": ({"a": GOOD, "b": GOOD}, 12, "overlap, or leave gaps"),
    "less data": ({"a": GOOD}, 11, "the file has 11"),
    "more data": ({"a": GOOD}, 13, "the file has 13"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_header_that_lies_is_refused(tmp_path: Path, name: str) -> None:
    header, data, why = HOSTILE[name]
    raw(tmp_path / "a.safetensors", header, data)
    with pytest.raises(UsageError, match=why):
        read_header(tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "cut off"),
        (b"\x01\x02", "cut off"),
        (struct.pack("<Q", 1 << 62) + b"{}", "cut off"),
        (struct.pack("<Q", 3) + b"{}", "cut off"),
    ],
)
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, data: bytes, why: str) -> None:
    (tmp_path / "a.safetensors").write_bytes(data)
    with pytest.raises(UsageError, match=why):
        read_header(tmp_path / "a.safetensors")


def test_a_header_beyond_the_limit_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safetensors, "MAX_HEADER", 10)
    write(tmp_path / "a.safetensors", {"a": ("U8", (1,))})
    with pytest.raises(UsageError, match="more than 10 bytes"):
        read_header(tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ({"a": "../../etc/passwd"}, "no file beside it"),
        ({"a": "/etc/x.safetensors"}, "no file beside it"),
        ({"a": "x.safetensors\0"}, "no file beside it"),
        ({"a": 5}, "no file beside it"),
        ({"a": ["x.safetensors"]}, "index"),
        ([], "no weight_map"),
    ],
)
def test_an_index_that_points_elsewhere_is_refused(tmp_path: Path, names: Any, why: str) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": names}))
    with pytest.raises(UsageError, match=why):
        read_directory(tmp_path)


@given(st.binary(max_size=100), st.integers(0, 50))
def test_any_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, header: bytes, data: int
) -> None:
    path = tmp_path_factory.mktemp("any") / "a.safetensors"
    raw(path, header, data)
    try:
        read_header(path)
    except UsageError:
        return
