"""Who the recorded processes are, over reused pids and exec, however their end is told."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumemprof.errors import ProcessGone, UsageError
from gpumemprof.process import procfs, table
from gpumemprof.process.identity import NS_PER_TICK, ProcessId, whole_ticks
from gpumemprof.process.pace import Pace
from gpumemprof.process.table import ProcessTable
from gpumemprof.recording import check_process

STAT = "7 ({}) S 3 7 7 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0"
SECOND = 1_000_000_000


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs until the test ends it."""
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def processes() -> Iterator[ProcessTable]:
    made = ProcessTable()
    yield made
    made.close()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# /proc


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=15))
def test_any_name_is_read_from_stat(comm: str) -> None:
    found = procfs.parse_stat(STAT.format(comm))
    assert found == procfs.Stat(comm, "S", 3, 4242 * NS_PER_TICK)


@pytest.mark.parametrize("comm", ["a) S 1 2 (b", "(", ")", "a b", "new\nline", ""])
def test_a_name_that_looks_like_fields_is_a_name(comm: str) -> None:
    assert procfs.parse_stat(STAT.format(comm)).comm == comm


@pytest.mark.parametrize("text", ["", "7", "7 (sh", "7 (sh) S 1", "7 (sh) S x " + "0 " * 30])
def test_a_damaged_stat_is_a_process_that_is_gone(tmp_path: Path, text: str) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text(text)
    with pytest.raises(ProcessGone):
        procfs.read_stat(7, tmp_path)


def test_a_command_line_is_bounded_and_never_fails(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cmdline").write_bytes(b"python\0train.py\0\xff\0" + b"x" * 9000)
    found = procfs.read_command(7, tmp_path)
    assert found.startswith("python train.py � xxx")
    assert len(found) == 4096
    assert procfs.read_command(8, tmp_path) == ""


def tree(proc: Path, parents: dict[int, int]) -> None:
    for pid, parent in parents.items():
        (proc / str(pid)).mkdir()
        (proc / str(pid) / "stat").write_text(f"{pid} (sh) S {parent} " + "0 " * 30)


def test_descendants_are_children_and_theirs(tmp_path: Path) -> None:
    tree(tmp_path, {10: 1, 11: 10, 12: 11, 13: 10, 20: 1})
    (tmp_path / "self").mkdir()
    assert sorted(procfs.descendants(10, tmp_path)) == [11, 12, 13]


def test_pids_reused_into_a_circle_are_read_once(tmp_path: Path) -> None:
    tree(tmp_path, {10: 12, 11: 10, 12: 11})
    assert sorted(procfs.descendants(10, tmp_path)) == [10, 11, 12]


def test_a_start_from_the_kernel_equals_that_of_stat_in_whole_ticks() -> None:
    assert whole_ticks(42 * NS_PER_TICK + 9_999_999) == 42 * NS_PER_TICK


# The table


def test_a_running_process_is_known_by_pid_and_start(
    processes: ProcessTable, sleeper: subprocess.Popen[bytes]
) -> None:
    until(lambda: procfs.read_stat(sleeper.pid).comm == "sleep")
    process = processes.add(sleeper.pid)
    assert (process.comm, process.command) == ("sleep", "sleep 60")
    assert abs(process.started - time.time_ns()) < 60 * SECOND
    assert processes.get(sleeper.pid, process.id.start_ns + 1) is process
    assert processes.get(sleeper.pid, process.id.start_ns + NS_PER_TICK) is None
    assert processes.by_id(process.id) is process


def test_a_process_is_followed_once(
    processes: ProcessTable, sleeper: subprocess.Popen[bytes]
) -> None:
    process = processes.add(sleeper.pid)
    assert processes.add(sleeper.pid) is process
    assert processes.add(sleeper.pid, process.id.start_ns + 1) is process
    processes.executed(process, "new")
    again = processes.add(sleeper.pid)
    assert again.id.image == 1


def test_a_process_that_does_not_exist_is_gone(processes: ProcessTable) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    with pytest.raises(ProcessGone):
        processes.add(ended.pid)


def test_an_end_is_noticed_without_being_told(processes: ProcessTable) -> None:
    process = subprocess.Popen(["sleep", "60"])
    known = processes.add(process.pid)
    assert processes.gone() == []
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert processes.gone() == [known]  # while it is a zombie
    process.wait()
    assert processes.gone() == [known]
    processes.end(known, "exit")
    assert processes.gone() == []


def test_an_end_is_noticed_when_descriptors_are_exhausted(
    processes: ProcessTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    process = subprocess.Popen(["sleep", "60"])
    known = processes.add(process.pid)
    assert processes.gone() == []
    process.kill()
    process.wait()
    assert processes.gone() == [known]


def test_a_process_known_only_from_the_kernel_has_ended(processes: ProcessTable) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    known = processes.add(ended.pid, 5 * NS_PER_TICK + 1, "short")
    assert (known.id, known.comm) == (ProcessId(ended.pid, 5 * NS_PER_TICK), "short")
    assert processes.get(ended.pid, 5 * NS_PER_TICK + 1) is known
    assert processes.gone() == [known]


def test_a_process_whose_pid_is_another_s_by_now_is_not_taken_for_it(
    processes: ProcessTable, sleeper: subprocess.Popen[bytes]
) -> None:
    before = processes.add(sleeper.pid, NS_PER_TICK, "before")
    assert (before.comm, before.command) == ("before", "")
    assert processes.gone() == [before]


def test_the_process_that_had_a_pid_before_is_stale(
    processes: ProcessTable, sleeper: subprocess.Popen[bytes]
) -> None:
    before = processes.add(sleeper.pid, NS_PER_TICK, "before")
    start_ns = procfs.read_stat(sleeper.pid).start_ns
    assert processes.stale(sleeper.pid, start_ns) is before
    processes.end(before, "exit")
    now = processes.add(sleeper.pid)
    assert processes.stale(sleeper.pid, start_ns) is None
    assert processes.running == [now]
    assert list(processes.all) == [before, now]
    assert processes.gone() == []


def test_exec_ends_a_program_and_begins_another_in_the_same_process(
    processes: ProcessTable, sleeper: subprocess.Popen[bytes]
) -> None:
    first = processes.add(sleeper.pid)
    second = processes.executed(first, "python")
    assert (first.end_reason, second.ended) == ("exec", None)
    assert second.id == first.id._replace(image=1)
    assert processes.get(sleeper.pid, first.id.start_ns) is second
    assert processes.by_id(first.id) is first
    sleeper.kill()
    sleeper.wait()
    assert processes.gone() == [second]


def test_an_end_is_told_once(processes: ProcessTable, sleeper: subprocess.Popen[bytes]) -> None:
    process = processes.add(sleeper.pid)
    processes.end(process, "exit")
    ended = process.ended
    processes.end(process, "lost")
    assert (process.ended, process.end_reason) == (ended, "exit")


def test_ended_processes_beyond_the_bound_are_forgotten_and_counted(
    processes: ProcessTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "MAX_ENDED", 2)
    for start in (1, 2, 3):
        processes.end(processes.add(1 << 22, start * NS_PER_TICK, str(start)), "exit")
    assert [p.comm for p in processes.all] == ["2", "3"]
    assert processes.forgotten == 1


def test_no_descriptor_is_left_of_processes_that_ended_or_are_let_go() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    processes = ProcessTable()
    running = [subprocess.Popen(["sleep", "60"]) for _ in range(3)]
    known = [processes.add(process.pid) for process in running]
    processes.end(known[0], "exit")
    processes.close()
    for process in running:
        process.kill()
        process.wait()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# What may be recorded


def test_a_running_program_may_be_recorded() -> None:
    check_process(os.getpid())


def test_a_process_that_does_not_exist_may_not() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    with pytest.raises(UsageError, match=f"there is no process {ended.pid}"):
        check_process(ended.pid)


def test_a_process_that_has_ended_may_not() -> None:
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(UsageError, match=r"process \d+ \(true\) has ended already"):
        check_process(ended.pid)
    ended.wait()


def test_a_thread_is_told_from_its_process() -> None:
    ready, done, tids = threading.Event(), threading.Event(), []

    def work() -> None:
        tids.append(threading.get_native_id())
        ready.set()
        done.wait()

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait()
    try:
        with pytest.raises(UsageError, match=f"is a thread of process {os.getpid()}"):
            check_process(tids[0])
    finally:
        done.set()
        thread.join()


def test_a_kernel_thread_may_not() -> None:
    if not Path("/proc/2").exists():
        pytest.skip("kernel threads are not visible here")
    with pytest.raises(UsageError, match=r"process 2 \(kthreadd\) (is a kernel thread|cannot be)"):
        check_process(2)


def test_a_name_with_control_characters_is_told_without_them() -> None:
    script = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'\\x1b[2Jx'); print(flush=True)"
    ended = subprocess.Popen(["python3", "-c", script], stdout=subprocess.PIPE)
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(UsageError, match=r"\(\\x1b\[2Jx\) has ended already"):
        check_process(ended.pid)
    ended.communicate()


# The pace of repeated work


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_work_rests_four_times_as_long_as_it_took() -> None:
    clock = Clock()
    pace = Pace(free=0, clock=clock)
    assert pace.ready
    with pace:
        clock.now += 2.0
    assert not pace.ready
    clock.now += 7.9
    assert not pace.ready
    clock.now += 0.1
    assert pace.ready


def test_the_first_turns_need_no_rest() -> None:
    clock = Clock()
    pace = Pace(free=2, clock=clock)
    for rested in (True, True, False):
        with pace:
            clock.now += 2.0
        assert pace.ready is rested


def test_work_that_takes_no_time_may_be_done_at_once() -> None:
    pace = Pace(free=0, clock=Clock())
    with pace:
        pass
    assert pace.ready


def test_work_that_fails_rests_too() -> None:
    clock = Clock()
    pace = Pace(free=0, clock=clock)

    def fail() -> None:
        with pace:
            clock.now += 1.0
            raise ValueError

    with pytest.raises(ValueError):
        fail()
    assert not pace.ready
