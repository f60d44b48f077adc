"""Which device memory is on: the thread's current context, pushed, popped, created, destroyed."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpumemprof.probe.attach import AttachMode
from gpumemprof.profile.merge import label
from tests.integration.cuda_scripts import running

KIB = 1 << 10
"""Each allocation has a size of its own, by which it is found."""


def devices(here: Path, body: str, mode: AttachMode | None = None) -> dict[int, str]:
    """Size of each allocation in KiB -> the device it was told to be on."""
    with running(here, body, mode, GPUMEMPROF_FAKE_DEVICES="8") as script:
        script.at("end")
        profile = script.recorder.profile()
        script.go_on("end")
        script.finish()
    return {s.values.alloc_space // KIB: label(s.labels, "device") for s in profile.samples}


def test_a_thread_s_memory_is_on_the_device_of_its_current_context(tmp_path: Path) -> None:
    assert devices(
        tmp_path,
        """
        call("cuInit", 0)
        first, second = (new("cuDevicePrimaryCtxRetain", device) for device in (0, 1))
        call("cuCtxSetCurrent", first)
        new("cuMemAlloc_v2", 1024)
        call("cuCtxSetCurrent", second)
        new("cuMemAlloc_v2", 2048)
        call("cuCtxPushCurrent_v2", first)
        new("cuMemAlloc_v2", 3072)
        new("cuCtxPopCurrent_v2")
        new("cuMemAlloc_v2", 4096)
        """,
    ) == {1: "0", 2: "1", 3: "0", 4: "1"}


def test_contexts_pushed_six_deep_come_back_in_order_as_far_as_they_are_remembered(
    tmp_path: Path,
) -> None:
    found = devices(
        tmp_path,
        """
        call("cuInit", 0)
        contexts = [new("cuDevicePrimaryCtxRetain", device) for device in range(8)]
        call("cuCtxSetCurrent", contexts[0])
        for device in range(1, 7):
            call("cuCtxPushCurrent_v2", contexts[device])
            new("cuMemAlloc_v2", device * 1024)
        for device in reversed(range(6)):
            new("cuCtxPopCurrent_v2")
            new("cuMemAlloc_v2", (10 + device) * 1024)
        """,
    )
    assert found == {
        **{device: str(device) for device in range(1, 7)},
        # four are saved: of the ones above nothing is claimed
        15 + 14: "unknown", 13: "3", 12: "2", 11: "1", 10: "0",
    }  # fmt: skip


@pytest.mark.parametrize("mode", AttachMode)
def test_a_destroyed_context_gives_way_to_the_one_before_it(
    tmp_path: Path, mode: AttachMode
) -> None:
    found = devices(
        tmp_path,
        """
        call("cuInit", 0)
        call("cuCtxSetCurrent", new("cuDevicePrimaryCtxRetain", 1))
        created = ctypes.c_uint64()
        call("cuCtxCreate_v4", ctypes.byref(created), None, 0, 2)
        new("cuMemAlloc_v2", 1024)
        call("cuCtxDestroy_v2", created.value)
        new("cuMemAlloc_v2", 2048)
        """,
        mode,
    )
    assert found == {1: "2", 2: "1"}


def test_a_context_destroyed_while_another_is_current_changes_nothing(tmp_path: Path) -> None:
    found = devices(
        tmp_path,
        """
        call("cuInit", 0)
        created = ctypes.c_uint64()
        call("cuCtxCreate_v2", ctypes.byref(created), 0, 2)
        call("cuCtxSetCurrent", new("cuDevicePrimaryCtxRetain", 1))
        call("cuCtxDestroy_v2", created.value)
        new("cuMemAlloc_v2", 1024)
        """,
    )
    assert found == {1: "1"}
