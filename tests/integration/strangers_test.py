"""Programs that mean harm, on the real kernel: no look at them may stop the one who looks."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gpumemprof.errors import RemoteDataError
from gpumemprof.probe.events import PythonState, StackEvent
from gpumemprof.process import maps, procfs
from gpumemprof.process.gpu import Gpu, Nvml
from gpumemprof.process.gpu_locator import GpuLocator
from gpumemprof.process.identity import ProcessId
from gpumemprof.process.libraries import LibraryProber
from gpumemprof.process.mapped_file import open_mapped
from gpumemprof.process.table import ProcessTable
from gpumemprof.process.trust import TENANTS
from gpumemprof.stack.resolver import StackResolver

SERVER = Path(__file__).with_name("fuse_server.py")
HASTY = replace(TENANTS, patience=0.3)
NAME = "libcudart.so.12"


class Stranger(NamedTuple):
    """``mapped``: address of a file on FUSE; ``made``: of code without a file."""

    id: ProcessId
    maps: maps.Maps
    mapped: int
    made: int

    def stack(self, pc: int, python_frames: bytes = b"") -> StackEvent:
        """A captured stack of two frames: ``pc`` called by code 64 bytes further on."""
        window = (pc + 64).to_bytes(8, "little") + bytes(8)
        registers = (pc, 0x7FFF00000000, 0, 0, 0, 0, 0, 0)
        state = PythonState.WALKED if python_frames else PythonState.NOT_PYTHON
        return StackEvent(
            1, 1, self.id.pid, self.id.pid, 0, 1, registers, 0, state, python_frames, window, False
        )


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[Stranger]:
    with started(tmp_path) as found:
        yield found


@contextlib.contextmanager
def started(directory: Path, *hidden: str) -> Iterator[Stranger]:
    process = subprocess.Popen(
        [sys.executable, SERVER, directory, NAME, *hidden],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout
        line = process.stdout.readline()
        if not line:
            pytest.skip("FUSE cannot be mounted here")
        mapped, made = map(int, line.split())
        identity = ProcessId(process.pid, procfs.read_stat(process.pid).start_ns)
        yield Stranger(identity, maps.read_code(process.pid), mapped, made)
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def stacks() -> Iterator[StackResolver]:
    resolver = StackResolver(trust=HASTY)
    yield resolver
    resolver.close()


def test_code_on_fuse_is_not_opened_and_the_stack_says_so(
    stranger: Stranger, stacks: StackResolver
) -> None:
    stacks.see(stranger.id, stranger.maps)
    number = stacks.intern(stranger.stack(stranger.mapped), stranger.id)
    names = [frame.name for frame in stacks.resolve(number)]
    assert names[0] == f"{NAME}+{stranger.mapped:#x}"
    assert "FUSE" in names[-1]
    assert stacks.counters()["reads_given_up"] == 0


def test_a_library_on_fuse_is_not_probed(stranger: Stranger) -> None:
    with pytest.raises(RemoteDataError, match="FUSE"):
        open_mapped(stranger.id.pid, stranger.maps.find(stranger.mapped), allow_fuse=False)  # type: ignore[arg-type]
    prober = LibraryProber(lambda *_: pytest.fail("attached"), trust=HASTY)
    prober.scan(stranger.id.pid, maps.Maps((stranger.maps.find(stranger.mapped),)))  # type: ignore[arg-type]
    assert ["FUSE" in why for why in prober.problems.values()] == [True]
    prober.close()


def test_a_temporary_directory_that_does_not_answer_is_given_up(
    stranger: Stranger, stacks: StackResolver
) -> None:
    stacks.see(stranger.id, stranger.maps)
    for _ in range(3):
        number = stacks.intern(stranger.stack(stranger.made), stranger.id)
    assert stacks.resolve(number)[0].name == "[code made at run time]"
    assert stacks.counters()["reads_given_up"] == 1


def test_memory_that_does_not_answer_is_given_up_once(
    stranger: Stranger, stacks: StackResolver
) -> None:
    stacks.see(stranger.id, stranger.maps)
    assert stacks.find_interpreter(stranger.id, stranger.maps)
    for offset in (0, 4096):
        code = stranger.mapped + offset
        frames = code.to_bytes(8, "little") * 2 + bytes(8)
        event = stranger.stack(stranger.made, frames)
        stacks.read_python(event, stranger.id)
        assert stacks.intern(event, stranger.id)
    counters = stacks.counters()
    assert counters["python_unsupported"] == 1
    assert counters["reads_given_up"] <= 2
    assert stacks.find_interpreter(stranger.id, stranger.maps) is None


def test_a_command_line_that_does_not_answer_is_left_out(tmp_path: Path) -> None:
    # The kernel shows only memory without a file there (since 4.17): nothing is to be given up.
    with started(tmp_path, "hidden") as stranger:
        processes = ProcessTable()
        found = processes.add(stranger.id.pid)
        assert found.id == stranger.id
        assert found.command == ""
        processes.close()
        locator: Any = GpuLocator(Node(), trust=HASTY)
        assert locator.locate(stranger.id, 0) == ("", "")
        locator.close()


def test_others_are_read_while_a_stranger_does_not_answer(
    stranger: Stranger, stacks: StackResolver
) -> None:
    stacks.see(stranger.id, stranger.maps)
    stacks.intern(stranger.stack(stranger.made), stranger.id)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = ProcessId(child.pid, procfs.read_stat(child.pid).start_ns)
    mapped = maps.read_code(child.pid)
    stacks.see(identity, mapped)
    while stacks.find_interpreter(identity, mapped) is None:
        mapped = maps.read_code(child.pid)
        stacks.see(identity, mapped)
    child.communicate(b"\n")


class Node(Nvml):
    """NVML of a node with three GPUs."""

    def __init__(self) -> None:
        self._gpus = [Gpu(n, f"GPU-{n}", "H200", 0, 0, minor=2 - n) for n in range(3)]

    def gpus(self) -> list[Gpu]:
        return self._gpus

    def process_gpus(self) -> dict[int, frozenset[int]]:
        return {}


def test_the_gpu_of_a_process_is_told_by_the_device_nodes_of_its_root(tmp_path: Path) -> None:
    (tmp_path / "7/root/dev").mkdir(parents=True)
    (tmp_path / "7/mountinfo").write_bytes(Path("/proc/self/mountinfo").read_bytes())
    (tmp_path / "7/environ").write_bytes(b"CUDA_VISIBLE_DEVICES=0\0")
    dev = tmp_path / "7/root/dev"
    try:
        os.mknod(dev / "nvidia2", 0o20600, os.makedev(195, 2))
        os.mknod(dev / "nvidia1", 0o20600, os.makedev(1, 3))  # /dev/null in disguise
    except PermissionError:
        pytest.skip("device nodes cannot be made here")
    (dev / "nvidia0").write_bytes(b"")
    locator = GpuLocator(Node(), trust=HASTY, proc=tmp_path)
    assert locator.locate(ProcessId(7, 1), 0) == ("0", "GPU-0")
    locator.close()
