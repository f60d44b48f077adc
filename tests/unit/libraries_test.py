"""Which files are probed: by name, by the linker's cache, by what processes map; each once."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from library_kit import DRIVER, I386, RUNTIME, X86_64, Kernel, Mapping, cache

from gpumemprof.probe.attach import Target
from gpumemprof.probe.calls import CALLS, ROWS, Library, calls_of
from gpumemprof.process.libraries import (
    LibraryProber,
    classify,
    installed_libraries,
    ld_cache_paths,
    missing_calls,
)

# Names

NAMES = [
    ("/usr/lib/x86_64-linux-gnu/libcuda.so.1", Library.DRIVER),
    ("/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04", Library.DRIVER),
    ("/usr/local/cuda/lib64/stubs/libcuda.so", Library.DRIVER),
    ("/x/nvidia/cuda_runtime/lib/libcudart.so.12", Library.RUNTIME),
    ("/x/torch/lib/libcudart-9335f6a2.so.12", Library.RUNTIME),
    ("/usr/local/cuda/lib64/libcudart.so.11.8.89", Library.RUNTIME),
    ("/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", Library.LOADER),
    ("/lib/x86_64-linux-gnu/ld-2.31.so", Library.LOADER),
    ("/lib/ld-musl-x86_64.so.1", Library.LOADER),
    ("/x/libcudart_static.a", None),
    ("/x/libcudadebugger.so.1", None),
    ("/x/libcudart.so.12/data", None),
    ("/x/notlibcuda.so.1", None),
    ("/x/libcuda.so.1.bak", None),
    ("/x/ld.so.cache", None),
    ("[vdso]", None),
    ("", None),
]


@pytest.mark.parametrize(("path", "library"), NAMES)
def test_a_library_is_known_by_its_file_name(path: str, library: Library | None) -> None:
    assert classify(path) is library


@given(st.text())
def test_any_path_is_of_a_library_or_not(path: str) -> None:
    assert classify(path) in {None, *Library}


# The linker's cache


INSTALLED = cache(
    ("libcuda.so.1", X86_64, "/usr/lib/x86_64-linux-gnu/libcuda.so.1"),
    ("libcuda.so.1", I386, "/usr/lib/i386-linux-gnu/libcuda.so.1"),
    ("libcuda.so", X86_64, "/usr/lib/x86_64-linux-gnu/libcuda.so"),
    ("libcudart.so.12", X86_64, "/usr/local/cuda/lib64/libcudart.so.12"),
)


def test_the_cache_tells_where_a_library_is() -> None:
    assert ld_cache_paths(INSTALLED, "libcudart.so.12") == ["/usr/local/cuda/lib64/libcudart.so.12"]
    assert ld_cache_paths(INSTALLED, "libcudart.so.13") == []


def test_32_bit_libraries_beside_it_are_not_meant() -> None:
    found = ld_cache_paths(INSTALLED, "libcuda.so.1")
    assert found == ["/usr/lib/x86_64-linux-gnu/libcuda.so.1"]


def test_the_cache_may_follow_one_of_the_old_format() -> None:
    data = cache(("libcuda.so.1", X86_64, "/a"), before=b"ld.so-1.7.0\0" + b"\0" * 52)
    assert ld_cache_paths(data, "libcuda.so.1") == ["/a"]


def test_the_cache_of_this_machine_is_read() -> None:
    found = ld_cache_paths(Path("/etc/ld.so.cache").read_bytes(), "libc.so.6")
    assert found
    assert all(Path(path).exists() for path in found)


@given(st.binary(max_size=300))
def test_a_file_of_any_bytes_lists_nothing_or_paths(data: bytes) -> None:
    assert isinstance(ld_cache_paths(data, "libcuda.so.1"), list)


@given(st.integers(0, len(INSTALLED) - 1), st.integers(0, 255), st.integers(0, len(INSTALLED)))
def test_a_damaged_cache_never_fails(place: int, byte: int, end: int) -> None:
    damaged = bytearray(INSTALLED)
    damaged[place] = byte
    assert isinstance(ld_cache_paths(bytes(damaged[:end]), "libcuda.so.1"), list)


def test_installed_libraries_are_found_by_path_cache_and_habit(tmp_path: Path) -> None:
    root, own = tmp_path / "root", tmp_path / "own"
    for path in ("opt/libcudart.so.12", "usr/lib64/libcuda.so.1", "etc/ld.so.cache"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"")
    (root / "etc/ld.so.cache").write_bytes(
        cache(("libcudart.so.12", X86_64, "/opt/libcudart.so.12"))
    )
    own.mkdir()
    (own / "libcudart.so.13").write_bytes(b"")
    (own / "libcudart.so.12").symlink_to(root / "opt/libcudart.so.12")
    assert installed_libraries(f"{own}::/no/such", root) == [
        own / "libcudart.so.12",  # the same file as the cache's: once
        own / "libcudart.so.13",
        root / "usr/lib64/libcuda.so.1",
    ]


def test_a_machine_without_any_has_none(tmp_path: Path) -> None:
    assert installed_libraries("", tmp_path) == []


# Probing


pytestmark = pytest.mark.usefixtures("descriptors")


def names_of(targets: Sequence[Target]) -> set[str]:
    return {CALLS[target.cookie & 0x3FF].name for target in targets}


def test_a_library_is_probed_where_its_calls_are(kernel: Kernel, prober: LibraryProber) -> None:
    prober.probe_path(RUNTIME)
    ((data, targets),) = kernel.attached
    assert data == RUNTIME.read_bytes()
    assert names_of(targets) == set(calls_of(Library.RUNTIME))
    for target in targets:
        call = CALLS[target.cookie & 0x3FF]
        assert target.needs_return == call.needs_return
    (probed,) = prober.probed
    assert (probed.path, probed.library) == (str(RUNTIME), Library.RUNTIME)


def test_one_file_is_probed_once_by_whatever_path(
    kernel: Kernel, prober: LibraryProber, tmp_path: Path
) -> None:
    shutil.copy(RUNTIME, tmp_path / "libcudart.so.12.9.79")
    (tmp_path / "libcudart.so.12").symlink_to("libcudart.so.12.9.79")
    for name in ("libcudart.so.12.9.79", "libcudart.so.12"):
        prober.probe_path(tmp_path / name)
    assert len(kernel.attached) == 1


def test_each_file_has_a_number_of_its_own(kernel: Kernel, prober: LibraryProber) -> None:
    prober.probe_path(DRIVER)
    prober.probe_path(RUNTIME)
    numbers = [{t.cookie >> 10 & 0xFFFF for t in targets} for _, targets in kernel.attached]
    assert numbers == [{1}, {2}]


def test_several_names_of_one_function_are_one_place(
    kernel: Kernel, prober: LibraryProber, tmp_path: Path
) -> None:
    source = tmp_path / "aliases.c"
    source.write_text(
        "int cuMemAlloc_v2(void) { return 0; }\n"
        'int cuMemAlloc(void) __attribute__((alias("cuMemAlloc_v2")));\n'
        "int cuMemFree_v2(void) { return 1; }\n"
    )
    library = tmp_path / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    prober.probe_path(library)
    ((_, targets),) = kernel.attached
    assert sorted(target.cookie & 0x3FF for target in targets) == sorted(
        [ROWS["cuMemAlloc_v2"], ROWS["cuMemFree_v2"]]
    )
    assert prober.probed[0].calls.count("cuMemAlloc") == 1


def test_a_pipe_in_the_place_of_a_library_is_told_and_does_not_block(
    kernel: Kernel, prober: LibraryProber, tmp_path: Path
) -> None:
    path = tmp_path / "libcuda.so.1"
    os.mkfifo(path)
    prober.probe_path(path)
    assert prober.problems == {str(path): "it is not a regular file"}
    assert kernel.attached == []


def damaged(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    text, folder, other = (tmp_path / name / "libcuda.so.1" for name in ("text", "folder", "other"))
    for path in (text, folder, other):
        path.parent.mkdir()
    text.write_text("no library")
    yield text, "outside the file"
    folder.mkdir()
    yield folder, "not a regular file"
    shutil.copy("/bin/true", other)
    yield other, "exports none of the hooked calls"
    yield tmp_path / "none" / "libcuda.so.1", "ENOENT"
    yield tmp_path / "libother.so", "name is none of a hooked library"


def test_what_cannot_be_probed_is_a_problem_with_its_reason(
    kernel: Kernel, prober: LibraryProber, tmp_path: Path
) -> None:
    for path, why in damaged(tmp_path):
        prober.probe_path(path)
        assert why in prober.problems[str(path)]
    assert kernel.attached == []


def test_what_the_kernel_refuses_is_a_problem_with_its_reason(
    kernel: Kernel, prober: LibraryProber
) -> None:
    kernel.error = 22
    prober.probe_path(RUNTIME)
    assert "attaching failed: EINVAL" in prober.problems[str(RUNTIME)]
    kernel.error = 0
    prober.probe_path(RUNTIME)
    assert prober.problems == {}
    assert len(kernel.attached) == 1


def test_problems_are_told_once_and_without_control_characters(
    prober: LibraryProber, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "\x1b[2J"
    folder.mkdir()
    (folder / "libcuda.so.1").write_text("no library")
    for _ in range(2):
        prober.probe_path(folder / "libcuda.so.1")
    (record,) = caplog.records
    assert "\x1b" not in record.getMessage()


def test_closing_detaches_everything(kernel: Kernel, prober: LibraryProber) -> None:
    prober.probe_path(DRIVER)
    prober.probe_path(RUNTIME)
    prober.close()
    assert kernel.closed == 2
    assert prober.probed == []


# What processes map


def test_a_process_that_maps_a_library_shows_it(kernel: Kernel, prober: LibraryProber) -> None:
    process = Mapping(RUNTIME)
    assert prober.scan(process.pid, process.maps)
    assert {file.library for file in prober.probed} >= {Library.RUNTIME, Library.LOADER}
    attached = len(kernel.attached)
    assert prober.scan(process.pid, process.maps)
    assert len(kernel.attached) == attached
    process.end()


def test_a_process_without_cuda_shows_none(prober: LibraryProber) -> None:
    process = Mapping(Path("libm.so.6"))
    assert not prober.scan(process.pid, process.maps)
    process.end()


def test_a_library_of_a_process_that_just_ended_is_probed_with_the_next(
    prober: LibraryProber,
) -> None:
    first, second = Mapping(RUNTIME), Mapping(RUNTIME)
    first.end()
    prober.scan(first.pid, first.maps)
    assert prober.problems == {}
    prober.scan(second.pid, second.maps)
    second.end()
    assert Library.RUNTIME in {file.library for file in prober.probed}


def test_a_mapping_leads_to_its_probed_file_whatever_path_it_was_probed_by(
    prober: LibraryProber, tmp_path: Path
) -> None:
    real, link = tmp_path / "libcudart.so.12.9.79", tmp_path / "libcudart.so.12"
    shutil.copy(RUNTIME, real)
    link.symlink_to(real.name)
    prober.probe_path(link)
    process = Mapping(link)
    prober.scan(process.pid, process.maps)
    process.end()
    (mapping,) = [m for m in process.maps.executable() if m.path == str(real)]
    found = prober.file_of(mapping)
    assert found
    assert found.path == str(link)


def test_calls_that_no_probed_file_exports_are_counted(prober: LibraryProber) -> None:
    prober.probe_path(RUNTIME)
    assert missing_calls(prober.probed) == {
        "libcuda": len(calls_of(Library.DRIVER)),
        "libcudart": 0,
        "ld": 1,
    }
