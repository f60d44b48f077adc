"""The local store on disks that are full or read-only: real ones, where we may mount them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpumemprof.export.store import ProfileStore
from tests.unit.profile_examples import GIB, MIB, START
from tests.unit.store_examples import INTERVAL, SERVER, TRAINER, at, holding, incompressible


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "gpumemprof-test", str(disk)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("file systems cannot be mounted here: needs root")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def remount(disk: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)


def fill_up(disk: Path, but_pages: int = 0) -> Path:
    """Someone else takes all the room that is left, or all but some pages."""
    others = disk / "others"
    with others.open("wb") as file, pytest.raises(OSError, match="No space"):
        while True:
            os.write(file.fileno(), bytes(4096))
    os.truncate(others, others.stat().st_size - 4096 * but_pages)
    return others


def test_a_disk_that_others_fill_costs_nothing_of_what_is_stored(small_disk: Path) -> None:
    store = ProfileStore(small_disk / "store", 64 * MIB, lambda: START)
    for tick in range(1, 21):
        store.put(at(tick, TRAINER, holding(tick * GIB)))
    stored = store.times(TRAINER)
    others = fill_up(small_disk)
    for tick in range(21, 41):
        store.put(at(tick, TRAINER, holding(tick * GIB)))
        assert "No space left" in store.state().error
    state = store.state()
    assert store.times(TRAINER) == stored
    assert all(store.load(TRAINER, time) is not None for time in stored)
    assert state.counters["profiles_thinned"] == state.counters["owners_evicted"] == 0
    assert state.counters["profiles_not_written"] == 20
    others.unlink()
    store.put(at(41, TRAINER, holding(41 * GIB)))
    assert store.state().error == ""
    assert store.times(TRAINER) == [*stored, START + 41 * INTERVAL]
    history = store.history(TRAINER)
    assert [point.gpu for point in history] == [tick * GIB for tick in range(1, 42)]
    store.close()
    again = ProfileStore(small_disk / "store", 64 * MIB, lambda: START)
    assert again.history(TRAINER) == history
    assert again.times(TRAINER) == [*stored, START + 41 * INTERVAL]
    again.close()


def test_a_disk_smaller_than_the_limit_keeps_what_it_has_and_tells(small_disk: Path) -> None:
    store = ProfileStore(small_disk / "store", 64 * MIB, lambda: START)
    for tick in range(1, 50):
        store.put(at(tick, TRAINER, incompressible(tick, 900)))
    state = store.state()
    assert "No space left" in state.error
    assert state.counters["profiles_thinned"] == 0
    assert state.profiles == state.counters["profiles_written"] > 10
    assert store.times(TRAINER)[0] == START + INTERVAL
    assert store.history(TRAINER)[-1].until_ns == START + 49 * INTERVAL
    store.close()


def test_our_own_limit_thins_on_a_full_disk_too(small_disk: Path) -> None:
    store = ProfileStore(small_disk / "store", 64 * MIB, lambda: START)
    for tick in range(1, 21):
        store.put(at(tick, TRAINER, holding(tick * GIB)))
    fill_up(small_disk)
    store._max_bytes = store.state().bytes // 2
    store.put(at(21, TRAINER, holding(21 * GIB)))
    state = store.state()
    assert 0 < state.bytes <= state.max_bytes
    assert "No space left" in state.error
    assert state.counters["profiles_thinned"] > 0
    store.close()


@pytest.mark.parametrize("pages", [0, 1])  # with one it has room to say whose a directory is
def test_a_disk_that_is_full_from_the_start_is_told_and_tried_again(
    small_disk: Path, pages: int
) -> None:
    others = fill_up(small_disk, pages)
    store = ProfileStore(small_disk / "store", 64 * MIB, lambda: START)
    for tick in range(1, 22):
        store.put(at(tick, TRAINER, holding(tick * GIB)))
        assert "No space left" in store.state().error
    assert store.owners() == [TRAINER]
    assert len(store.history(TRAINER)) == 21
    assert store.state().counters["owners_evicted"] == 0
    others.unlink()
    store.put(at(22, TRAINER, holding(22 * GIB)))
    assert store.state().error == ""
    assert store.times(TRAINER) == [START + 22 * INTERVAL]
    store.close()


def test_a_disk_that_turns_read_only_is_told_and_nothing_stops(small_disk: Path) -> None:
    store = ProfileStore(small_disk / "store", 64 * MIB, lambda: START)
    store.put(at(1, TRAINER, holding(GIB)))
    store.put(at(1, SERVER, holding(GIB)))
    remount(small_disk, "ro")
    store.put(at(2, TRAINER, holding(2 * GIB)))
    assert "Read-only" in store.state().error
    assert [point.gpu for point in store.history(TRAINER)] == [GIB, 2 * GIB]
    assert store.load(TRAINER, START + INTERVAL) is not None
    assert store.forget(SERVER.namespace) == 1
    assert store.owners() == [TRAINER]  # gone for readers at once
    assert "Read-only" in store.state().error
    remount(small_disk, "rw")
    store.put(at(3, TRAINER, holding(2 * GIB)))
    assert store.state().error == ""
    assert len([path for path in (small_disk / "store").iterdir() if path.is_dir()]) == 1
    store.close()
    again = ProfileStore(small_disk / "store", 64 * MIB, lambda: START)
    assert again.owners() == [TRAINER]
    assert [point.gpu for point in again.history(TRAINER)] == [GIB, 2 * GIB]
    again.close()


def test_a_disk_that_is_read_only_from_the_start_is_no_reason_not_to_start(
    small_disk: Path,
) -> None:
    remount(small_disk, "ro")
    store = ProfileStore(small_disk / "store", 64 * MIB, lambda: START)
    store.put(at(1, TRAINER, holding(GIB)))
    assert "Read-only" in store.state().error
    assert store.history(TRAINER)[0].gpu == GIB
    store.close()
