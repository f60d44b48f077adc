"""Files and address spaces that are made, or change, to harm the one who looks at them."""

from __future__ import annotations

import lzma
import os
import subprocess
import sys
from pathlib import Path

import elf_builder
import pytest
from elf_builder import TEXT_OFFSET, TEXT_VADDR, Symbol

from gpumemprof.errors import RemoteDataError
from gpumemprof.process import maps
from gpumemprof.process.elf import ElfFile
from gpumemprof.process.maps import MAX_CODE_MAPPINGS, Mapping, Maps
from gpumemprof.process.trust import TENANTS
from gpumemprof.stack import code_files
from gpumemprof.stack.cfi_rows import How, Rule
from gpumemprof.stack.code_files import MAX_STEPS, TOO_MANY, FileCache, RememberedSteps
from gpumemprof.stack.image import ProcessImage
from gpumemprof.stack.steps import Step, UnwindEnd
from gpumemprof.stack.symbols import MAX_NAME, Symbolizer

T = TEXT_VADDR


def mapping_of(path: Path, start: int = 0x10000) -> Mapping:
    """A code mapping of a file that is none of this process's."""
    status = path.stat()
    return Mapping(
        start, start + 0x1000, TEXT_OFFSET, status.st_dev, status.st_ino, str(path), "r-xp", False
    )


@pytest.mark.parametrize("left", [0, 1, 4096, 4100])
def test_a_file_that_is_truncated_while_it_is_read_ends_nothing_but_its_names(
    tmp_path: Path, left: int
) -> None:
    path = tmp_path / "libfoo.so"
    path.write_bytes(elf_builder.build([Symbol("f", T, 16)]))
    files = FileCache(trust=TENANTS)
    image = ProcessImage(os.getpid(), files, maps=Maps((mapping_of(path),)))
    place = image.locate(0x10000)
    assert place is not None
    os.truncate(path, left)
    assert Symbolizer(files).frames([place])[0].name == f"libfoo.so+{T:#x}"
    assert image.step(0x10080).end in {UnwindEnd.NO_CFI, UnwindEnd.BAD_CFI}
    image.close()
    files.patience.close()


def test_what_was_cut_off_an_open_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "libfoo.so"
    path.write_bytes(elf_builder.build([Symbol("f", T, 16)]))
    elf = ElfFile.open(path)
    os.truncate(path, 100)
    with pytest.raises(RemoteDataError, match="truncated"):
        elf.read(TEXT_OFFSET, 16)
    elf.close()


def test_a_process_with_60000_code_mappings_is_read_in_part() -> None:
    script = """
import ctypes, mmap
area = mmap.mmap(-1, 60_000 * 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC)
spans = [line.split()[0].split("-") for line in open("/proc/self/maps")]
size, start = max((int(end, 16) - int(start, 16), int(start, 16)) for start, end in spans)
libc = ctypes.CDLL(None)
for page in range(0, 60_000, 2):  # every second one differs, so that all are mappings of their own
    libc.mprotect(ctypes.c_void_p(start + page * 4096), ctypes.c_size_t(4096), 7)
print(flush=True); input()
"""
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout
    child.stdout.readline()
    whole, code = maps.read(child.pid), maps.read_code(child.pid)
    child.communicate(b"\n")
    assert len(whole) > 60_000
    assert len(code) == MAX_CODE_MAPPINGS
    assert code.mappings == whole.executable()[:MAX_CODE_MAPPINGS]


def test_the_code_mappings_are_those_that_can_run() -> None:
    assert maps.read_code(os.getpid()).executable() == maps.read(os.getpid()).executable()


def test_a_process_with_ever_more_files_has_only_so_many_opened(tmp_path: Path) -> None:
    data = elf_builder.build([Symbol("f", T, 16)])
    mappings = []
    for number in range(TENANTS.files_per_process + 50):
        path = tmp_path / f"lib{number}.so"
        path.write_bytes(data)
        mappings.append(mapping_of(path, 0x10000 * (number + 1)))
    files = FileCache(trust=TENANTS)
    image = ProcessImage(os.getpid(), files, maps=Maps(tuple(mappings)))
    before = len(list(Path("/proc/self/fd").iterdir()))
    for mapping in mappings:
        assert image.locate(mapping.start) is not None
    assert len(list(Path("/proc/self/fd").iterdir())) - before == TENANTS.files_per_process
    assert image.step(mappings[-1].start + 8).detail == "too many code files"
    assert files.too_many().path == TOO_MANY
    image.close()
    files.patience.close()


def test_a_symbol_of_any_length_is_a_name_of_some_length(tmp_path: Path) -> None:
    path = tmp_path / "libfoo.so"
    path.write_bytes(elf_builder.build([Symbol("f" * 10_000, T, 16)]))
    files = FileCache()
    image = ProcessImage(os.getpid(), files, maps=Maps((mapping_of(path),)))
    (frame,) = Symbolizer(files).image_frames(image, [0x10000])
    assert len(frame.name) == MAX_NAME
    assert frame.name.endswith("…")
    image.close()


def test_symbol_tables_that_were_decompressed_are_bounded_in_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_files, "MAX_EMBEDDED", 100_000)
    files = FileCache()
    names = []
    for number in range(10):
        inner = elf_builder.build([Symbol("hidden", T, 16)]).ljust(30_000, b"\0")
        path = tmp_path / f"lib{number}.so"
        extra = {".gnu_debugdata": lzma.compress(inner)}
        path.write_bytes(elf_builder.build(strip=True, extra=extra))
        image = ProcessImage(os.getpid(), files, maps=Maps((mapping_of(path),)))
        names.append(Symbolizer(files).image_frames(image, [0x10000])[0].name)
    assert names[:3] == ["hidden"] * 3
    assert names[3:] == [f"lib{number}.so+{T:#x}" for number in range(3, 10)]


def test_steps_of_all_files_are_bounded_by_what_they_hold() -> None:
    steps = RememberedSteps()
    heavy = Step(bytes(256), {6: Rule(How.EXPRESSION, expression=bytes(256))})
    for address in range(MAX_STEPS // heavy.weight + 10):
        steps.put((1, address), heavy)
    assert steps.get((1, 0)) is None
    assert steps.get((1, address)) is heavy
