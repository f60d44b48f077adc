"""What each completeness counter means, in words. Two tables, for the file and for the reports."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

LOST: dict[str, str] = {
    # Counted in the kernel (bpf/events.h).
    "events_lost": "events were lost because the ring of events was full: byte counts are wrong",
    "stacks_lost": "stacks were lost because the ring of stacks was full: their bytes are counted, "
    "their functions are unknown",
    "stack_no_buffer": "stacks were lost because no scratch buffer was free: their bytes are "
    "counted, their functions are unknown",
    "stack_unreadable": "stacks could not be read from the program's memory",
    "out_unreadable": "calls had results that could not be read: their bytes are missing",
    "in_unreadable": "calls had arguments that could not be read: their bytes may be missing",
    "abandoned": "calls never returned (longjmp or an exception): their results are unknown",
    "py_unreadable": "Python stacks could not be read: their Python functions are missing",
    "py_truncated": "Python stacks were too deep: their outermost callers are missing",
    "threads_full": "calls were not recorded: too many threads were in calls at once",
    "processes_full": "processes were not recorded: too many were recorded already",
    "too_deep": "calls were nested too deeply to be followed: they are not counted",
    # Counted on the way from the kernel (recorder.py).
    "calls_unreadable": "calls had results that could not be understood: they are not counted",
    "processes_forgotten": "processes that had ended were let go: they are not shown",
    "libraries_not_probed": "libraries could not be probed: their calls are not seen",
    # Counted by the ledger (ledger/model.py).
    "unknown_maps": "mappings were of memory not seen to be created",
    "unknown_unmaps": "unmapped ranges were not seen to be mapped",
    "unknown_releases": "releases were of memory not seen to be created",
    "unknown_retains": "references were to memory not seen to be created",
    "replaced": "allocations ended without being seen to end",
    "failed_frees_not_restored": "failed frees could not be put back: their bytes may be missing",
    "failed_frees_unmatched": "failed frees were not seen to begin: their bytes may be missing",
    "untracked": "allocations were beyond the limit of live ones: not counted as in use",
    "stacks_merged": "allocations were beyond the limit of stacks: counted under one stack",
    "failures_dropped": "failed allocations were beyond the limit of failures: they are not shown",
    "failures_abridged": "failed allocations are shown without what was live: "
    "they came in quick succession",
    "after_end": "events came after the end of their process and were ignored",
    # Counted while stacks were unwound and named (stack/resolver.py), and by the recorder.
    "stacks_missing": "stacks did not arrive: their bytes are counted, their functions are unknown",
    "unwind_failed": "stacks could not be unwound to their end: their outer callers are missing",
    "stacks_truncated": "stacks were longer than what is captured: their outermost callers are "
    "missing",
    "stacks_full": "stacks were beyond the limit of different ones: they are shown as one",
    "stacks_unseen": "stacks were of processes that ended before they could be looked at: their "
    "bytes are counted, their functions are unknown",
    "stacks_throttled": "stacks were not looked at: their process makes more work than its share",
    "reads_given_up": "reads of a process's files did not answer in time: names may be missing",
    "frames_without_file": "native frames are in files that could not be read",
    "python_unsupported": "processes run a Python whose frames cannot be read",
    "python_found_late": "stacks were captured before the interpreter was found: their Python "
    "functions are missing",
    "python_reused": "Python frames ran code that was gone before its name was read",
    "python_not_code": "Python frames had no code object where one should be",
    "python_unreadable": "Python frames could not be read from the program's memory",
    # Counted by the agent (agent/, export/).
    "push_failed": "profiles could not be pushed",
    "profiles_not_stored": "profiles were not stored: the disk is slower than they are made",
    "held_dropped": "processes were not recorded: too many waited for their pod to be known",
    "held_without_pod": "processes ended without their pod ever being known: they are not told",
    "owners_overflowed": "processes were not recorded: too many containers are told apart already",
    "switches_failed": "processes could not be switched on or off",
    "processes_not_added": "processes were found and could not be recorded",
    "intervals_missed": "intervals have no profile: the agent had no time, or the clock was set",
    "allocations_not_told": "allocations are in no pushed profile: their container was gone",
}
"""Counter -> what happened that many times, worded to follow a number."""

NORMAL: dict[str, str] = {
    "events": "events were recorded",
    "stacks": "stacks were recorded",
    "double": "calls were seen through two paths to one library, and counted once",
    "py_no_thread_state": "stacks were of threads that do not run Python (such as autograd's)",
    "before_attach_unknown": "processes used CUDA before they were recorded, and the driver does "
    "not tell what they held then: it is in no figure here",
    "unknown_frees": "frees were of memory not seen to be allocated (most often before attaching)",
    "failed_frees": "frees failed: their memory is still counted",
    "stacks_pruned": "small stacks were summed into one, to keep the profile small",
    "empty": "allocations were of 0 bytes",
    "stacks_let_go": "stacks of which nothing is held were let go of, to make room for new ones",
    "profiles_made": "profiles of containers were made",
    "series_omitted": "processes, kinds or devices are not shown over time: there were too many",
    "frames_without_symbol": "native frames have no symbol: shown as module and address",
    "python_lines_unknown": "Python frames have no known line",
}
"""Counters that tell what happened without anything being lost."""


def lost(completeness: Mapping[str, int]) -> list[str]:
    """A sentence for each counter that is not zero and means a loss; empty: complete.

    A counter that is in neither table counts as a loss."""
    unknown = sorted(completeness.keys() - LOST.keys() - NORMAL.keys())
    words = LOST | {name: f"times {name.replace('_', ' ')}" for name in unknown}
    return list(_sentences(completeness, words))


def normal(completeness: Mapping[str, int]) -> list[str]:
    """A sentence for each other counter that is not zero."""
    return list(_sentences(completeness, NORMAL))


def _sentences(completeness: Mapping[str, int], words: Mapping[str, str]) -> Iterator[str]:
    for name, meaning in words.items():
        count = completeness.get(name, 0)
        if count:
            yield f"{count:,} {_of_one(meaning) if count == 1 else meaning} ({name})"


_THINGS = (
    "allocations|calls|events|frames|frees|intervals|libraries|mappings|processes|profiles"
    "|ranges|reads|references|releases|stacks|times"
)
_FIRST_THING = re.compile(rf"^([^:,]*?)\b({_THINGS})\b(?!,)")
"""What there is one of. A list of several things that it may be is left as it is."""
_FIRST_VERB = re.compile(r"(?<!they )\b(were|are|have|run)\b")
_VERBS = {"were": "was", "are": "is", "have": "has", "run": "runs"}


def _one(things: str) -> str:
    if things.endswith("ies"):
        return f"{things[:-3]}y"
    return things[:-2] if things == "processes" else things[:-1]


def _of_one(meaning: str) -> str:
    """The sentence where it happened once: ``events were lost`` → ``event was lost``."""
    clause, colon, why = meaning.partition(":")
    thing = _FIRST_THING.search(clause)
    if thing is None:
        return meaning
    clause = thing[1] + _one(thing[2]) + clause[thing.end() :]
    clause = _FIRST_VERB.sub(lambda verb: _VERBS[verb[1]], clause, count=1)
    clause = clause.replace("they were recorded", "it was recorded")
    for several, one in (("they are", "it is"), ("they came", "it came"), ("their", "its")):
        why = re.sub(rf"\b{several}\b", one, why)
    return f"{clause.replace(' their ', ' its ')}{colon}{why}"
