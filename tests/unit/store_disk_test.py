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


def test_on_a_full_disk_what_is_old_makes_room_for_what_is_new(small_disk: Path) -> None:
    now = START + 1000 * INTERVAL
    store = ProfileStore(small_disk / "store", 64 * MIB, lambda: now)
    for tick in range(1, 50):
        store.put(at(tick, TRAINER, incompressible(tick, 900)))
    state = store.state()
    assert state.error == ""
    assert state.counters["profiles_thinned"] > 0
    assert state.counters["profiles_not_written"] == 0
    assert START + 49 * INTERVAL in store.times(TRAINER)
    history = store.history(TRAINER)
    assert history[-1].until_ns == START + 49 * INTERVAL
    store.close()
    again = ProfileStore(small_disk / "store", 64 * MIB, lambda: now)
    assert again.history(TRAINER) == history
    assert again.load(TRAINER, START + 49 * INTERVAL) == incompressible(49, 900)
    again.close()


def test_a_disk_that_others_filled_is_told_and_tried_again(small_disk: Path) -> None:
    store = ProfileStore(small_disk / "store", 64 * MIB, lambda: START)
    others = small_disk / "others"
    with others.open("wb") as file, pytest.raises(OSError, match="No space"):
        file.write(bytes(2 * MIB))
    store.put(at(1, TRAINER, holding(GIB)))
    assert "No space left" in store.state().error
    assert store.history(TRAINER)[0].gpu == GIB
    others.unlink()
    store.put(at(2, TRAINER, holding(GIB)))
    assert store.state().error == ""
    assert store.times(TRAINER) == [START + 2 * INTERVAL]
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
