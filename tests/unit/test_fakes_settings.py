"""The stand-ins fail, sleep and report as they are told by environment variables."""

import ctypes as c
import json
import subprocess
import time
from pathlib import Path

from fakes_cuda import FAKES, GIB, MIB, Cuda, cuda_process, environment


@cuda_process(GPUMEMPROF_FAKE_FAIL="cudaMalloc:2:2,cudaFree:*:1")
def test_the_chosen_entry_of_a_call_fails_before_it_does_anything(cuda: Cuda) -> None:
    out = c.c_uint64()
    assert [cuda.cudaMalloc(c.byref(out), MIB) for _ in range(3)] == [0, 2, 0]
    assert [cuda.cudaFree(out.value) for _ in range(2)] == [1, 1]
    assert cuda.live("device") == 2 * MIB
    assert cuda.calls("cuMemAlloc_v2")["entered"] == 2
    assert cuda.calls("cuMemFree_v2")["entered"] == 0
    assert cuda.calls("cudaFree") == {"entered": 2, "outermost": 2, "failed": 2}


@cuda_process(GPUMEMPROF_FAKE_FAIL="cuMemAlloc_v2:2+:2")
def test_a_failure_in_the_driver_comes_out_of_the_runtime(cuda: Cuda) -> None:
    out = c.c_uint64()
    assert [cuda.cudaMalloc(c.byref(out), MIB) for _ in range(3)] == [0, 2, 2]
    assert cuda.calls("cudaMalloc")["failed"] == cuda.calls("cuMemAlloc_v2")["failed"] == 2


@cuda_process(GPUMEMPROF_FAKE_SLEEP="cuMemAlloc_v2:0.05:1")
def test_a_call_sleeps_where_it_is_told_to(cuda: Cuda) -> None:
    cuda.start()
    before = time.monotonic()
    cuda.new("cudaMalloc", MIB)
    assert time.monotonic() - before >= 0.05


def run(program: str, *arguments: str, **settings: str) -> dict[str, object]:
    done = subprocess.run(
        [FAKES / program, *arguments],
        env=environment(**settings),
        stdout=subprocess.PIPE,
        check=True,
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_a_rule_that_cannot_be_read_ends_the_program() -> None:
    done = subprocess.run(
        [FAKES / "driver_loop"],
        env=environment(GPUMEMPROF_FAKE_FAIL="cudaMalloc"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 97
    assert "cannot read rule 'cudaMalloc'" in done.stderr


def test_the_truth_is_written_at_exit(tmp_path: Path) -> None:
    told = run("driver_only", GPUMEMPROF_FAKE_STATS=str(tmp_path / "%p.json"))
    truth = json.loads((tmp_path / f"{told['pid']}.json").read_text())
    device = truth["devices"][0]
    for kind in ("device", "managed", "array", "pinned_host"):
        assert device[kind]["live_bytes"] == told[kind], kind
    assert told["device"] == (64 + 4 + 80) * MIB + 1000 * 4096 // 4
    assert truth["calls"]["cuMemAlloc_v2"] == {"entered": 2, "outermost": 2, "failed": 1}
    assert list(tmp_path.iterdir()) == [tmp_path / f"{told['pid']}.json"]


def test_driver_only_gives_everything_back_when_asked(tmp_path: Path) -> None:
    run("driver_only", "--free", GPUMEMPROF_FAKE_STATS=str(tmp_path / "truth"))
    truth = json.loads((tmp_path / "truth").read_text())
    assert truth["process_gpu"]["live_bytes"] == 0
    assert truth["devices"][0]["pinned_host"]["live_bytes"] == 0
    assert truth["process_gpu"]["total_count"] == 9


def test_driver_loop_leaks_what_it_is_told_to(tmp_path: Path) -> None:
    options = ["--threads", "3", "--pairs", "500", "--leak", "2", "--depth", "5", "--size", "1000"]
    told = run("driver_loop", *options, GPUMEMPROF_FAKE_STATS=str(tmp_path / "truth"))
    assert (told["leaked_count"], told["leaked_bytes"], told["failed"]) == (6, 6000, 0)
    truth = json.loads((tmp_path / "truth").read_text())
    assert truth["process_gpu"]["live_bytes"] == 6000
    assert truth["calls"]["cudaMalloc"] == {"entered": 1506, "outermost": 1506, "failed": 0}


def test_a_call_left_by_longjmp_is_no_nesting_for_the_next(tmp_path: Path) -> None:
    options = ["--longjmp", "3", "--pairs", "10"]
    run("driver_loop", *options, GPUMEMPROF_FAKE_STATS=str(tmp_path / "truth"))
    calls = json.loads((tmp_path / "truth").read_text())["calls"]
    assert calls["cudaMalloc"] == {"entered": 13, "outermost": 13, "failed": 0}
    assert calls["cuMemAlloc_v2"]["entered"] == 10


def test_driver_loop_runs_again_in_the_same_process_and_with_any_runtime(tmp_path: Path) -> None:
    for runtime in ("libcudart.so.12", "libcudart.so.13"):
        done = subprocess.run(
            [FAKES / "driver_loop_dlopen", "--runtime", runtime, "--exec", "--fork", "1"],
            env=environment(),
            stdout=subprocess.PIPE,
            check=True,
        )
        pids = [json.loads(line)["pid"] for line in done.stdout.splitlines()]
        # two processes, each before and after exec; the second time each forks again
        assert len(pids) == 6
        assert len(set(pids)) == 4


@cuda_process(GPUMEMPROF_FAKE_DEVICE_BYTES=str(1 << 50))
def test_terabytes_cost_nothing(cuda: Cuda) -> None:
    cuda.new("cudaMalloc", 1 << 40)
    assert cuda.live("device") == 1 << 40
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    assert resident < GIB


@cuda_process()
def test_a_call_can_be_looked_up_for_any_version(cuda: Cuda) -> None:
    def look_up(name: bytes, version: int, flags: int = 0) -> tuple[int, int, int]:
        out, status = c.c_uint64(), c.c_int()
        arguments = (c.byref(out), c.c_int(version), flags, c.byref(status))
        return cuda.cuGetProcAddress_v2(name, *arguments), out.value, status.value

    def address(name: str) -> int:
        return c.cast(getattr(cuda.driver, name), c.c_void_p).value or 0

    assert look_up(b"cuMemAlloc", 12000) == (0, address("cuMemAlloc_v2"), 0)
    assert look_up(b"cuMemAlloc", 3000) == (0, address("cuMemAlloc"), 0)
    assert look_up(b"cuMemAllocAsync", 12000, 2) == (0, address("cuMemAllocAsync_ptsz"), 0)
    assert look_up(b"cuMemAllocAsync", 11000) == (0, 0, 2)
    assert look_up(b"cuNoSuchCall", 12000) == (0, 0, 1)
    entry, status = c.c_uint64(), c.c_int()
    found = cuda.cudaGetDriverEntryPoint(b"cuMemFree", c.byref(entry), 0, c.byref(status))
    assert (found, entry.value, status.value) == (0, address("cuMemFree_v2"), 0)


def test_without_a_driver_the_runtime_says_that_it_is_insufficient(tmp_path: Path) -> None:
    (tmp_path / "libcudart.so.12").symlink_to(FAKES / "libcudart.so.12")
    script = "import ctypes; print(ctypes.CDLL('libcudart.so.12').cudaFree(None))"
    alone = {**environment(), "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(
        ["/usr/bin/python3", "-c", script], env=alone, stdout=subprocess.PIPE, check=True
    )
    assert done.stdout.split() == [b"35"]
