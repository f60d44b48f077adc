"""Loading and attaching, each way the kernel offers; what fails leaves nothing behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gpumemprof.errors import ProbeError
from gpumemprof.probe.attach import AttachMode, Closable, Target
from gpumemprof.probe.calls import CALLS, ROWS
from gpumemprof.probe.events import CallEvent, EventReader, EventType
from gpumemprof.probe.inbox import Inbox
from gpumemprof.probe.loader import Options, Probes
from gpumemprof.process.libraries import LibraryProber
from tests.integration.recording import FAKES, until

DRIVER = FAKES / "libcuda.so.1"
MODES = pytest.mark.parametrize("mode", AttachMode)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def nothing_left() -> Iterator[None]:
    before = descriptors()
    yield
    assert descriptors() == before


def targets() -> list[Target]:
    """Every hooked call of the stand-in driver."""
    found: list[Target] = []

    def collect(_: str, wanted: Sequence[Target]) -> Closable:
        found.extend(wanted)
        return contextlib.ExitStack()

    LibraryProber(collect).probe_path(DRIVER)
    assert found
    return found


@MODES
def test_leaving_detaches_and_frees_everything(mode: AttachMode, nothing_left: None) -> None:
    with Probes(Options(mode=mode)) as probes:
        probes.attach(str(DRIVER), targets()[:8]).close()
        assert probes.mode is mode
        assert probes.lifecycle_error is None


@MODES
def test_what_cannot_be_attached_as_a_whole_is_not_attached(
    mode: AttachMode, nothing_left: None
) -> None:
    wrong = Target(1 << 40, 0, needs_return=True)
    with Probes(Options(mode=mode)) as probes:
        before = descriptors()
        with pytest.raises(OSError, match="Invalid argument"):
            probes.attach(str(DRIVER), [*targets()[:3], wrong])
        with pytest.raises(OSError, match="No such file"):
            probes.attach("/no/such/file", targets()[:3])
        assert descriptors() == before


def test_the_best_way_to_attach_is_taken_and_refusals_are_told() -> None:
    with Probes() as probes:
        better = list(AttachMode)[: list(AttachMode).index(probes.mode)]
        assert list(probes.refused) == better


def test_more_processes_than_fit_are_an_error_in_a_sentence() -> None:
    with Probes() as probes:
        for pid in range(1, 16384 + 1):
            probes.set_process(1 << 22 | pid, on=True)
        with pytest.raises(ProbeError, match="cannot record process 1:"):
            probes.set_process(1, on=True)
        probes.forget_process(1 << 22 | 7)
        probes.set_process(1, on=True)


class Driver:
    """The stand-in driver in this very process, recorded."""

    def __init__(self, probes: Probes) -> None:
        self._library = ctypes.CDLL(str(DRIVER))
        self._inbox = Inbox(probes.events, probes.stacks, EventReader(probes.layout))

    def call(self, name: str, *arguments: int) -> int:
        return int(getattr(self._library, name)(*map(ctypes.c_uint64, arguments)))

    def heard(self) -> list[tuple[str, int, int]]:
        """Name, type and error of the calls that were told since."""
        self._inbox.collect()
        found = []
        while (event := self._inbox.next()) is not None:
            assert isinstance(event, CallEvent)
            assert event.pid == os.getpid()
            found.append((CALLS[event.call].name, event.type, event.error))
        return found


@MODES
def test_calls_of_recorded_processes_are_told_as_long_as_it_is_on(mode: AttachMode) -> None:
    with Probes(Options(mode=mode)) as probes:
        free_row = ROWS["cuMemFree_v2"]  # alone: detaching single probes takes long
        chosen = [target for target in targets() if target.cookie & 0x3FF == free_row]
        link = probes.attach(str(DRIVER), chosen)
        driver = Driver(probes)
        free = ("cuMemFree_v2", EventType.ENTRY, 0)
        failed = ("cuMemFree_v2", EventType.FREE_FAILED)

        driver.call("cuMemFree_v2", 12345)
        assert driver.heard() == []  # not asked for
        probes.set_process(os.getpid(), on=True)
        error = driver.call("cuMemFree_v2", 12345)
        assert error
        assert driver.heard() == [free, (*failed, error)]
        probes.set_process(os.getpid(), on=False)
        driver.call("cuMemFree_v2", 12345)
        assert driver.heard() == []
        probes.set_process(os.getpid(), on=True)
        probes.pause()
        driver.call("cuMemFree_v2", 12345)
        assert driver.heard() == []
        link.close()


def only(*names: str) -> list[Target]:
    rows = {ROWS[name] for name in names}
    return [target for target in targets() if target.cookie & 0x3FF in rows]


SLOW_CALL = """
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
print("ready", flush=True)
for _ in range(2):
    input()
    driver.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_uint64(4096))
    print("done", flush=True)
"""


def test_a_call_during_which_the_process_was_switched_off_is_not_told() -> None:
    with (
        Probes() as probes,
        subprocess.Popen(
            [sys.executable, "-c", SLOW_CALL], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, "LD_LIBRARY_PATH": str(FAKES),
                 "GPUMEMPROF_FAKE_SLEEP": "cuMemAlloc_v2:0.5"},
        ) as program,
    ):  # fmt: skip
        assert program.stdin and program.stdout
        link = probes.attach(str(DRIVER), only("cuMemAlloc_v2"))
        program.stdout.readline()
        probes.set_process(program.pid, on=True)
        program.stdin.write(b"\n")
        program.stdin.flush()
        until(lambda: probes.stacks.waiting, lambda: time.sleep(0.001))  # sent at entry
        probes.set_process(program.pid, on=False)
        program.stdout.readline()
        assert not probes.events.waiting
        probes.set_process(program.pid, on=True)
        program.stdin.write(b"\n")
        program.stdin.close()
        program.stdout.readline()
        assert probes.events.waiting
        link.close()


def test_a_context_that_was_changed_while_off_is_not_known_afterwards() -> None:
    with Probes() as probes:
        link = probes.attach(str(DRIVER), only("cuCtxSetCurrent", "cuMemFree_v2"))
        driver = Driver(probes)
        inbox = Inbox(probes.events, probes.stacks, EventReader(probes.layout))
        own = os.getpid()

        def context_told() -> int:
            driver.call("cuMemFree_v2", 12345)
            inbox.collect()
            event = inbox.next()
            while (later := inbox.next()) is not None:
                event = later
            assert isinstance(event, CallEvent)
            return event.context

        probes.set_process(own, on=True)
        driver.call("cuCtxSetCurrent", 0x1000)
        assert context_told() == 0x1000
        probes.set_process(own, on=False)
        driver.call("cuCtxSetCurrent", 0x2000)
        probes.set_process(own, on=True)
        assert context_told() == 0  # unknown, and not the one of before
        link.close()


def test_arguments_reach_us_as_they_were_passed() -> None:
    with Probes() as probes:
        link = probes.attach(str(DRIVER), targets())
        library = ctypes.CDLL(str(DRIVER))
        probes.set_process(os.getpid(), on=True)
        inbox = Inbox(probes.events, probes.stacks, EventReader(probes.layout))
        library.cuMemCreate(
            ctypes.c_uint64(11), ctypes.c_uint64(1 << 40), ctypes.c_uint64(3), ctypes.c_uint64(4)
        )
        inbox.collect()
        event = inbox.next()
        link.close()
    assert isinstance(event, CallEvent)
    assert event.call == ROWS["cuMemCreate"]
    assert event.args[:4] == (11, 1 << 40, 3, 4)
    assert not event.readable & 1  # there is nothing at address 3
