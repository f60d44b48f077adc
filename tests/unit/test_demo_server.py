"""The demo's own bookkeeping agrees with what the stand-in driver saw."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from fakes_cuda import MIB, environment

ROOT = Path(__file__).parents[2]


def serve(tmp_path: Path, *options: str, **settings: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the server says of itself, and the truth."""
    env = environment(
        GPUMEMPROF_FAKE_STATS=str(tmp_path / "truth"), PYTHONPATH=str(ROOT), **settings
    )
    command = [sys.executable, "-m", "gpumemprof.demo.llm_server", "--json", "--interval", "0"]
    done = subprocess.run([*command, *options], env=env, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout), json.loads((tmp_path / "truth").read_text())


def test_its_books_are_right(tmp_path: Path) -> None:
    books, truth = serve(tmp_path, "--scale", "0.5")
    gpu = truth["process_gpu"]
    assert books["gpu_bytes"] == gpu["live_bytes"]
    assert books["peak_gpu_bytes"] == gpu["peak_bytes"]
    assert books["bytes"]["pinned_host"] == MIB
    assert books["bytes"]["pinned_host"] == truth["devices"][0]["pinned_host"]["live_bytes"]
    assert [failure["error"] for failure in books["failures"]] == [2]
    assert truth["calls"]["cudaMalloc"]["failed"] == 1


def test_it_leaks_by_the_request_and_not_when_fixed(tmp_path: Path) -> None:
    leaking, _ = serve(tmp_path, "--requests", "10")
    longer, _ = serve(tmp_path, "--requests", "20")
    fixed, _ = serve(tmp_path, "--requests", "20", "--fixed")
    assert longer["gpu_bytes"] - leaking["gpu_bytes"] == 10 * 2 * MIB
    assert longer["gpu_bytes"] - fixed["gpu_bytes"] == 19 * 2 * MIB
    weights = [run["functions"][load_weights(run)] for run in (leaking, longer, fixed)]
    assert len(set(weights)) == 1


def load_weights(books: dict[str, Any]) -> str:
    """The function's name as this interpreter has it: qualified or, up to 3.10, not."""
    return next(name for name in books["functions"] if name.endswith("load_weights"))


def test_it_spreads_its_layers_over_devices(tmp_path: Path) -> None:
    books, truth = serve(tmp_path, "--devices", "2", GPUMEMPROF_FAKE_DEVICES="2")
    for number in (0, 1):
        live = truth["devices"][number]["gpu"]["live_bytes"]
        assert books["bytes"][f"device {number}"] == live > 1000 * MIB
