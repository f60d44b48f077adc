"""Off means off: processes in real control groups named as the kubelet names them, the real index
of pods and the real switch, without an API behind them (tests/cluster has that)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import pytest

from gpumemprof.agent.accounts import Accounts
from gpumemprof.agent.discovery import Discovery
from gpumemprof.agent.following import Bounds, Following
from gpumemprof.agent.placing import State
from gpumemprof.agent.publisher import Publisher
from gpumemprof.export.model import ContainerProfile, Owner
from gpumemprof.kube.model import ContainerRef, Pod, Workload
from gpumemprof.kube.pod_json import SeenPod
from gpumemprof.kube.pods import PodIndex
from gpumemprof.kube.switch import Switch
from gpumemprof.probe.loader import Options
from gpumemprof.process import procfs
from gpumemprof.process.gpu import Nvml
from gpumemprof.process.identity import ProcessId
from gpumemprof.process.table import Process
from gpumemprof.process.trust import OWN, Trust
from gpumemprof.recorder import Recorder, RecorderOptions
from gpumemprof.recorder.driver import DriverView
from tests.integration.recording import FAKES, until

MIB = 1 << 20
SECOND = 10**9


@cache
def hierarchy() -> Path | None:
    """A mounted control group hierarchy in which groups can be made."""
    for name in ("pids", "systemd", "unified", ""):
        path = Path("/sys/fs/cgroup") / name
        trial = path / f"gpumemprof-{os.getpid()}"
        with suppress(OSError):
            trial.mkdir()
            trial.rmdir()
            return path
    return None


pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or hierarchy() is None, reason="no control group can be made here"
)


@dataclass
class Container:
    """A container of a pod: a control group, and what the API will tell of it."""

    namespace: str
    uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    id: str = field(default_factory=lambda: uuid.uuid4().hex * 2)

    @property
    def pod(self) -> SeenPod:
        workload = Workload("Job", self.namespace + "-job")
        name = self.namespace + "-pod"
        return SeenPod(Pod(self.uid, self.namespace, name, workload, {}, {self.id: "main"}))

    @property
    def path(self) -> Path:
        root = hierarchy()
        assert root is not None
        # Not right below: the kubelet of a cluster on this machine removes what it does not know.
        below = root / f"gpumemprof-{os.getpid()}" / "kubepods" / "burstable"
        return below / f"pod{self.uid}" / self.id

    @property
    def owner(self) -> Owner:
        pod = self.pod.pod
        return Owner(pod.namespace, pod.name, "main", pod.workload.name, "node-a", pod.uid)

    @contextmanager
    def group(self) -> Iterator[Path]:
        path = self.path
        path.mkdir(parents=True)
        try:
            yield path
        finally:
            while left := (path / "cgroup.procs").read_text().split():
                for pid in left:
                    with suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
                time.sleep(0.01)
            for each in (path, *path.parents[:4]):
                with suppress(OSError):
                    each.rmdir()


@contextmanager
def running(container: Container, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A program in the container, that has done its work when given out, and holds its memory."""
    with (
        container.group() as group,
        subprocess.Popen(
            ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh",
             str(FAKES / "driver_loop"), *arguments, "--hold", "30"],
            stdout=subprocess.PIPE, text=True,
            env={**os.environ, "LD_LIBRARY_PATH": str(FAKES)},
        ) as process,
    ):  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()
            process.wait()


class Kept:
    """A sink that loses nothing, as the store."""

    gives_back = False

    def __init__(self) -> None:
        self.got: list[ContainerProfile] = []

    def offer(self, profiles: Sequence[ContainerProfile]) -> None:
        self.got += profiles

    def forget_where(self, off: Callable[[Owner], bool]) -> None:
        self.got = [each for each in self.got if not off(each.owner)]


class Node:
    """The agent's parts, wired as it wires them, with a list at the end."""

    gives_back = True

    def __init__(self, recorder: Recorder, accounts: Accounts, bounds: Bounds) -> None:
        self.index, self.switch = PodIndex(), Switch()
        self.ready = self.up_to_date = True
        self.recorder, self.accounts, self.now = recorder, accounts, 0
        self.got: list[ContainerProfile] = []
        self.store = Kept()
        self.following = Following(
            recorder, self, accounts, "node-a", bounds=bounds,
            on_dropped=lambda process: self.publisher.forget_process(process),  # noqa: PLW0108
            on_closed=lambda owner, off: self.publisher.forget_owner(owner, off=off),
        )  # fmt: skip
        self.discovery = Discovery(recorder)
        self.publisher = Publisher(
            recorder, self.following, [self, self.store], interval_ns=SECOND,
            gpu_of=lambda _process, _device: ("", ""), about={}, clock=lambda: self.now,
        )  # fmt: skip

    # What it asks

    def find(self, ref: ContainerRef) -> tuple[Pod, str] | None:
        found = self.index.find(ref)
        return None if found is None else (found.pod, found.container)

    def allows(self, pod: Pod | None) -> bool:
        return self.switch.allows(pod)

    def is_off(self, owner: Owner) -> bool:
        return self.switch.settings.get(owner.namespace, False) is False

    # What it tells

    def offer(self, profiles: Sequence[ContainerProfile]) -> None:
        self.got += profiles

    def forget_where(self, off: Callable[[Owner], bool]) -> None:
        self.got = [each for each in self.got if not off(each.owner)]

    # What the test does

    def set(self, **settings: str) -> None:
        self.switch, problems = Switch.parse(settings)
        assert not problems
        self.following.reconsider()
        self.discovery.again()

    def knows(self, container: Container) -> None:
        self.index.put(container.pod)
        self.following.reconsider()

    def turn(self) -> None:
        self.recorder.step()
        self.following.turn()
        self.discovery.turn(self.following.processes.running)

    def look(self, rounds: int = 2) -> None:
        """Until all processes were looked at."""
        self.discovery.again()
        wanted = self.discovery.rounds + 1
        until(lambda: self.discovery.rounds >= wanted, self.turn)
        for _ in range(rounds):
            self.turn()
        self.recorder.drain()

    def interval(self) -> list[ContainerProfile]:
        """What is told at the end of the interval."""
        self.got, self.now = [], self.now + SECOND
        self.publisher.turn()
        # On a busy machine names take more than a turn.
        until(lambda: not self.publisher._waiting, self.publisher.turn)
        return self.got

    def told(self, container: Container) -> tuple[int, int]:
        """(bytes allocated, bytes in use) of the last interval's profile, 0 if there was none."""
        found = [each.profile.total for each in self.got if each.owner == container.owner]
        assert len(found) <= 1
        return (found[0].alloc_space, found[0].inuse_space) if found else (0, 0)

    def states(self, *processes: subprocess.Popen[str]) -> list[str]:
        """Of these processes: others of this machine may use CUDA at the same time."""
        found = [self.following.processes.state_of(process.pid) for process in processes]
        return sorted(state.value if state else "unknown" for state in found)

    def kept(self, process: subprocess.Popen[str]) -> int:
        """How many stacks are kept of a process."""
        aggregates = self.recorder.ledger.snapshot().aggregates
        return sum(each.key.process.pid == process.pid for each in aggregates)

    def in_use(self) -> Mapping[str, int]:
        memory, _ = self.accounts.view(self.recorder.ledger.snapshot)
        return {key.owner.namespace: use.in_use for key, use in memory.items()}


@contextmanager
def node(bounds: Bounds | None = None, trust: Trust = OWN) -> Iterator[Node]:
    accounts = Accounts(lambda _process, _device: ("", ""))
    options = RecorderOptions(
        probe=Options(record_all=True),
        library_path=str(FAKES),
        on_change=accounts.changed,
        trust=trust,
    )
    with Recorder(options) as recorder:
        yield Node(recorder, accounts, bounds or Bounds())


WORK = ("--pairs", "5", "--leak", "3", "--size", str(MIB))


def test_only_the_namespace_that_is_on_is_told() -> None:
    on, off = Container("on"), Container("off")
    with node() as agent:
        agent.set(on="on")
        agent.knows(on)
        agent.knows(off)
        with running(on, *WORK) as first, running(off, *WORK) as second:
            agent.look()
            agent.interval()

            assert agent.told(on) == (8 * MIB, 3 * MIB)
            assert [each.owner for each in agent.got] == [on.owner]
            assert agent.in_use() == {"on": 3 * MIB}
            kept = {a.key.process.pid for a in agent.recorder.ledger.snapshot().aggregates}
            assert first.pid in kept and second.pid not in kept
            assert agent.states(first, second) == ["off", "on"]


def test_what_is_recorded_before_the_pod_is_known_is_told_once_it_is() -> None:
    late = Container("late")
    with node() as agent:
        agent.set(late="on")
        with running(late, *WORK) as process:
            agent.look()
            assert agent.interval() == []
            assert agent.states(process) == ["held"]

            agent.knows(late)
            agent.interval()
            assert agent.told(late) == (8 * MIB, 3 * MIB)
            agent.interval()
            assert agent.told(late) == (0, 3 * MIB)


def test_what_is_recorded_before_the_pod_is_known_is_thrown_away_if_it_is_off() -> None:
    late = Container("late")
    with node() as agent, running(late, *WORK) as process:
        agent.look()
        assert agent.kept(process)

        agent.knows(late)

        assert not agent.kept(process)
        assert agent.states(process) == ["off"]
        agent.set(late="on")
        agent.interval()
        # What it holds from before is not known any more.
        assert agent.told(late) == (0, 0)


def test_the_switch_works_both_ways_on_a_running_process() -> None:
    worker = Container("ml")
    with node() as agent:
        agent.knows(worker)
        agent.set(ml="on")
        with running_on(worker) as process:
            agent.look()
            agent.interval()
            assert agent.told(worker)[0] > 0

            agent.set(ml="off")
            assert agent.in_use() == {}
            before = agent.recorder.probes.counters()["events"]
            agent.recorder.drain()
            for _ in range(10):
                agent.turn()
            assert agent.interval() == []
            assert not agent.kept(process)
            after = agent.recorder.probes.counters()["events"]
            assert after - before < 10, "the kernel goes on telling of it"

            agent.set(ml="on")
            until(lambda: agent.in_use().get("ml") is not None, agent.turn)
            until(lambda: agent.kept(process), agent.turn)
            agent.interval()
            assert agent.told(worker)[0] > 0
            assert process.poll() is None


@contextmanager
def running_on(container: Container) -> Iterator[subprocess.Popen[str]]:
    """A program that allocates and frees 200 times a second."""
    with (
        container.group() as group,
        subprocess.Popen(
            ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh",
             str(FAKES / "driver_loop"), "--pairs", "1000000", "--rate", "200", "--batch", "2",
             "--size", str(MIB)],
            stdout=subprocess.DEVNULL, text=True,
            env={**os.environ, "LD_LIBRARY_PATH": str(FAKES)},
        ) as process,
    ):  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def test_children_of_a_process_that_was_off_are_found_when_it_is_on() -> None:
    family = Container("ml")
    with node() as agent:
        agent.knows(family)
        with running(family, *WORK, "--fork", "2"):
            agent.look()
            agent.set(ml="on")
            agent.look()

            pids = {int(pid) for pid in (family.path / "cgroup.procs").read_text().split()}
            assert len(pids) >= 1
            assert {agent.following.processes.state_of(pid) for pid in pids} == {State.ON}


def test_processes_beyond_the_bound_of_held_ones_are_dropped_and_counted() -> None:
    first, second = Container("a"), Container("b")
    with (
        node(Bounds(held=1)) as agent,
        running(first, *WORK) as one,
        running(second, *WORK) as two,
    ):
        agent.look()

        assert "off" in agent.states(one, two)
        assert agent.following.processes.states()["held"] == 1
        assert agent.following.counts["held_dropped"] >= 1


def test_containers_beyond_the_bound_are_not_recorded_and_counted() -> None:
    first, second = Container("a"), Container("b")
    with node(Bounds(owners=1)) as agent:
        agent.set(a="on", b="on")
        agent.knows(first)
        agent.knows(second)
        with running(first, *WORK) as one, running(second, *WORK) as two:
            agent.look()

            assert agent.states(one, two) == ["off", "on"]
            assert agent.following.counts["owners_overflowed"] == 1


def test_a_process_that_ended_before_its_pod_was_known_is_told() -> None:
    """A Job that lives for a moment is over before the kubelet tells its container's id."""
    job = Container("job")
    with node() as agent:
        agent.set(job="on")
        with running(job, *WORK) as process:
            agent.look()
        until(lambda: agent.following.processes.state_of(process.pid) is None, agent.turn)
        assert agent.interval() == []

        agent.knows(job)
        agent.interval()

        assert agent.told(job) == (8 * MIB, 0)
        assert not agent.kept(process), "it was told"
        assert agent.in_use() == {"job": 0}


def test_a_process_whose_pod_is_gone_is_told_to_its_end() -> None:
    """The API forgets a pod while its last process still gives its memory back."""
    worker = Container("ml")
    with node() as agent:
        agent.set(ml="on")
        agent.knows(worker)
        with running(worker, *WORK) as process:
            agent.look()
            agent.index.forget(worker.uid)
            agent.following.reconsider()

            assert agent.states(process) == ["on"]
            agent.interval()
            assert agent.told(worker) == (8 * MIB, 3 * MIB)

            agent.set(ml="off")
            assert agent.states(process) == ["off"]
            assert not agent.kept(process)


def test_a_container_without_processes_is_told_no_more_once_its_namespace_is_off() -> None:
    """Its pod still runs, and what its last process did is in the gauges until then."""
    worker, other = Container("ml"), Container("other")
    with node() as agent:
        agent.set(ml="on", other="on")
        agent.knows(worker)
        agent.knows(other)
        with running(worker, *WORK) as first, running(other, *WORK) as second:
            agent.look()
        gone = (first.pid, second.pid)
        until(
            lambda: not any(agent.following.processes.of_pid(pid) for pid in gone),
            lambda: (agent.turn(), agent.interval()),
        )
        assert agent.in_use() == {"ml": 0, "other": 0}

        agent.set(other="on")

        assert agent.in_use() == {"other": 0}


def test_a_process_that_was_held_for_long_is_told_though_it_ended_meanwhile() -> None:
    """The API was away while a pod came, worked for minutes and went."""
    job = Container("job")
    with node() as agent:
        agent.set(job="on")
        agent.up_to_date = False
        with running(job, *WORK) as process:
            agent.look()
            [followed] = agent.following.processes.of_pid(process.pid)
            followed.since -= 10_000
        until(lambda: agent.following.processes.state_of(process.pid) is None, agent.turn)
        time.sleep(1.1)
        agent.turn()

        agent.up_to_date = True
        agent.knows(job)
        agent.interval()

        assert agent.told(job) == (8 * MIB, 0)


def test_a_container_beyond_the_bound_is_recorded_when_another_has_gone() -> None:
    first, second = Container("a"), Container("b")
    with node(Bounds(owners=1)) as agent:
        agent.set(a="on", b="on")
        agent.knows(first)
        agent.knows(second)
        with running(second, *WORK) as two, running(first, *WORK) as one:
            agent.look()
            assert agent.states(one, two) == ["off", "on"]
            on = one if agent.states(one) == ["on"] else two
            gone = first if on is one else second
            on.kill()
            agent.index.forget(gone.uid)
            left = two if on is one else one
            until(
                lambda: agent.states(left) == ["on"],
                lambda: (agent.turn(), agent.interval()),
            )


def test_a_clock_that_is_set_back_stops_nothing_and_repeats_no_time() -> None:
    """Pyroscope adds up two profiles of one time, and Grafana shows twice the bytes."""
    worker, hour = Container("ml"), 3600 * SECOND
    with node() as agent:
        agent.set(ml="on")
        agent.knows(worker)
        agent.now = 10 * hour
        with running(worker, *WORK):
            agent.look()
            times = [each.time_ns for _ in range(3) for each in agent.interval()]
            agent.now -= SECOND // 2
            assert agent.interval() == [], "the end of this interval was told already"

            for _ in range(2):
                agent.now -= 4 * SECOND
                times += [each.time_ns for _ in range(3) for each in agent.interval()]
                assert agent.told(worker) == (0, 3 * MIB)

            agent.now += hour
            [late] = agent.interval()
            assert late.time_ns == agent.now // SECOND * SECOND
            assert len(times) == len(set(times)) == 9
            assert agent.publisher.counts["intervals_missed"] >= 3599


def test_memory_from_before_is_followed_though_the_process_does_nothing_else() -> None:
    """A free of what was allocated before is of an unknown address; only the driver tells."""
    worker = Container("ml")
    held = {"bytes": 500 * MIB}

    class Driver(Nvml):
        def process_bytes(self) -> Counter[int]:
            return Counter({process.pid: held["bytes"]})

    with running(worker, *WORK) as process, node() as agent:
        agent.recorder._driver = DriverView(OWN, Driver)
        agent.set(ml="on")
        agent.knows(worker)
        agent.look()
        agent.interval()
        assert agent.told(worker) == (0, 500 * MIB)

        held["bytes"] = 100 * MIB
        agent.interval()
        assert agent.told(worker) == (0, 100 * MIB)


EVER_NEW = """
import ctypes
cuda, pointer, number = ctypes.CDLL("libcudart.so.12"), ctypes.c_void_p(), 0
print(flush=True)
while input():
    for number in range(number + 1, number + 31):
        exec(f"def f{number}(): return cuda.cudaMalloc(ctypes.byref(pointer), 1 << 20)")
        assert globals()[f"f{number}"]() == 0
        assert cuda.cudaFree(pointer) == 0
    print(number, flush=True)
"""


def test_a_program_that_makes_ever_new_stacks_is_told_for_months() -> None:
    worker = Container("ml")
    with node(trust=replace(OWN, stacks_per_process=40)) as agent, worker.group() as group:
        agent.set(ml="on")
        agent.knows(worker)
        with subprocess.Popen(
            ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh",
             sys.executable, "-c", EVER_NEW],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "LD_LIBRARY_PATH": str(FAKES)},
        ) as process:  # fmt: skip
            assert process.stdin is not None and process.stdout is not None
            process.stdout.readline()
            agent.look()
            for turn in range(1, 7):
                process.stdin.write("go\n")
                process.stdin.flush()
                process.stdout.readline()
                agent.turn()
                agent.recorder.drain()
                [made] = agent.interval()
                names = {frame.name for sample in made.profile.samples for frame in sample.stack}
                assert agent.told(worker) == (30 * MIB, 0)
                assert {f"f{turn * 30 - n}" for n in range(30)} <= names
            assert agent.recorder.stacks.counters()["stacks_full"] == 0
            assert agent.publisher.counts["stacks_let_go"] > 100
            memory, _ = agent.accounts.view(agent.recorder.ledger.snapshot)
            assert [use.allocations for use in memory.values()] == [180]
            process.kill()


def test_processes_that_end_at_once_take_no_room_from_those_that_wait() -> None:
    """Nobody knows whose they were: it never will be known."""
    job = Container("job")
    with node(Bounds(held=1)) as agent:
        for number in range(5):
            agent.following.new(Process(ProcessId((1 << 22) + number, 1), "gone", "", 0))
        with running(job, *WORK) as process:
            agent.look()
            assert agent.states(process) == ["held"]
        assert agent.following.counts["held_without_pod"] == 5


def test_what_a_server_did_not_get_is_told_to_it_again_and_not_to_the_store() -> None:
    worker = Container("ml")
    with node() as agent:
        agent.set(ml="on")
        agent.knows(worker)
        with running(worker, *WORK):
            agent.look()
            [dropped] = agent.interval()
            assert agent.told(worker) == (8 * MIB, 3 * MIB)

            agent.publisher.carry(dropped)
            agent.interval()
            assert agent.told(worker) == (8 * MIB, 3 * MIB)
            agent.interval()
            assert agent.told(worker) == (0, 3 * MIB)
        allocated = [each.profile.total.alloc_space for each in agent.store.got]
        assert allocated == [8 * MIB, 0, 0]


def test_a_program_run_by_a_process_that_was_switched_off_just_now_is_off_and_forgotten() -> None:
    worker = Container("ml")
    with node() as agent:
        agent.set(ml="on")
        agent.knows(worker)
        with running(worker, *WORK) as process:
            agent.look()
            [followed] = agent.following.processes.of_pid(process.pid)
            agent.set()
            # The kernel had told of the exec before.
            agent.recorder._end(followed.process, time.monotonic_ns(), "exec", "next")

            assert agent.states(process) == ["off"]
            assert not agent.kept(process)
        until(lambda: not agent.following.processes.of_pid(process.pid), agent.turn)
        assert process.pid not in {each.id.pid for each in agent.recorder.processes.all}


def test_a_process_that_has_ended_is_not_taken_for_the_hosts() -> None:
    """The kernel moves it out of its container's control groups before its parent takes note."""
    off = Container("off")
    with node() as agent, off.group() as group:
        agent.set(_host="on", off="off")
        agent.knows(off)
        with subprocess.Popen(
            ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh",
             str(FAKES / "driver_loop"), *WORK],
            stdout=subprocess.DEVNULL, env={**os.environ, "LD_LIBRARY_PATH": str(FAKES)},
        ) as process:  # fmt: skip
            until(lambda: procfs.read_stat(process.pid).state == "Z", lambda: time.sleep(0.01))
            agent.recorder.drain()
            agent.turn()
            agent.interval()
            pids = {dict(s.labels)["pid"] for each in agent.got for s in each.profile.samples}
            assert str(process.pid) not in pids
            assert not agent.kept(process)


FORKS = """
import ctypes, os
cuda, pointer = ctypes.CDLL("libcudart.so.12"), ctypes.c_void_p()
print(flush=True)
input()
for _ in range(5):
    child = os.fork()
    if not child:
        os._exit(cuda.cudaMalloc(ctypes.byref(pointer), 1 << 20))
    assert os.waitpid(child, 0)[1] == 0
print(flush=True)
input()
"""


@pytest.mark.parametrize("switch", ["on", "off"])
def test_children_that_have_ended_before_anyone_looked_are_their_parents_containers(
    switch: str,
) -> None:
    worker = Container("ml")
    with node() as agent, worker.group() as group:
        agent.set(ml="on", _host="on")
        agent.knows(worker)
        with subprocess.Popen(
            ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh",
             sys.executable, "-c", FORKS],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "LD_LIBRARY_PATH": str(FAKES)},
        ) as process:  # fmt: skip
            assert process.stdin is not None and process.stdout is not None
            process.stdout.readline()
            agent.look()
            process.stdin.write("go\n")
            process.stdin.flush()
            process.stdout.readline()
            if switch == "off":
                agent.set(_host="on")
            agent.recorder.drain()
            agent.turn()
            agent.interval()

            assert agent.told(worker) == ((5 * MIB, 0) if switch == "on" else (0, 0))
            assert agent.following.counts["held_without_pod"] == 0
            process.kill()
