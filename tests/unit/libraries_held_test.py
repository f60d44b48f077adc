"""Which probed files stay probed, how the node's own are found, and files that mean harm."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import elf_builder
import pytest
from elf_builder import TEXT_VADDR, Symbol
from library_kit import DRIVER, RUNTIME, X86_64, Kernel, Mapping, cache

from gpumemprof.probe.calls import Library
from gpumemprof.process import maps as process_maps
from gpumemprof.process.elf_symbols import MAX_PLACES
from gpumemprof.process.libraries import UNUSED_DRIVER_SECONDS, UNUSED_SECONDS, LibraryProber
from gpumemprof.process.maps import Maps
from gpumemprof.process.trust import OWN, TENANTS, Trust

pytestmark = pytest.mark.usefixtures("descriptors")


# Letting go


class Clock:
    """Seconds that the test lets pass."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_library_is_let_go_when_no_process_maps_it_for_minutes(
    kernel: Kernel, clock: Clock
) -> None:
    prober = LibraryProber(kernel.attach, clock=clock)
    process = Mapping(RUNTIME)
    prober.scan(process.pid, process.maps)
    process.end()
    attached = len(prober.probed)
    clock.now += UNUSED_SECONDS + 1
    assert prober.release_unused([process.pid]) == 0, "it runs, and was scanned long ago"
    clock.now += UNUSED_SECONDS - 1
    assert prober.release_unused([]) == 0, "it ended just now"
    clock.now += 2
    released = prober.release_unused([])
    drivers = [file for file in prober.probed if file.library is Library.DRIVER]
    assert prober.probed == drivers
    assert released == kernel.closed == attached - len(drivers)
    clock.now += UNUSED_DRIVER_SECONDS
    prober.release_unused([])
    assert prober.probed == []


def test_what_was_let_go_is_probed_again_for_its_next_process(kernel: Kernel, clock: Clock) -> None:
    prober = LibraryProber(kernel.attach, clock=clock)
    process = Mapping(RUNTIME)
    prober.scan(process.pid, process.maps)
    clock.now += UNUSED_DRIVER_SECONDS
    prober.release_unused([])
    before = len(kernel.attached)
    assert prober.scan(process.pid, process.maps)
    process.end()
    assert Library.RUNTIME in {file.library for file in prober.probed}
    assert len(kernel.attached) > before


def test_libraries_in_their_places_stay_probed_without_a_process(
    kernel: Kernel, clock: Clock
) -> None:
    prober = LibraryProber(kernel.attach, clock=clock)
    prober.probe_path(DRIVER)
    prober.probe_path(RUNTIME)
    clock.now += 100 * UNUSED_DRIVER_SECONDS
    assert prober.release_unused([]) == 0
    assert len(prober.probed) == 2


def test_two_probed_files_never_have_one_number(
    kernel: Kernel, clock: Clock, tmp_path: Path
) -> None:
    prober = LibraryProber(kernel.attach, clock=clock)
    process = Mapping(RUNTIME)
    prober.scan(process.pid, process.maps)
    process.end()
    prober.probe_path(DRIVER)
    clock.now += UNUSED_SECONDS
    prober.release_unused([])
    for number in range(5):
        path = tmp_path / str(number) / "libcudart.so.12"
        path.parent.mkdir()
        shutil.copy(RUNTIME, path)
        prober.probe_path(path)
    numbers = [file.number for file in prober.probed]
    assert len(set(numbers)) == len(numbers)


def test_a_file_that_could_not_be_probed_is_tried_again(
    kernel: Kernel, prober: LibraryProber
) -> None:
    process = Mapping(RUNTIME)
    kernel.error = 11
    prober.scan(process.pid, process.maps)
    assert prober.probed == []
    kernel.error = 0
    prober.scan(process.pid, process.maps)
    assert prober.probed == []
    prober.release_unused([process.pid])
    prober.scan(process.pid, process.maps)
    process.end()
    assert Library.RUNTIME in {file.library for file in prober.probed}


def test_numberless_short_processes_leave_nothing_behind(kernel: Kernel, clock: Clock) -> None:
    prober = LibraryProber(kernel.attach, clock=clock)
    process = Mapping(RUNTIME)
    process.end()
    held = []
    for pid in range(10_000, 12_000):  # they are gone: their library is known from its mapping
        prober.scan(pid, process.maps)
        clock.now += UNUSED_SECONDS / 100
        prober.release_unused([pid])
        held.append(sum(len(value) for value in vars(prober).values() if hasattr(value, "__len__")))
    assert max(held[1000:]) <= max(held[:1000])


# The node seen from a container


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A /proc in which process 1 has another root than we have."""
    (tmp_path / "1/root/etc").mkdir(parents=True)
    (tmp_path / "1/mountinfo").write_bytes(Path("/proc/self/mountinfo").read_bytes())
    return tmp_path


def install(node: Path, path: str, library: Path) -> None:
    place = node / "1/root" / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(library, place)


@pytest.mark.parametrize("trust", [OWN, TENANTS], ids=["own", "tenants"])
def test_the_libraries_of_the_node_are_found_through_its_root(
    kernel: Kernel, node: Path, trust: Trust
) -> None:
    install(node, "/opt/driver/libcuda.so.580", DRIVER)
    install(node, "/usr/local/nvidia/lib64/libcuda.so.1", RUNTIME)  # exports none of its calls
    link = node / "1/root/usr/lib/x86_64-linux-gnu/libcuda.so.1"
    link.parent.mkdir(parents=True)
    link.symlink_to("/opt/driver/libcuda.so.580")
    (node / "1/root/etc/ld.so.cache").write_bytes(
        cache(("libcuda.so.1", X86_64, "/usr/lib/x86_64-linux-gnu/libcuda.so.1"))
    )
    prober = LibraryProber(kernel.attach, trust=trust)
    assert prober.probe_root(1, node) == ["/usr/lib/x86_64-linux-gnu/libcuda.so.1"]
    ((data, _),) = kernel.attached
    assert data == DRIVER.read_bytes()
    assert prober.probed[0].stays
    assert list(prober.problems) == ["/usr/local/nvidia/lib64/libcuda.so.1"]
    prober.close()


def test_the_driver_of_the_gpu_operator_is_found_by_its_own_cache(
    kernel: Kernel, prober: LibraryProber, node: Path
) -> None:
    install(node, "/run/nvidia/driver/opt/libcuda.so.1", DRIVER)
    root = node / "1/root/run/nvidia/driver"
    (root / "etc").mkdir()
    (root / "etc/ld.so.cache").write_bytes(cache(("libcuda.so.1", X86_64, "/opt/libcuda.so.1")))
    assert prober.probe_root(1, node) == ["/run/nvidia/driver/opt/libcuda.so.1"]
    assert len(kernel.attached) == 1


def test_a_link_on_the_node_does_not_lead_into_our_own_root(
    kernel: Kernel, prober: LibraryProber, node: Path
) -> None:
    (node / "1/root/usr/lib64").mkdir(parents=True)
    (node / "1/root/usr/lib64/libcuda.so.1").symlink_to(DRIVER)
    assert prober.probe_root(1, node) == []
    assert kernel.attached == []


# Hostile libraries


def test_a_sparse_library_of_terabytes_is_refused_at_once(
    kernel: Kernel, prober: LibraryProber, tmp_path: Path
) -> None:
    path = tmp_path / "libcudart.so.12"
    shutil.copy(RUNTIME, path)
    with path.open("r+b") as file:
        file.truncate(8 << 40)
    prober.probe_path(path)
    assert len(kernel.attached) == 1, "its headers say where everything is, whatever its size"
    with path.open("r+b") as file:
        file.seek(40)
        file.write((1 << 40).to_bytes(8, "little"))  # section headers in the hole: all zero
    prober.probe_path(path)
    assert prober.problems == {}


def test_a_string_table_that_repeats_the_names_of_calls_is_refused(
    kernel: Kernel, prober: LibraryProber, tmp_path: Path
) -> None:
    path = tmp_path / "libcuda.so.1"
    path.write_bytes(elf_builder.build([Symbol("cuInit", TEXT_VADDR)] * (MAX_PLACES + 1)))
    prober.probe_path(path)
    assert "repeats" in prober.problems[str(path)]
    assert kernel.attached == []


@pytest.mark.parametrize("table", [".symtab", ".strtab"])
def test_a_table_of_gigabytes_is_not_read(
    kernel: Kernel, prober: LibraryProber, tmp_path: Path, table: str
) -> None:
    path = tmp_path / "libcuda.so.1"
    data = bytearray(elf_builder.build([Symbol("cuInit", TEXT_VADDR)]))
    headers = int.from_bytes(data[40:48], "little")
    place = headers + 64 * {".symtab": 2, ".strtab": 3}[table]
    data[place + 32 : place + 40] = (24 << 24).to_bytes(8, "little")
    path.write_bytes(data)
    os.truncate(path, 2 << 30)
    prober.probe_path(path)
    assert "a symbol table of" in prober.problems[str(path)]
    assert kernel.attached == []


def test_a_process_with_ever_more_libraries_is_not_followed_for_ever(
    kernel: Kernel, tmp_path: Path
) -> None:
    prober = LibraryProber(kernel.attach, trust=TENANTS)
    fields = []
    for number in range(100):
        path = tmp_path / str(number) / "libcudart.so.12"
        path.parent.mkdir()
        shutil.copy(RUNTIME, path)
        status = path.stat()
        start = 0x10000 * (number + 1)
        fields.append(
            process_maps.Mapping(
                start, start + 0x1000, 0, status.st_dev, status.st_ino, str(path), "r-xp", False
            )
        )
    prober.scan(os.getpid(), Maps(tuple(fields)))
    assert len(kernel.attached) == TENANTS.libraries_per_process
    assert any("too many such libraries" in why for why in prober.problems.values())
    prober.close()
