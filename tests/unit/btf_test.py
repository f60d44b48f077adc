"""Structure layouts as read from the compiled object, against what bpftool says of it."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_side import OBJECT, btf, record

from gpumemprof.probe.btf import Btf, Field, Layout
from gpumemprof.probe.events import EventType, PythonState, StackState

SHARED = (
    "call_event", "stack_event", "process_event", "python_frame", "python_target", "settings",
    "event_header",
)  # fmt: skip


@pytest.fixture(scope="module")
def dumped() -> dict[str, dict[str, Any]]:
    """bpftool's types by name."""
    if shutil.which("bpftool") is None:
        pytest.skip("bpftool is not installed")
    command = ["bpftool", "--json", "btf", "dump", "file", str(OBJECT)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {t["name"]: t for t in json.loads(output)["types"] if t["kind"] in {"STRUCT", "ENUM"}}


@pytest.mark.parametrize("name", SHARED)
def test_sizes_and_offsets_are_those_bpftool_shows(
    name: str, dumped: dict[str, dict[str, Any]]
) -> None:
    layout = btf().layout(name)
    assert layout.size == dumped[name]["size"]
    offsets = {m["name"]: m["bits_offset"] // 8 for m in dumped[name]["members"]}
    assert {n: f.offset for n, f in layout.fields.items() if "." not in n} == offsets


@pytest.mark.parametrize("name", ["counter", "call_mode", "event_type", "stack_state"])
def test_enumerators_are_those_bpftool_shows(name: str, dumped: dict[str, dict[str, Any]]) -> None:
    assert btf().enum(name) == {v["name"]: v["val"] for v in dumped[name]["values"]}


@pytest.mark.parametrize(
    ("name", "prefix", "values"),
    [
        ("event_type", "EVENT_", EventType),
        ("stack_state", "STACK_", StackState),
        ("python_state", "PY_", PythonState),
    ],
)
def test_values_in_python_are_those_of_the_kernel_side(
    name: str, prefix: str, values: type[EventType]
) -> None:
    assert {n.removeprefix(prefix): v for n, v in btf().enum(name).items()} == {
        v.name: v.value for v in values
    }


def test_members_of_inner_structures_have_their_place_in_the_outer_one() -> None:
    fields = btf().layout("call_event").fields
    assert fields["h.pid"] == Field(16, 4, 1, signed=False)
    assert fields["args"].count == 6
    assert fields["args"].size == 8


def test_signed_members_are_signed() -> None:
    fields = btf().layout("python_target").fields
    assert fields["tls_offset"].signed
    assert not fields["tss_key_addr"].signed


def test_what_is_packed_is_unpacked_by_name() -> None:
    data = record("call_event", pid=7, context=1 << 60, readable=15)
    unpacker = btf().layout("call_event").unpacker("h.pid", "context", "args", "readable")
    assert unpacker.unpack_from(data) == (7, 1 << 60, 0, 0, 0, 0, 0, 0, 15)


def test_negative_numbers_are_packed_where_a_field_is_signed() -> None:
    layout = btf().layout("python_target")
    data = layout.pack({"tls_offset": -64})
    assert layout.unpacker("tls_offset").unpack_from(data) == (-64,)


def test_a_field_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(KeyError):
        btf().layout("settings").pack({"no_such": 1})
    with pytest.raises(KeyError):
        btf().layout("no_such")
    with pytest.raises(KeyError):
        btf().enum("no_such")


def test_fields_are_unpacked_in_the_order_they_have() -> None:
    layout = Layout(16, {"a": Field(0, 8, 1, signed=False), "b": Field(8, 8, 1, signed=False)})
    with pytest.raises(ValueError, match="field a is out of order"):
        layout.unpacker("b", "a")


@given(st.binary(max_size=64))
def test_what_is_not_btf_is_refused(data: bytes) -> None:
    with pytest.raises((ValueError, struct.error)):
        Btf(data)
