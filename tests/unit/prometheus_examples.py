"""Views of an agent as values, for tests of what Prometheus is told."""

from __future__ import annotations

from gpumemprof.export.model import (
    AgentView,
    FailureKey,
    MemoryKey,
    MemoryUse,
    Owner,
    PushStatus,
)

NODE = "aks-gpu-12345678-vmss000001"
GPU_0 = "GPU-11111111-1111-1111-1111-111111111111"
GPU_1 = "GPU-22222222-2222-2222-2222-222222222222"
GIB = 1 << 30

TRAINER = Owner("ml", "trainer-6c8d9-abcde", "main", "trainer", NODE, "uid-1")
SERVER = Owner("ml", "server-7f9c6-fghij", "main", "server", NODE, "uid-2")
OTHER_TEAM = Owner("vision", "detector-0", "infer", "detector", NODE, "uid-3")
HOST = Owner("", "", "", "nvidia-smi", NODE)

TRAINER_MEMORY = MemoryKey(TRAINER, "device", "0", GPU_0)
SERVER_MEMORY = MemoryKey(SERVER, "device", "1", GPU_1)
SERVER_PINNED = MemoryKey(SERVER, "pinned_host", "", "")
OTHER_MEMORY = MemoryKey(OTHER_TEAM, "managed", "1", GPU_1)
HOST_MEMORY = MemoryKey(HOST, "device", "0", GPU_0)


def usual_view() -> AgentView:
    """A node with three pods, two GPUs and a program outside of pods."""
    return AgentView(
        time_ns=1_800_000_000_500_000_000,
        node=NODE,
        memory={
            TRAINER_MEMORY: MemoryUse(20 * GIB, 24 * GIB, 90 * GIB, 70 * GIB, 4_000, 3_500),
            SERVER_MEMORY: MemoryUse(6 * GIB, 7 * GIB, 8 * GIB, 2 * GIB, 120, 20),
            SERVER_PINNED: MemoryUse(1 * GIB, 1 * GIB, 1 * GIB, 0, 2, 0),
            OTHER_MEMORY: MemoryUse(3 * GIB, 3 * GIB, 3 * GIB, 0, 30, 0),
            HOST_MEMORY: MemoryUse(4096, 8192, 12288, 8192, 3, 2),
        },
        failures={FailureKey(TRAINER_MEMORY, 2): 3, FailureKey(SERVER_MEMORY, 700): 1},
        owners_overflowed=5,
        counters={
            "events": 8_000,
            "stacks": 4_100,
            "events_lost": 7,
            "stacks_truncated": 11,
            "frames_without_symbol": 13,
            "unknown_frees": 17,
        },
        processes={"on": 4, "off": 2, "held": 1},
        libraries={"libcuda": 1, "libcudart": 2, "loader": 3},
        libraries_not_probed=1,
        api={"pods": True, "switch": False},
        api_errors={"switch": 9},
        switch_rejected=2,
        about={"loader": "libbpf 1.1", "attach": "uprobe multi", "kernel": "6.8.0-azure"},
    )


def usual_push() -> PushStatus:
    """Pushes that mostly succeed."""
    return PushStatus(
        results={"delivered": 500, "rejected": 1, "empty": 4},
        queued=3,
        last_success_ns=1_799_999_990_000_000_000,
        attempts={"delivered": 500, "rejected": 1, "throttled": 6},
    )
