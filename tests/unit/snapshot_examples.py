"""Snapshots as PyTorch writes them, built by hand: one small allocator that keeps its trace."""

from __future__ import annotations

import pickle
from typing import Any

from gpumemprof.snapshot import read
from gpumemprof.snapshot.model import Snapshot

MIB = 1 << 20
BASE = 0x7F0000000000


def frames(*names: str) -> list[dict[str, Any]]:
    """Innermost first."""
    return [{"name": name, "filename": "/app/train.py", "line": 7} for name in names]


def block(size: int, state: str = "active_allocated", **more: Any) -> dict[str, Any]:
    asked = size if state != "inactive" else 0
    return {"size": size, "requested_size": asked, "state": state, "frames": [], **more}


def segment(*blocks: dict[str, Any], address: int = BASE, **more: Any) -> dict[str, Any]:
    at = address
    for one in blocks:
        one.setdefault("address", at)
        at += one["size"]
    allocated = sum(b["size"] for b in blocks if b["state"] == "active_allocated")
    return {
        "device": 0,
        "address": address,
        "total_size": at - address,
        "allocated_size": allocated,
        "active_size": sum(b["size"] for b in blocks if b["state"] != "inactive"),
        "requested_size": sum(b["requested_size"] for b in blocks),
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": list(blocks),
        **more,
    }


def event(action: str, address: int, size: int, **more: Any) -> dict[str, Any]:
    place = {"device_free": more.pop("device_free")} if action == "oom" else {"addr": address}
    return {
        "action": action, **place, "size": size, "stream": 0, "time_us": 1_700_000_000_000_000,
        "frames": [], **more,
    }  # fmt: skip


def pickled(segments: list[Any], trace: list[Any] | None = None, **more: Any) -> bytes:
    return pickle.dumps({"segments": segments, "device_traces": [trace or []], **more})


def snapshot(segments: list[Any], trace: list[Any] | None = None, **more: Any) -> Snapshot:
    return read.decode(pickled(segments, trace, **more))
