"""The store's queue: the agent's loop waits for no disk."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpumemprof.agent.sinks import StoreSink
from gpumemprof.export.model import ContainerProfile, Owner
from gpumemprof.export.store import ProfileStore
from gpumemprof.profile.model import Profile, Sample, Values
from tests.unit.profile_examples import WEIGHTS, labels

MIB = 1 << 20
SECOND = 10**9
PATIENCE = 30.0
ON = Owner("ml", "pod", "main", "trainer", "node-a", "uid-1")
OFF = Owner("secret", "pod", "main", "trainer", "node-a", "uid-2")


def profile(owner: Owner, time_ns: int = SECOND) -> ContainerProfile:
    sample = Sample(WEIGHTS, labels(), Values(1, MIB, 1, MIB, MIB))
    return ContainerProfile(owner, time_ns, SECOND, Profile((sample,), 0, SECOND))


@contextmanager
def stuck(store: ProfileStore) -> Iterator[None]:
    """Somebody else is in the middle of something that the disk does not finish."""
    taken, release = threading.Event(), threading.Event()

    def hold() -> None:
        with store._lock:
            taken.set()
            release.wait(PATIENCE)

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait(PATIENCE)
    try:
        yield
    finally:
        release.set()
        thread.join()


def test_what_was_switched_off_is_forgotten_also_while_the_disk_hangs(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path, 4 * MIB, clock=lambda: 2 * SECOND)
    sink = StoreSink(store)
    with stuck(store):
        sink.offer([profile(OFF), profile(ON), profile(OFF, 2 * SECOND)])
        asked = threading.Event()

        def forget() -> None:
            sink.forget_where(lambda owner: owner == OFF)
            asked.set()

        threading.Thread(target=forget, daemon=True).start()
        assert asked.wait(PATIENCE / 3), "the agent's loop hangs"
    sink.stop()

    again = ProfileStore(tmp_path, 4 * MIB, clock=lambda: 2 * SECOND)
    assert list(again.times(ON)) == [SECOND]
    assert not list(again.times(OFF))
    again.close()


def test_what_comes_after_it_was_switched_on_again_is_kept(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path, 4 * MIB, clock=lambda: 2 * SECOND)
    sink = StoreSink(store)
    sink.offer([profile(ON)])
    sink.forget_where(lambda owner: owner == ON)
    sink.offer([profile(ON, 2 * SECOND)])
    sink.stop()

    again = ProfileStore(tmp_path, 4 * MIB, clock=lambda: 2 * SECOND)
    assert list(again.times(ON)) == [2 * SECOND]
    again.close()


def test_stopping_does_not_wait_for_a_disk_that_hangs(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path, 4 * MIB)
    sink = StoreSink(store)
    stopped = threading.Event()

    def stop() -> None:
        sink.stop()
        stopped.set()

    with stuck(store):
        sink.offer([profile(ON)])
        threading.Thread(target=stop, daemon=True).start()
        assert stopped.wait(PATIENCE)
