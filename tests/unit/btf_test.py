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


def test_a_damaged_blob_is_refused_and_nothing_else_happens() -> None:
    whole = btf().with_global(())
    with pytest.raises(ValueError, match="ends early"):
        Btf(whole[: len(whole) // 4])


def test_maps_are_known_by_their_declarations() -> None:
    maps = btf().maps("maps")
    assert maps["processes"] == {"type": 1, "max_entries": 16384, "key_size": 4, "value_size": 4}
    assert maps["python_targets"]["value_size"] == btf().layout("python_target").size
    assert maps["threads"]["value_size"] == btf().layout("thread_state").size
    assert maps["events"] == {"type": 27, "max_entries": 4 << 20}


def test_every_map_of_the_programs_is_among_the_declarations() -> None:
    if shutil.which("bpftool") is None:
        pytest.skip("bpftool is not installed")
    command = ["bpftool", "--json", "btf", "dump", "file", str(OBJECT)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    types = json.loads(output)["types"]
    names = {t["id"]: t["name"] for t in types}
    (section,) = (t for t in types if t["kind"] == "DATASEC" and t["name"] == ".maps")
    assert {names[var["type_id"]] for var in section["vars"]} == {*btf().maps("maps")}


def test_a_function_is_marked_as_global_without_changing_anything_else() -> None:
    before = btf().with_global(())
    after = btf().with_global(["on_exit"])
    differing = [i for i in range(len(before)) if before[i] != after[i]]
    assert len(differing) <= 1
    assert Btf(after).function("on_exit") == btf().function("on_exit")


def test_members_of_a_member_without_a_name_are_found() -> None:
    # as pahole writes task_struct where the kernel shuffles its fields: struct outer { int a;
    # struct { int b; int c; }; }
    strings = b"\0outer\0a\0b\0c\0int\0"
    at = {name: strings.index(b"\0" + name.encode() + b"\0") + 1 for name in "abc"}
    types = (
        struct.pack("<IIII", strings.index(b"int"), 1 << 24, 4, 32)
        + struct.pack("<III" + "III" * 2, 0, 4 << 24 | 2, 8, at["b"], 1, 0, at["c"], 1, 32)
        + struct.pack("<III" + "III" * 2, 1, 4 << 24 | 2, 12, at["a"], 1, 0, 0, 2, 32)
    )
    header = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(strings))
    made = Btf(header + types + strings)
    assert [made.offset("outer", name) for name in "abc"] == [0, 4, 8]
    assert set(made.layout("outer").fields) == {"a", "b", "c"}
    with pytest.raises(KeyError):
        made.offset("outer", "d")
