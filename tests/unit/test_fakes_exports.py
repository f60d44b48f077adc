"""The stand-ins have the symbols of the genuine files, versions and shape included."""

import fnmatch
import functools
import subprocess
from pathlib import Path

import pytest
from fakes_cuda import FAKES

from gpumemprof.probe.calls import CALLS, Library

GENUINE = Path(__file__).parents[1] / "fakes" / "genuine"
LISTS = {
    "libcuda.so.1": "libcuda.txt",
    "libcudart.so.12": "libcudart-12.txt",
    "libcudart.so.13": "libcudart-13.txt",
}
LIBRARIES = tuple(LISTS)


def lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]


EXCLUDED = {line.split()[0] for line in lines(GENUINE / "excluded.txt")}


@functools.cache
def exported(library: str) -> dict[str, str]:
    """Name to version of what a library exports; "" where it has none."""
    command = ["nm", "-D", "--defined-only", FAKES / library]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    names = [line.split()[2] for line in output.splitlines() if line.split()[1] == "T"]
    return {name.partition("@@")[0]: name.partition("@@")[2] for name in names}


def is_excluded(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in EXCLUDED)


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_allocating_export_of_the_genuine_file_is_there_or_explained(library: str) -> None:
    genuine = lines(GENUINE / LISTS[library])
    missing = [n for n in genuine if n not in exported(library) and not is_excluded(n)]
    assert missing == []
    assert [n for n in genuine if n in exported(library) and is_excluded(n)] == []


def test_every_exclusion_is_of_something() -> None:
    names = [name for library in LIBRARIES for name in lines(GENUINE / LISTS[library])]
    assert [p for p in EXCLUDED if not fnmatch.filter(names, p)] == []


@pytest.mark.parametrize("library", LIBRARIES)
def test_nothing_is_exported_that_the_genuine_file_has_not(library: str) -> None:
    genuine = lines(GENUINE / LISTS[library])
    looks = (
        "MemAlloc",
        "Malloc",
        "Free",
        "Pool",
        "Array",
        "Ipc",
        "External",
        "MemMap",
        "MemCreate",
    )
    ours = [name for name in exported(library) if any(look in name for look in looks)]
    assert [name for name in ours if name not in genuine] == []


def test_symbols_have_the_versions_of_the_genuine_files() -> None:
    assert exported("libcudart.so.12")["cudaMalloc"] == "libcudart.so.12"
    assert exported("libcudart.so.13")["cudaMalloc"] == "libcudart.so.13"
    assert exported("libcuda.so.1")["cuMemAlloc_v2"] == ""


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_files_are_stripped_and_unwind_by_eh_frame(library: str) -> None:
    command = ["readelf", "-SW", FAKES / library]
    sections = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert ".eh_frame_hdr" in sections
    assert ".symtab" not in sections
    assert ".debug_frame" not in sections


def test_every_hooked_call_is_exported() -> None:
    runtime = {**exported("libcudart.so.12"), **exported("libcudart.so.13")}
    for call in CALLS:
        if call.library is Library.DRIVER:
            assert call.name in exported("libcuda.so.1"), call.name
        elif call.library is Library.RUNTIME:
            assert call.name in runtime, call.name
