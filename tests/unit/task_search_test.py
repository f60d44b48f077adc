"""Fields of the kernel are found where they are, or it is said that they are not."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from gpumemprof.errors import ProbeError
from gpumemprof.probe.task_search import WINDOW, Sample, search, signal_places

PID, LEADER, START, FS_BASE, SIGNAL = 1264, 1328, 1560, 3128, 1848
TASKS = 0xFF11_0000_0000_0000
"""Addresses with page tables of five levels."""
SIGNAL_STRUCT = TASKS + 0x5000


def thread(tid: int, **values: int) -> Sample:
    """A thread of process 100, whose task_struct is like that of Linux 6.18."""
    task, fs_base = TASKS + tid * 0x4000, 0x7F00_0000_0000 + tid * 0x1000
    started = 12_345 + tid
    memory = bytearray(WINDOW)
    struct.pack_into("<ii", memory, PID, tid, 100)
    struct.pack_into("<Q", memory, LEADER, TASKS + 100 * 0x4000)
    # since boot without sleep, and with it
    struct.pack_into("<QQ", memory, START - 8, started * 10**7 + 30, started * 10**7 + 70)
    struct.pack_into("<Q", memory, FS_BASE, fs_base)
    struct.pack_into("<Q", memory, SIGNAL, SIGNAL_STRUCT)
    return Sample(tid, 100, started, fs_base, task, bytes(memory))


def changed(one: Sample, at: int, value: int) -> Sample:
    memory = bytearray(one.memory)
    struct.pack_into("<Q", memory, at, value)
    return replace(one, memory=bytes(memory))


THREADS = [thread(100), thread(101), thread(102)]


def test_fields_are_found_by_what_a_thread_knows_of_itself() -> None:
    assert search(THREADS, ticks=100) == {
        "pid": PID,
        "tgid": PID + 4,
        "group_leader": LEADER,
        "start_boottime": START,
        "fsbase": FS_BASE,
    }


def test_a_value_that_is_somewhere_else_by_chance_is_told_apart_by_other_threads() -> None:
    woke_last = changed(THREADS[1], 2048, THREADS[0].task)
    assert search([THREADS[0], woke_last, THREADS[2]], ticks=100)["group_leader"] == LEADER


def test_a_machine_that_slept_has_two_times() -> None:
    slept = [changed(one, START - 8, one.started * 10**7 - 10**10) for one in THREADS]
    assert search(slept, ticks=100)["start_boottime"] == START


def test_what_is_in_two_places_is_not_guessed() -> None:
    twice = [changed(one, 4096, one.fs_base) for one in THREADS]
    with pytest.raises(ProbeError, match="fsbase is found in 2 places"):
        search(twice, ticks=100)


def test_what_is_nowhere_is_told() -> None:
    with pytest.raises(ProbeError, match="group_leader is found nowhere"):
        search([changed(one, LEADER, 0) for one in THREADS], ticks=100)


def test_the_signal_struct_is_known_by_its_three_counts_of_threads() -> None:
    shared = [changed(one, 4096, TASKS + 0x9000) for one in THREADS]  # another structure
    memory = {
        SIGNAL_STRUCT: struct.pack("<iiii", 3, 3, 3, 3),
        TASKS + 0x9000: struct.pack("<iiii", 3, 1, 0, 0),
    }
    assert signal_places(shared, 3, lambda at: memory.get(at, bytes(16))) == {SIGNAL}
