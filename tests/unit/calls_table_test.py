"""The table of hooked calls: its cookies, and that it names what the libraries export."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path

import pytest
from kernel_side import btf

from gpumemprof.probe.calls import CALLS, ROWS, Action, Call, Library, Mode, Pointer, Size, calls_of

CHECKOUT = Path(__file__).parents[2]
HEADER = (CHECKOUT / "bpf" / "events.h").read_text()
UNPACK = (CHECKOUT / "bpf" / "calls.bpf.h").read_text()
GENUINE = CHECKOUT / "tests" / "fakes" / "genuine"
LISTS = {
    "libcuda.txt": Library.DRIVER,
    "libcudart-12.txt": Library.RUNTIME,
    "libcudart-13.txt": Library.RUNTIME,
}
NOT_MEMORY = {
    "cu*MemPoolCreate": "a pool is empty: memory is counted where it is allocated from it",
    "cu*MemPoolDestroy": "its memory is freed by its own calls",
    "cu*MemPoolTrimTo": "gives back what is free",
    "cu*MemPool[GS]et*": "asks, or changes how a pool works",
    "cu*MemPoolExport*": "gives memory away that is counted already",
    "cu*MemPoolImportFromShareableHandle": "another owner's pool: its pointers are imported later",
    "cu*Device[GS]et*MemPool": "chooses a pool",
    "cu*MemAddress*": "addresses, not memory",
    "cu*MemExport*": "gives memory away that is counted already",
    "cu*Ipc*GetMemHandle": "gives memory away that is counted already",
    "cu*ImportExternalMemory": "another owner's memory: nothing until a buffer of it is mapped",
    "cu*DestroyExternalMemory": "the same",
    "cu*MipmappedArray*Level": "a view of an array: no memory of its own",
}
"""Exports that look as if they allocate, free or share memory and are no rows, beside those in
the list of exclusions of the stand-ins."""


def lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]


def fields_of(cookie: int) -> dict[str, int]:
    """The fields of a cookie by the shifts of events.h and the widths by which it is unpacked."""
    shifts = {k: int(v) for k, v in re.findall(r"#define COOKIE_(\w+)_SHIFT (\d+)", HEADER)}
    masks = re.findall(r"c >> COOKIE_(\w+)_SHIFT\) & (\w+)", UNPACK)
    assert len(masks) == len(shifts) == 9
    return {name: (cookie >> shifts[name]) & int(mask, 0) for name, mask in masks}


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_the_kernel_unpacks_from_a_cookie_what_the_row_says(call: Call) -> None:
    row = ROWS[call.name]
    assert fields_of(call.cookie(row, file=54_321)) == {
        "ID": row,
        "FILE": 54_321,
        "MODE": call.mode,
        "IN_ARG": call.in_arg,
        "IN_LEN": call.in_bytes // 4,
        "OUT1_ARG": call.out1_arg,
        "OUT1_LEN": call.out1_bytes // 4 if call.out1_arg else 0,
        "OUT2_ARG": call.out2_arg,
        "OUT2_LEN": call.out2_bytes // 4 if call.out2_arg else 0,
    }


def test_fields_of_a_cookie_do_not_overlap() -> None:
    shifts = {k: int(v) for k, v in re.findall(r"#define COOKIE_(\w+)_SHIFT (\d+)", HEADER)}
    bits = re.findall(r"#define COOKIE_(\w+)_SHIFT \d+\t/\* (\d+) bits \*/", HEADER)
    assert [name for name, _ in bits] == list(shifts)
    end = 0
    for name, width in bits:
        assert shifts[name] == end
        end += int(width)
    assert end <= 64


def test_a_value_that_does_not_fit_the_cookie_is_refused() -> None:
    with pytest.raises(ValueError, match="65536 does not fit 16 bits"):
        CALLS[0].cookie(0, file=1 << 16)


def test_modes_are_those_of_the_kernel_side() -> None:
    declared = re.findall(r"MODE_(\w+) = (\d+)", HEADER)
    assert {name: int(value) for name, value in declared} == {m.name: m.value for m in Mode}


def test_names_are_unique() -> None:
    assert len(ROWS) == len(CALLS)


def test_every_call_belongs_to_the_library_its_name_says() -> None:
    for call in CALLS:
        prefix = {Library.DRIVER: "cu", Library.RUNTIME: "cuda", Library.LOADER: "_dl_"}
        assert call.name.startswith(prefix[call.library])
        assert call.name.startswith("cuda") == (call.library is Library.RUNTIME)


def test_rows_say_where_everything_stands_that_their_action_needs() -> None:
    for call in CALLS:
        if call.pointer is Pointer.OUT:
            assert call.out1_arg, call
        if call.pointer is Pointer.ARGUMENT:
            assert call.pointer_arg, call
        if call.size in {Size.ARGUMENT, Size.PITCH, Size.CHANNELS}:
            assert call.size_arg, call
        if call.action in {Action.ALLOCATE, Action.VMM_CREATE}:
            assert call.mode is Mode.ALLOC, call
            assert call.size is not Size.NONE, call
        if call.action in {Action.FREE, Action.VMM_UNMAP, Action.VMM_RELEASE}:
            assert call.mode is Mode.FREE, call
        if call.action in {
            Action.CONTEXT_CREATE,
            Action.PRIMARY_RETAIN,
            Action.PRIMARY_RELEASE,
            Action.PRIMARY_RESET,
        }:
            assert call.device_arg, call
        assert call.in_bytes <= 64, call
        assert call.out1_bytes <= 32, call
        assert call.out2_bytes <= 8, call


def test_calls_of_a_library_are_its_rows() -> None:
    found = [calls_of(library) for library in Library]
    assert sum(map(len, found)) == len(CALLS)
    assert all(CALLS[row].name == name for rows in found for name, row in rows.items())


@pytest.mark.parametrize("name", LISTS)
def test_every_export_of_the_genuine_library_that_looks_like_memory_is_a_row_or_explained(
    name: str,
) -> None:
    explained = [*NOT_MEMORY, *(line.split()[0] for line in lines(GENUINE / "excluded.txt"))]
    missing = [
        export
        for export in lines(GENUINE / name)
        if export not in calls_of(LISTS[name])
        and not any(fnmatch.fnmatchcase(export, pattern) for pattern in explained)
    ]
    assert missing == []


@pytest.mark.parametrize("name", LISTS)
def test_every_variant_of_a_hooked_call_that_the_genuine_library_exports_is_a_row(
    name: str,
) -> None:
    rows = calls_of(LISTS[name])
    variant = re.compile(r"(_v\d+)?(_ptsz|_ptds)?$")
    hooked = {variant.sub("", row) for row in rows}
    exports = lines(GENUINE / name)
    assert [e for e in exports if variant.sub("", e) in hooked and e not in rows] == []


def test_every_explanation_is_of_an_export_that_is_no_row() -> None:
    exports = [e for name in LISTS for e in lines(GENUINE / name) if e not in ROWS]
    assert [p for p in NOT_MEMORY if not fnmatch.filter(exports, p)] == []


def test_memory_rows_are_exported_by_the_genuine_libraries() -> None:
    """Contexts and cuInit are not in the lists, which hold what looks like memory."""
    exports = {e for name in LISTS for e in lines(GENUINE / name)}
    memory = {Action.ALLOCATE, Action.FREE, Action.IMPORT}
    vmm = {a for a in Action if a.value.startswith("vmm")}
    gone = [c.name for c in CALLS if c.action in memory | vmm and c.name not in exports]
    assert gone == []


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_what_a_call_is_to_copy_finds_room_in_its_event(call: Call) -> None:
    # the kernel side cuts what is longer without telling
    fields = btf().layout("call_event").fields
    room = {name: fields[name].size * fields[name].count for name in ("in", "out1", "out2")}
    assert call.in_bytes <= room["in"]
    assert call.out1_bytes <= room["out1"]
    assert call.out2_bytes <= room["out2"]
