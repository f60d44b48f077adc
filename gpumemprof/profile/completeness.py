"""What each completeness counter means, in words. One table, for the file and for the reports."""

from __future__ import annotations

from collections.abc import Mapping

MEANING: dict[str, str] = {
    # Counted in the kernel (bpf/events.h).
    "events_lost": "events were lost because the ring of events was full: byte counts are wrong",
    "stacks_lost": "stacks were lost because the ring of stacks was full: bytes hold, "
    "their functions are unknown",
    "stack_no_buffer": "stacks were lost because no scratch buffer was free: bytes hold, "
    "their functions are unknown",
    "stack_unreadable": "stacks could not be read from the program's memory",
    "out_unreadable": "calls returned results that could not be read: their bytes are missing",
    "in_unreadable": "calls had arguments that could not be read: their bytes are missing",
    "abandoned": "calls never returned (longjmp or an exception): their results are unknown",
    "py_unreadable": "Python stacks could not be read: their Python functions are missing",
    "py_no_thread_state": "stacks were of threads that the Python interpreter does not know: "
    "they have no Python functions",
    "py_truncated": "Python stacks were too deep: the callers farthest out are missing",
    "threads_full": "calls were not recorded because too many threads were in calls at once",
    "processes_full": "processes were not recorded because too many were already",
    "missed_return": "calls returned whose beginning was not seen: they are not counted",
    # Counted by the ledger and the unwinder.
    "unknown_frees": "frees were of memory whose allocation was not seen "
    "(most often from before attaching)",
    "unwind_failed": "stacks could not be unwound to their end",
    "stacks_truncated": "stacks were cut at the configured size: the callers farthest out "
    "are missing",
    "unsymbolised": "native frames have no symbol and are shown as module and offset",
    "push_failed": "profiles could not be pushed",
}
"""Counter name -> what happened that many times, worded to follow a number."""


def sentences(completeness: Mapping[str, int]) -> list[str]:
    """One sentence for each counter that is not zero, in the order of ``MEANING``, then by name."""
    order = {name: position for position, name in enumerate(MEANING)}
    counted = sorted(
        (name for name, count in completeness.items() if count),
        key=lambda name: (order.get(name, len(order)), name),
    )
    return [f"{completeness[name]:,} {_meaning(name)}" for name in counted]


def _meaning(name: str) -> str:
    words = MEANING.get(name)
    return f"{words} ({name})" if words else f"times {name.replace('_', ' ')} ({name})"
