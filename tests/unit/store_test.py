"""The local store: what is kept, what goes first, what survives restarts, and what is forgotten."""

from __future__ import annotations

import gzip
import itertools
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpumemprof.errors import RemoteDataError, UsageError
from gpumemprof.export.model import Owner
from gpumemprof.export.store import ProfileStore
from gpumemprof.export.store_files import owner_id
from gpumemprof.profile.model import Profile
from tests.unit.profile_examples import GIB, MIB, SECOND, START, TRAINING
from tests.unit.store_examples import (
    HOST,
    INTERVAL,
    SERVER,
    TRAINER,
    at,
    holding,
    incompressible,
    out_of_memory,
)

HOUR = 3600 * SECOND
DAY = 24 * HOUR


class Clock:
    """A wall clock that tests set."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def store_in(path: Path, clock: Clock, max_bytes: int = 64 * MIB, **more: int) -> ProfileStore:
    return ProfileStore(path / "store", max_bytes, clock, **more)


def files_of(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file() and file.name != "lock")


def disk_usage(path: Path) -> int:
    return sum(file.lstat().st_blocks * 512 for file in path.rglob("*"))


# What is kept


def test_a_profile_comes_back_as_it_was(tmp_path: Path, clock: Clock) -> None:
    store = store_in(tmp_path, clock)
    store.put(at(1, TRAINER, TRAINING))
    assert store.owners() == [TRAINER]
    assert store.times(TRAINER) == [START + INTERVAL]
    assert store.load(TRAINER, START + INTERVAL) == TRAINING


def test_history_tells_kinds_apart_and_never_adds_pinned_memory(
    tmp_path: Path, clock: Clock
) -> None:
    store = store_in(tmp_path, clock)
    store.put(at(1, TRAINER, holding(3 * GIB, pinned=2 * GIB, peak=5 * GIB)))
    (point,) = store.history(TRAINER)
    assert (point.gpu, point.pinned, point.peak, point.pinned_peak) == (
        3 * GIB,
        2 * GIB,
        5 * GIB,
        2 * GIB,
    )
    assert point.most == 3 * GIB


def test_what_did_not_change_is_not_written_again(tmp_path: Path, clock: Clock) -> None:
    store = store_in(tmp_path, clock)
    for tick in range(1, 30):
        store.put(at(tick, TRAINER, holding(3 * GIB)))
    assert store.times(TRAINER) == [START + INTERVAL]
    (point,) = store.history(TRAINER)
    assert (point.time_ns, point.until_ns) == (START + INTERVAL, START + 29 * INTERVAL)
    assert store.state().counters["profiles_unchanged"] == 28


def test_who_allocates_is_written_even_if_the_numbers_are_as_before(
    tmp_path: Path, clock: Clock
) -> None:
    store = store_in(tmp_path, clock)
    store.put(at(1, TRAINER, incompressible(1, 3)))
    store.put(at(2, TRAINER, incompressible(2, 3)))  # other functions, equal numbers
    assert store.load(TRAINER, START + 2 * INTERVAL) == incompressible(2, 3)


def test_an_idle_container_touches_no_file_for_minutes(tmp_path: Path, clock: Clock) -> None:
    store = store_in(tmp_path, clock)
    store.put(at(1, TRAINER, holding(3 * GIB)))
    before = {file: file.stat().st_mtime_ns for file in files_of(tmp_path)}
    for tick in range(2, 30):
        store.put(at(tick, TRAINER, holding(3 * GIB)))
    assert {file: file.stat().st_mtime_ns for file in files_of(tmp_path)} == before


def test_two_pods_of_one_name_are_two_owners(tmp_path: Path, clock: Clock) -> None:
    store = store_in(tmp_path, clock)
    again = TRAINER._replace(pod_uid="another")
    store.put(at(1, TRAINER, holding(GIB)))
    store.put(at(1, again, holding(2 * GIB)))
    assert store.history(TRAINER)[0].gpu == GIB
    assert store.history(again)[0].gpu == 2 * GIB


def test_a_failure_is_noted_with_the_profile_that_tells_all_of_it(
    tmp_path: Path, clock: Clock
) -> None:
    store = store_in(tmp_path, clock)
    store.put(at(1, TRAINER, TRAINING))
    (note,) = store.failures(TRAINER)
    assert (note.requested, note.free, note.total) == (20 * GIB, 9 * GIB, 80 * GIB)
    assert note.function == "KVCache.grow"
    profile = store.load(TRAINER, note.profile_ns)
    assert profile is not None
    assert profile.failures == TRAINING.failures
    assert store.history(TRAINER)[0].failures == 1


def test_what_an_agent_sends_when_it_stops_is_no_point_but_keeps_its_failures(
    tmp_path: Path, clock: Clock
) -> None:
    store = store_in(tmp_path, clock)
    store.put(at(1, TRAINER, holding(GIB)))
    store.put(at(2, TRAINER, holding(0), snapshot=False))
    assert len(store.history(TRAINER)) == 1
    last = holding(0, failures=(out_of_memory(START),))
    store.put(at(3, TRAINER, last, snapshot=False))
    assert len(store.history(TRAINER)) == 1
    (note,) = store.failures(TRAINER)
    assert store.load(TRAINER, note.profile_ns) == last


def test_a_time_has_the_profile_stored_before_it(tmp_path: Path, clock: Clock) -> None:
    store = store_in(tmp_path, clock)
    for tick, size in ((2, 1), (5, 2), (9, 3)):
        store.put(at(tick, TRAINER, holding(size * GIB)))
    assert store.time_at(TRAINER, START + 5 * INTERVAL) == START + 5 * INTERVAL
    assert store.time_at(TRAINER, START + 8 * INTERVAL) == START + 5 * INTERVAL
    assert store.time_at(TRAINER, START + 99 * INTERVAL) == START + 9 * INTERVAL
    assert store.time_at(TRAINER, START) == START + 2 * INTERVAL
    assert store.time_at(SERVER, START) is None


def test_the_peak_is_told_by_the_last_profile_that_knows_it(tmp_path: Path, clock: Clock) -> None:
    store = store_in(tmp_path, clock)
    for tick, size, peak in ((1, 1, 1), (2, 7, 7), (3, 2, 7), (4, 0, 1)):
        store.put(at(tick, TRAINER, holding(size * GIB, peak=peak * GIB)))
    assert store.peak_time(TRAINER) == START + 3 * INTERVAL


def test_history_stands_in_the_order_of_time_when_a_clock_is_set_back(
    tmp_path: Path, clock: Clock
) -> None:
    store = store_in(tmp_path, clock)
    for tick in (5, 6, 2, 3, 7):
        store.put(at(tick, TRAINER, holding(tick * GIB)))
    assert [point.gpu for point in store.history(TRAINER)] == [n * GIB for n in (2, 3, 5, 6, 7)]


def test_a_number_too_large_to_store_is_counted_and_harms_nothing_else(
    tmp_path: Path, clock: Clock
) -> None:
    store = store_in(tmp_path, clock)
    store.put(at(1, TRAINER, holding(2**63)))
    store.put(at(2, TRAINER, holding(GIB)))
    assert store.times(TRAINER) == [START + 2 * INTERVAL]
    assert store.state().counters["profiles_not_written"] == 1


# What goes first


def days_of_growth(store: ProfileStore, clock: Clock, days: float) -> int:
    """A leak, one profile a minute; returns the number of the last one."""
    ticks = int(days * DAY / INTERVAL)
    for tick in range(1, ticks + 1, 4):
        clock.now = START + tick * INTERVAL
        profile = holding(tick * MIB)
        if tick == 401:
            profile = replace(profile, failures=(out_of_memory(clock.now),))
        store.put(at(tick, TRAINER, profile))
    return tick


def test_within_its_size_days_remain_visible_and_the_last_minutes_in_full(
    tmp_path: Path, clock: Clock
) -> None:
    limit = 2 * MIB
    store = store_in(tmp_path, clock, limit)
    last = days_of_growth(store, clock, days=2)
    state = store.state()
    assert disk_usage(tmp_path / "store") <= limit
    assert state.bytes <= limit
    assert state.counters["profiles_thinned"] > 2000
    times = store.times(TRAINER)
    assert times[0] == START + INTERVAL  # where it began
    assert times[-1] == START + last * INTERVAL
    recent = [time for time in times if time > clock.now - 10 * 60 * SECOND]
    assert len(recent) == 10
    ages = [clock.now - time for time in times]
    for older, newer in itertools.pairwise(ages):
        assert older - newer <= max(0.1 * older, 300 * SECOND)  # no hole, at any age


def test_a_post_mortem_is_kept_where_all_around_it_is_thinned(tmp_path: Path, clock: Clock) -> None:
    store = store_in(tmp_path, clock, 2 * MIB)
    days_of_growth(store, clock, days=2)
    (note,) = store.failures(TRAINER)
    profile = store.load(TRAINER, note.profile_ns)
    assert profile is not None
    assert len(profile.failures) == 1


def test_history_is_thinned_too_and_its_maxima_and_failures_stay_exact(
    tmp_path: Path, clock: Clock
) -> None:
    store = store_in(tmp_path, clock)
    spike = 4321
    for tick in range(1, 8000):
        clock.now = START + tick * INTERVAL
        size = 70 * GIB if tick == spike else (1 + tick % 7) * GIB
        failed = (out_of_memory(clock.now, live=False),) if tick % 1000 == 0 else ()
        store._put_history(  # what put does without the profile's file
            store._known(owner_id(TRAINER), TRAINER),
            at(tick, TRAINER, holding(size, failures=failed)),
        )
    points = store.history(TRAINER)
    assert len(points) <= 600
    assert max(point.most for point in points) == 70 * GIB
    assert sum(point.failures for point in points) == 7
    assert points[0].time_ns == START + INTERVAL


def test_who_fails_in_a_loop_does_not_drive_the_others_out(tmp_path: Path, clock: Clock) -> None:
    store = store_in(tmp_path, clock, 2 * MIB)
    for tick in range(1, 400):
        clock.now = START + tick * INTERVAL
        store.put(at(tick, SERVER, holding(tick * MIB)))
        failing = replace(incompressible(tick, 100), failures=(out_of_memory(clock.now),))
        store.put(at(tick, TRAINER, failing))
    assert len(store.times(SERVER)) > 50
    assert store.times(SERVER)[0] == START + INTERVAL
    assert store.state().bytes <= 2 * MIB


def test_a_profile_that_would_take_most_of_the_store_is_stored_with_fewer_stacks(
    tmp_path: Path, clock: Clock
) -> None:
    store = store_in(tmp_path, clock, MIB)
    big = incompressible(1, 8000)
    store.put(at(1, TRAINER, big))
    stored = store.load(TRAINER, START + INTERVAL)
    assert stored is not None
    assert stored.total == big.total
    assert stored.completeness["stacks_pruned"] > 0


def test_beyond_the_limit_of_owners_the_longest_silent_goes(tmp_path: Path, clock: Clock) -> None:
    store = store_in(tmp_path, clock, max_owners=2)
    store.put(at(1, HOST, holding(GIB)))
    store.put(at(2, TRAINER, holding(GIB)))
    store.put(at(3, SERVER, holding(GIB)))
    assert store.owners() == [TRAINER, SERVER]
    assert store.state().counters["owners_evicted"] == 1
    assert not (tmp_path / "store" / owner_id(HOST)).exists()


# Restarts, damage, disks


def test_all_is_known_again_after_a_restart(tmp_path: Path, clock: Clock) -> None:
    store = store_in(tmp_path, clock)
    for tick in range(1, 5):
        store.put(at(tick, TRAINER, holding(tick * GIB)))
    for tick in range(5, 9):
        store.put(at(tick, TRAINER, holding(4 * GIB)))
    store.put(at(1, SERVER, TRAINING))
    known = [
        (owner, store.history(owner), store.failures(owner), store.times(owner))
        for owner in (TRAINER, SERVER)
    ]
    size = store.state().bytes
    store.close()
    again = store_in(tmp_path, clock)
    assert known == [
        (owner, again.history(owner), again.failures(owner), again.times(owner))
        for owner in (TRAINER, SERVER)
    ]
    assert again.state().bytes == size
    assert again.load(SERVER, START + INTERVAL) == TRAINING


def test_after_an_agent_was_killed_history_lacks_nothing_but_the_last_minutes(
    tmp_path: Path, clock: Clock
) -> None:
    store = store_in(tmp_path, clock)
    for tick, size in enumerate((1, 1, 1, 2, 2, 3), start=1):
        store.put(at(tick, TRAINER, holding(size * GIB)))
    written = {file: file.read_bytes() for file in files_of(tmp_path)}
    history = store.history(TRAINER)
    store.close()
    for file, data in written.items():
        file.write_bytes(data)
    assert store_in(tmp_path, clock).history(TRAINER) == history


def test_files_of_others_are_left_alone_and_counted(tmp_path: Path, clock: Clock) -> None:
    store = store_in(tmp_path, clock)
    store.put(at(1, TRAINER, holding(GIB)))
    store.close()
    mine = tmp_path / "store" / owner_id(TRAINER)
    (tmp_path / "store" / "lost+found").mkdir()
    (mine / "notes.txt").write_text("keep me")
    (mine / "1.pb.gz").symlink_to("/etc/passwd")
    again = store_in(tmp_path, clock)
    assert again.times(TRAINER) == [START + INTERVAL]
    assert again.state().counters["foreign"] == 3
    assert (mine / "notes.txt").read_text() == "keep me"


def test_what_nobody_could_say_whose_it_is_is_removed_and_counted(
    tmp_path: Path, clock: Clock
) -> None:
    store = store_in(tmp_path, clock)
    store.put(at(1, TRAINER, holding(GIB)))
    store.close()
    (tmp_path / "store" / owner_id(TRAINER) / "owner.json").write_text("{")
    again = store_in(tmp_path, clock)
    assert again.state().counters["damaged"] == 1
    assert files_of(tmp_path / "store") == []


def test_a_half_written_file_of_a_killed_agent_is_removed(tmp_path: Path, clock: Clock) -> None:
    store = store_in(tmp_path, clock)
    store.put(at(1, TRAINER, holding(GIB)))
    store.close()
    half = tmp_path / "store" / owner_id(TRAINER) / "new"
    half.write_bytes(b"half")
    store_in(tmp_path, clock)
    assert not half.exists()


def test_a_damaged_profile_is_told_removed_and_counted(tmp_path: Path, clock: Clock) -> None:
    store = store_in(tmp_path, clock)
    store.put(at(1, TRAINER, holding(GIB)))
    (file,) = (tmp_path / "store").rglob("*.pb.gz")
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(RemoteDataError, match="damaged"):
        store.load(TRAINER, START + INTERVAL)
    assert store.load(TRAINER, START + INTERVAL) is None
    assert not file.exists()
    assert store.state().counters["damaged"] == 1


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_whatever_happened_to_the_files_the_store_starts_and_goes_on(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path, clock = tmp_path_factory.mktemp("damaged"), Clock()
    store = store_in(path, clock)
    for tick in range(1, 4):
        store.put(at(tick, TRAINER, holding(tick * GIB, failures=(out_of_memory(START),))))
    store.close()
    for file in files_of(path):
        content = file.read_bytes()
        if data.draw(st.booleans()):
            cut = data.draw(st.integers(0, len(content)))
            insert = data.draw(st.binary(max_size=20) | st.just(b'["point",1,2,[1,2,3,4],1e9,1,1]'))
            rest = data.draw(st.integers(0, len(content)))
            file.write_bytes(content[:cut] + insert + content[rest:])
    again = store_in(path, clock)
    for owner in again.owners():
        assert all(point.gpu >= 0 for point in again.history(owner))
        for time_ns in again.times(owner):
            try:
                assert isinstance(again.load(owner, time_ns), Profile)
            except RemoteDataError:
                assert time_ns not in again.times(owner)
    again.put(at(9, TRAINER, holding(9 * GIB)))
    assert again.history(TRAINER)[-1].gpu == 9 * GIB
    again.close()
    third = store_in(path, clock)
    assert third.load(TRAINER, START + 9 * INTERVAL) == holding(9 * GIB)
    assert third.history(TRAINER) == again.history(TRAINER)


def test_a_disk_that_refuses_is_told_and_tried_again(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / owner_id(TRAINER)).write_bytes(b"in the way")
    store = store_in(tmp_path, clock)
    store.put(at(1, TRAINER, holding(GIB)))
    assert "cannot be used" in store.state().error
    assert store.history(TRAINER)[0].gpu == GIB
    assert store.times(TRAINER) == []
    (tmp_path / "store" / owner_id(TRAINER)).unlink()
    store.put(at(2, TRAINER, holding(GIB)))
    assert store.state().error == ""
    assert store.times(TRAINER) == [START + 2 * INTERVAL]
    store.close()
    assert len(store_in(tmp_path, clock).history(TRAINER)) == 1


def test_a_store_that_another_agent_uses_is_taken_over_when_it_ends(
    tmp_path: Path, clock: Clock
) -> None:
    old = store_in(tmp_path, clock)
    old.put(at(1, TRAINER, holding(GIB)))
    new = store_in(tmp_path, clock)
    new.put(at(2, TRAINER, holding(2 * GIB)))
    assert "another agent" in new.state().error
    old.close()
    new.put(at(3, TRAINER, holding(3 * GIB)))
    assert new.state().error == ""
    assert [point.gpu for point in new.history(TRAINER)] == [GIB, 2 * GIB, 3 * GIB]
    assert new.times(TRAINER) == [START + INTERVAL, START + 3 * INTERVAL]


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"max_bytes": 1000}, "store.max_bytes"),
        ({"max_owners": 0}, "store.max_owners"),
    ],
)
def test_settings_that_cannot_be_meant_name_their_key(
    tmp_path: Path, clock: Clock, arguments: dict[str, int], key: str
) -> None:
    with pytest.raises(UsageError, match=key):
        store_in(tmp_path, clock, **arguments)


def test_a_path_that_is_a_file_names_its_key(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "store").write_text("")
    with pytest.raises(UsageError, match=r"store\.path"):
        store_in(tmp_path, clock)


# Forgetting


def everything_in(path: Path) -> bytes:
    """All names and contents of files, profiles unpacked."""
    parts = [str(path).encode()]
    for file in path.rglob("*"):
        parts.append(str(file.relative_to(path)).encode())
        if file.is_file():
            data = file.read_bytes()
            parts.append(data)
            if data[:2] == b"\x1f\x8b":
                parts.append(gzip.decompress(data))
    return b"\n".join(parts)


def test_nothing_of_a_namespace_is_left_once_it_is_forgotten(tmp_path: Path, clock: Clock) -> None:
    store = store_in(tmp_path, clock)
    secret = Owner("secret-ns", "secret-pod", "secret-box", "secret-work", "node-1", "secret-uid")
    failing = replace(
        incompressible(1, 5), failures=(out_of_memory(START),), about={"command": "secret-command"}
    )
    for tick in range(1, 4):
        store.put(at(tick, secret, replace(failing, time_ns=tick)))
        store.put(at(tick, TRAINER, holding(tick * GIB)))
    assert b"secret-command" in everything_in(tmp_path / "store")
    assert b"secret-pod" in everything_in(tmp_path / "store")
    assert store.forget("secret-ns") == 1
    left = everything_in(tmp_path / "store")
    assert b"secret" not in left
    assert owner_id(secret).encode() not in left
    assert store.owners() == [TRAINER]
    assert store.history(secret) == store.failures(secret) == store.times(secret) == []
    assert store.load(secret, START + INTERVAL) is None
    assert store.load(TRAINER, START + INTERVAL) is not None
    store.close()
    assert store_in(tmp_path, clock).owners() == [TRAINER]


def test_a_namespace_forgotten_while_the_store_was_another_agents_is_removed_later(
    tmp_path: Path, clock: Clock
) -> None:
    old = store_in(tmp_path, clock)
    old.put(at(1, TRAINER, holding(GIB)))
    new = store_in(tmp_path, clock)
    new.forget("ml-team")
    old.close()
    new.put(at(2, SERVER, holding(GIB)))
    new.put(at(3, SERVER, holding(GIB)))
    assert new.owners() == [SERVER]
    assert not (tmp_path / "store" / owner_id(TRAINER)).exists()


def test_what_an_agent_was_forgetting_when_it_died_is_removed_by_the_next(
    tmp_path: Path, clock: Clock
) -> None:
    store = store_in(tmp_path, clock)
    store.put(at(1, TRAINER, holding(GIB)))
    store.close()
    name = owner_id(TRAINER)
    (tmp_path / "store" / name).rename(tmp_path / "store" / f"forgotten-{name}")
    again = store_in(tmp_path, clock)
    assert again.owners() == []
    assert files_of(tmp_path / "store") == []


def test_names_chosen_by_pods_are_never_paths(tmp_path: Path, clock: Clock) -> None:
    store = store_in(tmp_path, clock)
    hostile = Owner("../..", "/etc/passwd", "a\0b", "x" * 5000, "\udcff", "\n")
    store.put(at(1, hostile, holding(GIB)))
    assert store.state().error == ""
    assert {path.name for path in tmp_path.iterdir()} == {"store"}
    store.close()
    (again,) = store_in(tmp_path, clock).owners()
    assert again.namespace == "../.."


def test_only_the_agents_user_can_read_it(tmp_path: Path, clock: Clock) -> None:
    store = store_in(tmp_path, clock)
    store.put(at(1, TRAINER, holding(GIB)))
    for path in (tmp_path / "store").rglob("*"):
        assert os.lstat(path).st_mode & 0o077 == 0, path
