"""Which function covers an address, and what it is called."""

from __future__ import annotations

import lzma
import os
import zlib
from pathlib import Path

import pytest
from elf_builder import (
    FUNC,
    GLOBAL,
    LOCAL,
    NOTYPE,
    OBJECT,
    TEXT_VADDR,
    WEAK,
    Symbol,
    build,
)

from gpumemprof.errors import RemoteDataError
from gpumemprof.process.elf import SHT_SYMTAB, ElfFile
from gpumemprof.process.maps import Mapping
from gpumemprof.stack.code_files import CodeFile, FileCache
from gpumemprof.stack.frames import Frame
from gpumemprof.stack.perf_map import PerfMap
from gpumemprof.stack.symbol_index import SymbolIndex, best
from gpumemprof.stack.symbols import Symbolizer

T = TEXT_VADDR


def name_at(symbols: list[Symbol], vaddr: int) -> str | None:
    index = SymbolIndex(ElfFile.from_bytes(build(symbols)), SHT_SYMTAB)
    found = best(index.find(vaddr))
    return found.name.decode() if found else None


def test_an_address_belongs_to_the_function_whose_size_covers_it() -> None:
    symbols = [Symbol("first", T, 16), Symbol("second", T + 32, 16)]
    assert name_at(symbols, T) == "first"
    assert name_at(symbols, T + 15) == "first"
    assert name_at(symbols, T + 47) == "second"


def test_an_address_between_functions_has_no_name() -> None:
    symbols = [Symbol("first", T, 16), Symbol("second", T + 32, 16)]
    assert name_at(symbols, T + 16) is None
    assert name_at(symbols, T + 48) is None
    assert name_at(symbols, T - 1) is None


def test_a_label_without_size_covers_what_follows_up_to_the_next_symbol() -> None:
    symbols = [Symbol("entry", T, 0, NOTYPE), Symbol("next", T + 64, 16)]
    assert name_at(symbols, T + 63) == "entry"
    assert name_at(symbols, T + 64) == "next"
    assert name_at(symbols, T + 80) is None


def test_a_label_inside_a_function_does_not_hide_it() -> None:
    symbols = [Symbol("outer", T, 64), Symbol("loop", T + 16, 0, NOTYPE, LOCAL)]
    assert name_at(symbols, T + 20) == "outer"


def test_a_label_covers_nothing_beyond_its_section() -> None:
    symbols = [Symbol("last", T, 0, NOTYPE)]
    assert name_at(symbols, T + 0xFFF) == "last"
    assert name_at(symbols, T + 0x1000) is None


def test_only_functions_give_names() -> None:
    symbols = [
        Symbol("data", T, 64, OBJECT),
        Symbol("undefined", T, 64, FUNC, GLOBAL, section=0),
        Symbol("$x", T, 0, NOTYPE, LOCAL),
    ]
    assert name_at(symbols, T + 4) is None


def test_of_several_names_the_public_one_is_told() -> None:
    symbols = [
        Symbol("__GI___read", T, 16, FUNC, LOCAL),
        Symbol("__read", T, 16, FUNC, GLOBAL),
        Symbol("read", T, 16, FUNC, WEAK),
    ]
    assert name_at(symbols, T + 3) == "read"


def test_a_function_larger_than_the_ranges_of_the_index_is_found_from_its_end() -> None:
    small = [Symbol(f"f{i}", T + 0x80000 + 16 * i, 16) for i in range(4000)]
    symbols = [Symbol("large", T, 0x80000), *small]
    index = SymbolIndex(ElfFile.from_bytes(build(symbols, text_size=0x100000)), SHT_SYMTAB)
    found = best(index.find(T + 0x7FFFF))
    assert found is not None
    assert found.name == b"large"


def test_an_index_of_400000_symbols_is_small() -> None:
    """A file of libtorch's kind: what is held, and what building takes at its peak."""
    import tracemalloc

    count = 400_000
    data = build([Symbol(f"f{i}", T + 32 * i, 24) for i in range(count)], text_size=32 * count)
    elf = ElfFile.from_bytes(data)
    tracemalloc.start()
    index = SymbolIndex(elf, SHT_SYMTAB)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(index) == count
    assert index.bytes_held < 4 << 20
    assert peak < 20 << 20
    for i in (0, 1, 12_345, 399_999):
        assert [c.name for c in index.find(T + 32 * i + 23)] == [b"f%d" % i]
        assert index.find(T + 32 * i + 24) == []


@pytest.mark.parametrize("count", [-1, 24 * 10**12, 23])
def test_a_symbol_table_of_impossible_size_is_refused(count: int) -> None:
    data = bytearray(build([Symbol("f", T, 16)]))
    elf = ElfFile.from_bytes(bytes(data))
    number = next(i for i, s in enumerate(elf.sections) if s.type == SHT_SYMTAB)
    position = elf._section_table + 64 * number + 32
    data[position : position + 8] = (count & 2**64 - 1).to_bytes(8, "little")
    damaged = ElfFile.from_bytes(bytes(data))
    if count == 23:
        assert len(SymbolIndex(damaged, SHT_SYMTAB)) == 0
    else:
        with pytest.raises(RemoteDataError):
            SymbolIndex(damaged, SHT_SYMTAB)


# Files, separate debug files, perf maps: through FileCache, for this very process


@pytest.fixture
def files() -> FileCache:
    return FileCache()


def opened(files: FileCache, path: Path) -> CodeFile:
    """The file as if this process had it mapped."""
    status = path.stat()
    mapping = Mapping(1, 2, 0, status.st_dev, status.st_ino, str(path), "r-xp", False)
    return files.mapped(os.getpid(), mapping)


def test_a_place_without_symbol_is_named_by_file_and_address(
    files: FileCache, tmp_path: Path
) -> None:
    path = tmp_path / "libfoo.so"
    path.write_bytes(build([Symbol("f", T, 16)]))
    file = opened(files, path)
    symbolizer = Symbolizer(files)
    assert symbolizer.frames([(file.id, T + 0x234), (file.id, T + 4)]) == [
        Frame(f"libfoo.so+{T + 0x234:#x}", module=str(path)),
        Frame("f", module=str(path)),
    ]
    assert symbolizer.counters()["frames_without_symbol"] == 1


def test_a_place_that_is_no_code_or_in_an_unknown_file_is_a_note(files: FileCache) -> None:
    names = [frame.name for frame in Symbolizer(files).frames([(0, 0x1234), (77, 1)])]
    assert names == ["[not code]", "[file no longer known]"]


def test_cpp_names_are_cut_unless_full_names_are_asked_for(
    files: FileCache, tmp_path: Path
) -> None:
    path = tmp_path / "libcpp.so"
    path.write_bytes(build([Symbol("_ZN3foo3barEi", T, 16)]))
    place = (opened(files, path).id, T)
    assert Symbolizer(files).frames([place])[0].name == "foo::bar"
    assert Symbolizer(files, full_names=True).frames([place])[0].name == "foo::bar(int)"


def debug_link(name: str, content: bytes) -> bytes:
    field = name.encode() + b"\0"
    return field.ljust((len(field) + 3) & ~3, b"\0") + zlib.crc32(content).to_bytes(4, "little")


def test_symbols_of_a_stripped_file_come_from_the_file_its_debug_link_names(
    files: FileCache, tmp_path: Path
) -> None:
    debug = build([Symbol("hidden", T, 16, binding=LOCAL)])
    (tmp_path / ".debug").mkdir()
    (tmp_path / ".debug" / "libfoo.debug").write_bytes(debug)
    path = tmp_path / "libfoo.so"
    path.write_bytes(build(strip=True, extra={".gnu_debuglink": debug_link("libfoo.debug", debug)}))
    assert Symbolizer(files).frames([(opened(files, path).id, T)])[0].name == "hidden"


def test_a_debug_file_with_another_checksum_is_not_used(files: FileCache, tmp_path: Path) -> None:
    debug = build([Symbol("hidden", T, 16)])
    (tmp_path / "libfoo.debug").write_bytes(build([Symbol("other", T, 16)]))
    path = tmp_path / "libfoo.so"
    path.write_bytes(build(strip=True, extra={".gnu_debuglink": debug_link("libfoo.debug", debug)}))
    name = Symbolizer(files).frames([(opened(files, path).id, T)])[0].name
    assert name == f"libfoo.so+{T:#x}"


@pytest.mark.parametrize("name", ["../outside.debug", "/etc/passwd", "..", ""])
def test_a_debug_link_names_a_file_and_no_path(files: FileCache, tmp_path: Path, name: str) -> None:
    debug = build([Symbol("outside", T, 16)])
    (tmp_path / "outside.debug").write_bytes(debug)
    (tmp_path / "lib").mkdir()
    path = tmp_path / "lib" / "libfoo.so"
    path.write_bytes(build(strip=True, extra={".gnu_debuglink": debug_link(name, debug)}))
    assert Symbolizer(files).frames([(opened(files, path).id, T)])[0].name.startswith("libfoo.so+")


def test_symbols_come_from_the_compressed_table_inside_a_stripped_file(
    files: FileCache, tmp_path: Path
) -> None:
    inner = lzma.compress(build([Symbol("kept", T, 16)]), lzma.FORMAT_XZ)
    path = tmp_path / "libfoo.so"
    path.write_bytes(build(strip=True, extra={".gnu_debugdata": inner}))
    assert Symbolizer(files).frames([(opened(files, path).id, T)])[0].name == "kept"


@pytest.mark.parametrize(
    "data",
    [
        b"not xz at all",
        lzma.compress(bytes(80 << 20), lzma.FORMAT_XZ),
        lzma.compress(b"no ELF file", lzma.FORMAT_XZ),
        lzma.compress(build(), lzma.FORMAT_XZ)[:-20],
    ],
    ids=["damaged", "bomb", "not ELF", "cut"],
)
def test_a_damaged_compressed_table_gives_no_names_and_no_error(
    files: FileCache, tmp_path: Path, data: bytes
) -> None:
    path = tmp_path / "libfoo.so"
    path.write_bytes(build(strip=True, extra={".gnu_debugdata": data}))
    assert Symbolizer(files).frames([(opened(files, path).id, T)])[0].name == f"libfoo.so+{T:#x}"


def perf_map(tmp_path: Path, text: bytes) -> PerfMap:
    path = tmp_path / "perf.map"
    path.write_bytes(text)
    return PerfMap(os.open(path, os.O_RDONLY))


def test_a_later_line_of_a_perf_map_replaces_an_earlier_one(tmp_path: Path) -> None:
    lines = b"1000 20 old\n2000 10 py::f:/app/x.py\n1000 20 new name\nnonsense\nzz 1 a\n"
    found = perf_map(tmp_path, lines).names([0x1000, 0x101F, 0x1020, 0x2005])
    assert found == {0x1000: "new name", 0x101F: "new name", 0x2005: "py::f:/app/x.py"}


def test_a_perf_map_whose_lines_all_cover_everything_ends_in_bounded_time(tmp_path: Path) -> None:
    text = b"0 ffffffffffffffff x\n" * 300_000
    found = perf_map(tmp_path, text).names(range(0, 1 << 20, 100))
    assert set(found.values()) == {"x"}  # and not after hours


def test_the_perf_map_of_another_user_is_not_believed(tmp_path: Path) -> None:
    path = Path(f"/tmp/perf-{os.getpid()}.map")
    if os.geteuid() != 0:
        pytest.skip("needs root to give a file away")
    path.write_text("1000 20 forged\n")
    try:
        assert PerfMap.of_process(os.getpid()).present
        os.chown(path, 12345, 12345)
        assert not PerfMap.of_process(os.getpid()).present
    finally:
        path.unlink()


def test_the_cache_closes_files_that_no_process_uses_beyond_its_limit(tmp_path: Path) -> None:
    files = FileCache(limit=2)
    held = []
    for i in range(4):
        path = tmp_path / f"lib{i}.so"
        path.write_bytes(build([Symbol(f"f{i}", T, 16)]))
        held.append(opened(files, path))
    assert len(files) == 4  # all in use
    for file in held:
        files.release(file)
    assert len(files) == 2
    assert files.closed == 2
    names = [frame.name for frame in Symbolizer(files).frames([(f.id, T) for f in held])]
    assert names == ["[file no longer known]"] * 2 + ["f2", "f3"]
