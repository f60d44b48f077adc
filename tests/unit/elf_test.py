"""ELF files: read in place, whole or damaged."""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from elf_builder import TEXT_OFFSET, TEXT_VADDR, Symbol, build
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumemprof.errors import RemoteDataError
from gpumemprof.process.elf import SHT_DYNSYM, SHT_SYMTAB, ElfFile
from gpumemprof.process.elf_symbols import file_offsets
from gpumemprof.process.file_key import real_file_key
from gpumemprof.stack.cfi import CallFrameInfo
from gpumemprof.stack.symbol_index import SymbolIndex

LIBC = Path("/usr/lib/x86_64-linux-gnu/libc.so.6")

needs_libc = pytest.mark.skipif(not LIBC.exists(), reason="needs Debian's libc")
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

SOURCE = """
int plain(int x) { return x + 1; }
int other(int x) { return x - 1; }
static int one(void) { return 1; }
void *choose(void) { return (void *)one; }
int chosen(void) __attribute__((ifunc("choose")));
int renamed_old(int x) { return x; }
int renamed_new(int x) { return x * 2; }
__asm__(".symver renamed_old, renamed@V1");
__asm__(".symver renamed_new, renamed@@V2");
int data = 5;
__attribute__((weak)) int weakly(int x) { return x * 3; }
"""


@pytest.fixture(scope="module", params=["gnu", "sysv", "both"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    return compiled(tmp_path_factory.mktemp("library"), request.param)


def compiled(directory: Path, hash_style: str) -> Path:
    (directory / "l.c").write_text(SOURCE)
    (directory / "l.map").write_text("V1 { global: *; };\nV2 { global: renamed; } V1;\n")
    path = directory / "libl.so"
    subprocess.run(
        ["gcc", "-O2", "-shared", "-fPIC", f"-Wl,--hash-style={hash_style}", "-Wl,--build-id",
         f"-Wl,--version-script={directory / 'l.map'}", "-Wl,-soname,libl.so.1", "-o", path,
         directory / "l.c"],
        check=True,
    )  # fmt: skip
    return path


def nm_offsets(path: Path, *names: str) -> dict[str, int]:
    """File offsets of symbols as binutils tell addresses and segments."""
    elf = ElfFile.open(path)
    text = subprocess.run(["nm", "-D", path], capture_output=True, text=True, check=True).stdout
    found = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) == 3 and fields[2] in names:
            found[fields[2].split("@")[0]] = elf.offset_of(int(fields[0], 16))
    return found


def test_functions_are_found_by_name_with_the_offsets_that_nm_tells(library: Path) -> None:
    found = file_offsets(ElfFile.open(library), ["plain", "other", "weakly", "absent", ""])
    assert found == nm_offsets(library, "plain@@V1", "other@@V1", "weakly@@V1")
    assert len(found) == 3


def test_the_default_version_of_a_name_counts(library: Path) -> None:
    assert file_offsets(ElfFile.open(library), ["renamed"]) == nm_offsets(library, "renamed@@V2")


def test_data_and_indirect_functions_are_no_functions(library: Path) -> None:
    assert file_offsets(ElfFile.open(library), ["data", "chosen"]) == {}


def test_functions_that_are_not_exported_are_found_in_the_symbol_table(library: Path) -> None:
    elf = ElfFile.open(library)
    found = file_offsets(elf, ["one", "plain"])
    assert found.keys() == {"one", "plain"}
    assert found["one"] != found["plain"]


def test_the_same_functions_are_found_without_section_headers(library: Path) -> None:
    data = bytearray(library.read_bytes())
    data[0x28:0x30] = bytes(8)  # e_shoff
    data[0x3C:0x40] = bytes(4)  # e_shnum, e_shstrndx
    stripped = ElfFile.from_bytes(bytes(data))
    assert stripped.sections == ()
    assert file_offsets(stripped, ["plain"]) == file_offsets(ElfFile.open(library), ["plain"])
    assert stripped.build_id == ElfFile.open(library).build_id != ""


def test_a_library_says_what_it_is(library: Path) -> None:
    elf = ElfFile.open(library)
    assert elf.soname == "libl.so.1"
    assert elf.interpreter == ""
    assert not elf.is_go
    assert ElfFile.open(sys.executable).interpreter.startswith("/lib")


@needs_libc
def test_every_exported_function_of_libc_is_found_where_nm_says() -> None:
    text = subprocess.run(
        ["nm", "-D", "--defined-only", LIBC], capture_output=True, text=True, check=True
    ).stdout
    expected: dict[str, int] = {}
    for line in text.splitlines():
        address, kind, name = line.split()
        if kind in "TW" and ("@@" in name or "@" not in name):
            expected[name.split("@")[0]] = int(address, 16)
    elf = ElfFile.open(LIBC)
    found = file_offsets(elf, expected)
    assert found == {name: elf.offset_of(vaddr) for name, vaddr in expected.items()}
    assert len(found) > 2000


@pytest.mark.skipif(not Path("/usr/local/go/bin/go").exists(), reason="needs a Go binary")
def test_a_go_binary_is_recognised() -> None:
    assert ElfFile.open("/usr/local/go/bin/go").is_go


def test_addresses_and_offsets_follow_the_segments() -> None:
    elf = ElfFile.from_bytes(build())
    assert elf.offset_of(TEXT_VADDR + 5) == TEXT_OFFSET + 5
    assert elf.code_vaddr(TEXT_OFFSET + 5) == TEXT_VADDR + 5
    assert elf.code_vaddr(0) is None
    with pytest.raises(RemoteDataError, match="no byte of the file"):
        elf.offset_of(TEXT_VADDR + 0x1000)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "outside the file"),
        (b"\x7fELF", "outside the file"),
        (b"#!/bin/sh\n" + bytes(100), "not an ELF file"),
        (b"\x7fELF\x01\x01" + bytes(100), "64-bit"),
        (b"\x7fELF\x02\x02" + bytes(100), "little-endian"),
    ],
)
def test_what_is_no_such_file_is_refused_with_the_reason(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(RemoteDataError, match=message):
        ElfFile.open(path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_file_that_is_truncated_while_it_is_open_gives_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(build([Symbol("f", TEXT_VADDR, 16)]))
    elf = ElfFile.open(path)
    os.truncate(path, 100)
    with pytest.raises(RemoteDataError, match="truncated"):
        _ = elf.sections


def test_a_closed_file_gives_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(build())
    elf = ElfFile.open(path)
    elf.close()
    with pytest.raises(RemoteDataError, match="closed"):
        elf.read(0, 4)


def test_absurd_counts_are_refused() -> None:
    data = bytearray(build())
    struct.pack_into("<H", data, 0x38, 0xFFFF)  # e_phnum
    with pytest.raises(RemoteDataError, match="program headers"):
        ElfFile.from_bytes(bytes(data))
    data = bytearray(build())
    struct.pack_into("<H", data, 0x3C, 0)  # e_shnum: the count is in the first section header
    elf = ElfFile.from_bytes(bytes(data))
    struct.pack_into("<Q", data, elf._section_table + 32, 1 << 40)
    with pytest.raises(RemoteDataError, match="sections"):
        _ = ElfFile.from_bytes(bytes(data)).sections


@needs_gcc
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_damaged_file_gives_a_result_or_an_error_and_never_hangs(
    library_bytes: bytes, data: st.DataObject
) -> None:
    damaged = bytearray(library_bytes)
    headers = st.integers(0, 64 + 56 * 12)
    anywhere = st.integers(0, len(damaged) - 9)
    for _ in range(data.draw(st.integers(1, 8))):
        position = data.draw(st.one_of(headers, anywhere))
        damaged[position : position + 8] = data.draw(
            st.one_of(
                st.binary(min_size=1, max_size=8),
                st.sampled_from([b"\xff" * 8, b"\0" * 8, b"\xff\xff\xff\x7f", b"\0\0\0\x80"]),
            )
        )
    if data.draw(st.booleans()):
        del damaged[data.draw(anywhere) :]
    _use_all_of(bytes(damaged))


def _use_all_of(content: bytes) -> None:
    try:
        elf = ElfFile.from_bytes(content)
    except RemoteDataError:
        return
    with contextlib.suppress(RemoteDataError):
        file_offsets(elf, ["plain", "one", "absent"])
    with contextlib.suppress(RemoteDataError):
        _ = elf.build_id, elf.is_go, elf.interpreter
    with contextlib.suppress(RemoteDataError):
        _ = elf.soname
    for kind in (SHT_DYNSYM, SHT_SYMTAB):
        with contextlib.suppress(RemoteDataError):
            index = SymbolIndex(elf, kind)
            for address in range(0, 0x3000, 0x111):
                index.find(address)
    with contextlib.suppress(RemoteDataError):
        frames = CallFrameInfo(elf)
        for address in range(0x1000, 0x1200, 3):
            with contextlib.suppress(RemoteDataError):
                frames.row_at(address)


@pytest.fixture(scope="module")
def library_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return compiled(tmp_path_factory.mktemp("damaged"), "both").read_bytes()


def test_two_paths_to_one_file_have_one_key_and_a_rewritten_file_has_another(
    tmp_path: Path,
) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"x" * 100)
    link.hardlink_to(path)

    def key(file: Path) -> object:
        fd = os.open(file, os.O_RDONLY)
        try:
            return real_file_key(fd)
        finally:
            os.close(fd)

    first = key(path)
    assert key(link) == first
    path.write_bytes(b"y" * 100)
    assert key(link) != first
