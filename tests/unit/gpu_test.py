"""What is made of NVML's answers, on a module that answers like it."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gpumemprof.process.gpu import Gpu, Nvml


class Error(Exception):
    """As nvml.NVMLError."""


def nvml(gpus: list[dict[str, Any]], **functions: Any) -> ModuleType:
    """A machine with these GPUs; what one does not know is an error."""

    def answer(key: str) -> Any:
        def ask(handle: dict[str, Any]) -> Any:
            if key not in handle:
                raise Error("Not Supported")
            return handle[key]

        return ask

    module = ModuleType("pynvml")
    vars(module).update(
        NVMLError=Error,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(gpus),
        nvmlDeviceGetHandleByIndex=gpus.__getitem__,
        nvmlDeviceGetMemoryInfo=answer("memory"),
        nvmlDeviceGetUUID=answer("uuid"),
        nvmlDeviceGetName=answer("name"),
        nvmlDeviceGetComputeRunningProcesses=answer("processes"),
    )
    vars(module).update(functions)
    return module


def process(pid: int, used: int | None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=used)


H200 = {
    "uuid": b"GPU-1", "name": "NVIDIA H200", "memory": SimpleNamespace(total=141, used=7),
    "processes": [process(10, 5), process(11, None)],
}  # fmt: skip
OTHER = {
    "uuid": "GPU-2", "name": "NVIDIA H200", "memory": SimpleNamespace(total=141, used=0),
    "processes": [process(10, 3)],
}  # fmt: skip


def use(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> Nvml:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return Nvml()


def test_gpus_are_told_with_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    found = use(monkeypatch, nvml([H200, OTHER])).gpus()
    assert found[0] == Gpu(0, "GPU-1", "NVIDIA H200", 141, 7)
    assert [gpu.index for gpu in found] == [0, 1]


def test_a_process_s_bytes_are_summed_over_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert use(monkeypatch, nvml([H200, OTHER])).process_bytes() == {10: 8}


def test_a_gpu_that_does_not_answer_is_still_a_gpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    session = use(monkeypatch, nvml([{"uuid": "GPU-0"}, OTHER]))
    assert session.gpus()[0] == Gpu(0, "GPU-0", "", 0, 0)
    assert len(session.gpus()) == 2
    assert session.process_bytes() == {10: 3}
    assert [record.getMessage() for record in caplog.records] == ["NVML: Not Supported"]


def test_without_a_driver_there_is_nothing_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise Error("Driver Not Loaded")

    session = use(monkeypatch, nvml([H200], nvmlInit=refuse))
    assert not session.available
    assert session.problem == "Driver Not Loaded"
    assert session.gpus() == []
    assert session.process_bytes() == {}
    session.close()


def test_nothing_is_asked_after_the_session_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    session = use(monkeypatch, nvml([H200]))
    session.close()
    assert not session.available
    assert session.gpus() == []


def test_the_gpus_of_each_process_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found = use(monkeypatch, nvml([H200, OTHER])).process_gpus()
    assert found == {10: frozenset({0, 1}), 11: frozenset({0})}


def test_device_node_and_division_of_a_gpu_are_told_where_nvml_knows_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = use(monkeypatch, nvml([H200, OTHER]))
    module = sys.modules["pynvml"]
    vars(module)["nvmlDeviceGetMinorNumber"] = lambda handle: 3 if handle is H200 else 0
    vars(module)["nvmlDeviceGetMigMode"] = lambda handle: [int(handle is OTHER), 0]
    first, second = session.gpus()
    assert (first.minor, first.mig, second.minor, second.mig) == (3, False, 0, True)
