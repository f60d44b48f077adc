"""Which programs there are, which of them a way to attach needs, and as what each is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpumemprof.probe.modes import AttachMode
from gpumemprof.probe.syscalls import BPF_TRACE_UPROBE_MULTI, BPF_TRACE_UPROBE_SESSION

TYPE_UPROBE = 2
"""BPF_PROG_TYPE_KPROBE, which uprobes are to the kernel."""
TYPE_RAW_TRACEPOINT = 17


@dataclass(frozen=True, slots=True)
class Kind:
    """As what a program is loaded: enum bpf_prog_type, and the expected attach type."""

    type: int
    attach_type: int = 0


_ATTACH_TYPES = {
    AttachMode.SESSION: BPF_TRACE_UPROBE_SESSION,
    AttachMode.MULTI: BPF_TRACE_UPROBE_MULTI,
    AttachMode.SINGLE: 0,
    AttachMode.WRAPPED: 0,
}
_OF_CALLS = {
    AttachMode.SESSION: ("session",),
    AttachMode.MULTI: ("multi_entry", "multi_return"),
    AttachMode.SINGLE: ("single_entry", "single_return"),
    AttachMode.WRAPPED: ("wrapped_entry", "wrapped_return"),
}
_EMPTY = {
    AttachMode.SESSION: ("empty_session",),
    AttachMode.MULTI: ("empty_entry", "empty_return"),
    AttachMode.SINGLE: ("empty_entry", "empty_return"),
    AttachMode.WRAPPED: ("empty_entry", "empty_return"),
}
LIFECYCLE = {
    "on_fork": "sched_process_fork",
    "on_exec": "sched_process_exec",
    "on_exit": "sched_process_exit",
}
"""Program → the tracepoint it hangs on."""
CALLED = ("walk_python", "fingerprint")
"""What programs call, and what is verified by itself."""
TYPES_ONLY = "abi"
"""A program that is there for its types, and never loaded."""
ALL = (
    *dict.fromkeys(
        name for table in (_OF_CALLS, _EMPTY) for names in table.values() for name in names
    ),
    *LIFECYCLE,
    TYPES_ONLY,
)


def of_calls(mode: AttachMode, *, empty: bool = False) -> tuple[str, ...]:
    """Names of the programs for entry and return, or of the one for both; ``empty``: of those
    that do nothing."""
    return (_EMPTY if empty else _OF_CALLS)[mode]


def wanted(mode: AttachMode, *, empty: bool = False) -> Mapping[str, Kind]:
    """What to load for a way to attach: those of calls and those of processes."""
    kind = Kind(TYPE_UPROBE, _ATTACH_TYPES[mode])
    return {
        **dict.fromkeys(of_calls(mode, empty=empty), kind),
        **{name: Kind(TYPE_RAW_TRACEPOINT) for name in LIFECYCLE},
    }
