"""What the agent's page shows, as JSON: made from the agent's view and the local store.

Sizes are bytes, times ns since the epoch written as text where a script could not hold them
exactly (JavaScript's numbers end at 2**53). Names come from pods and programs: they are printable
here, and the page puts them in as text only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpumemprof.export.history import KINDS, FailureNote, Point
from gpumemprof.export.model import AgentView, MemoryUse, Owner, PushStatus
from gpumemprof.export.store import ProfileStore
from gpumemprof.export.store_files import owner_id
from gpumemprof.export.store_state import COUNTERS as STORE_COUNTERS
from gpumemprof.profile.completeness import lost
from gpumemprof.profile.merge import PINNED_KIND
from gpumemprof.profile.text import printable, valid_utf8
from gpumemprof.report import cuda_errors, units

MAX_NAME = 300
TREND_POINTS = 60
TREND_ENDS = 5
TREND_NS = 3600 * 10**9
"""How far back the small line of each container reaches."""
_DELIVERED = frozenset({"delivered", "empty", "discarded"})
"""Results of pushes that are no trouble: ``discarded`` are those of who was switched off."""
_STORE_TROUBLE = ("profiles_not_written", "owners_evicted", "damaged")


def clean(text: str) -> str:
    """A name, fit to be shown."""
    return valid_utf8(printable(text))[:MAX_NAME]


def find(view: AgentView, store: ProfileStore | None, name: str) -> Owner | None:
    """The owner with the id ``name`` among all that are known."""
    for owner in _owners(view, store):
        if owner_id(owner) == name:
            return owner
    return None


def _owners(view: AgentView, store: ProfileStore | None) -> dict[Owner, None]:
    """Those that run first, then those of which something is stored."""
    running = {key.owner: None for key in view.memory}
    running |= {key.memory.owner: None for key in view.failures}
    return running | dict.fromkeys(store.owners() if store else ())


def agent(
    view: AgentView, push: PushStatus | None, store: ProfileStore | None, not_ready: str
) -> dict[str, Any]:
    """The state of the agent, with a sentence for everything that a reader should know."""
    state = store.state() if store else None
    return {
        "node": clean(view.node),
        "time_ns": str(view.time_ns),
        "about": [[clean(key), clean(text)] for key, text in sorted(view.about.items())],
        "problems": list(_problems(view, push, store, not_ready)),
        "processes": dict(view.processes),
        "cluster": bool(view.api),
        "pushed": push is not None,
        "push_fails": push is not None and bool(push.last_error),
        "store": None
        if state is None
        else {
            "bytes": state.bytes,
            "max_bytes": state.max_bytes,
            "profiles": state.profiles,
            "owners": state.owners,
            "notes": [
                f"{state.counters[name]:,} {_worded(view, words)}"
                for name, words in STORE_COUNTERS.items()
                if state.counters[name]
            ],
        },
    }


def _problems(
    view: AgentView, push: PushStatus | None, store: ProfileStore | None, not_ready: str
) -> Iterator[str]:
    if not_ready:
        yield f"The agent is not ready: {clean(not_ready)}"
    yield from _of_cluster(view)
    counted = [
        (view.owners_overflowed, "containers beyond the limit are not shown"),
        (view.libraries_not_probed, "CUDA libraries could not be probed: their calls are not seen"),
    ]
    if push is not None:
        if push.last_error:
            yield _not_pushed(view, push)
        counted += [
            (count, f"profiles were not delivered: {clean(name)}")
            for name, count in sorted(push.results.items())
            if name not in _DELIVERED
        ]
    if store is not None:
        state = store.state()
        if state.error:
            yield f"Nothing is stored: {clean(state.error)}"
        counted += [(state.counters[name], STORE_COUNTERS[name]) for name in _STORE_TROUBLE]
    yield from (f"{count:,} {_worded(view, words)}" for count, words in counted if count)
    yield from (f"Incomplete: {clean(sentence)}" for sentence in lost(view.counters))


def _not_pushed(view: AgentView, push: PushStatus) -> str:
    waiting = "1 profile waits" if push.queued == 1 else f"{push.queued:,} profiles wait"
    if push.last_success_ns is None:
        since = "nothing was delivered yet"
    else:
        passed = max(view.time_ns - push.last_success_ns, 0)
        since = f"nothing was delivered for {units.duration(passed)}"
    return f"The last push to Pyroscope failed: {clean(push.last_error)}: {waiting}, {since}"


def _worded(view: AgentView, words: str) -> str:
    """Without Kubernetes there are programs, and no containers."""
    return words if view.api else words.replace("containers", "programs")


def _of_cluster(view: AgentView) -> Iterator[str]:
    for name, fresh in sorted(view.api.items()):
        if not fresh:
            yield (
                f"The Kubernetes API does not answer ({clean(name)}): recording goes on, but new "
                "pods have no names yet and changes of the switch have no effect"
            )
    if view.switch_rejected:
        yield (
            f"{view.switch_rejected:,} values of the switch were not understood: the last good "
            "ones stay in force"
        )
    if view.processes.get("held"):
        yield f"{view.processes['held']:,} processes wait until their pods are known"


def workloads(view: AgentView, store: ProfileStore | None) -> list[dict[str, Any]]:
    """A row for each container: those that hold most come first, those that ended last."""
    uses: dict[Owner, list[tuple[str, str, MemoryUse]]] = {}
    for key, use in view.memory.items():
        uses.setdefault(key.owner, []).append((key.kind, key.gpu, use))
    failed: Counter[Owner] = Counter()
    for failure, count in view.failures.items():
        failed[failure.memory.owner] += count
    rows = []
    for owner in _owners(view, store):
        points = store.history(owner) if store else []
        rows.append(_row(owner, owner in view.running, uses.get(owner, ()), failed[owner], points))
    rows.sort(key=lambda row: (not row["running"], -row["in_use"], -row["peak"], row["workload"]))
    return rows


def _row(
    owner: Owner,
    running: bool,
    uses: Sequence[tuple[str, str, MemoryUse]],
    failed: int,
    points: Sequence[Point],
) -> dict[str, Any]:
    gpu = [use for kind, _, use in uses if kind != PINNED_KIND]
    pinned = [use for kind, _, use in uses if kind == PINNED_KIND]
    last = points[-1] if points else None
    return {
        "id": owner_id(owner),
        **{
            name: clean(getattr(owner, name))
            for name in ("namespace", "workload", "pod", "container")
        },
        "running": running,
        "gpus": sorted({clean(index) for _, index, _ in uses if index}),
        "in_use": sum(use.in_use for use in gpu),
        "pinned": sum(use.in_use for use in pinned),
        "peak": max(
            sum(use.peak for use in gpu),
            max((max(point.peak, point.most) for point in points), default=0),
        ),
        "failures": max(failed, sum(point.failures for point in points)),
        "since_ns": str(points[0].time_ns) if points else None,
        "last_ns": str(last.until_ns) if last else None,
        "held_last": last.gpu if last else 0,
        "trend": trend(points),
    }


def trend(points: Sequence[Point]) -> dict[str, Any] | None:
    """The last hour as ``values`` at equal distances, the largest of each stretch, and by how
    many bytes they changed in how many ``seconds``: what comes and goes all the time is no change,
    so the largest of the last stretches is held against that of the first ones. None without two
    points in time."""
    if not points:
        return None
    end = max(points[-1].until_ns, points[-1].time_ns)
    start = max(end - TREND_NS, points[0].time_ns)
    if end <= start:
        return None
    values: list[int | None] = [None] * TREND_POINTS
    before = None
    for point in points:
        until = max(point.until_ns, point.time_ns)
        if point.time_ns <= start:
            before = point
        if until < start:
            continue
        first = _slot(max(point.time_ns, start), start, end)
        for slot in range(first, _slot(until, start, end) + 1):
            values[slot] = max(values[slot] or 0, point.most if slot == first else point.gpu)
    held = before or points[0]
    known = held.gpu
    filled = []
    for value in values:
        known = known if value is None else value
        filled.append(known)
    return {
        "values": filled,
        "change": max(filled[-TREND_ENDS:]) - max(filled[:TREND_ENDS]),
        "seconds": (end - start) * (TREND_POINTS - TREND_ENDS) // TREND_POINTS // 10**9,
    }


def _slot(time_ns: int, start: int, end: int) -> int:
    return min((time_ns - start) * TREND_POINTS // max(end - start, 1), TREND_POINTS - 1)


def history(
    points: Sequence[Point], times: Sequence[int], notes: Sequence[FailureNote]
) -> dict[str, Any]:
    """A container over time. ``points``: columns; ``profiles``: the times that have a profile."""
    return {
        "kinds": list(KINDS),
        "points": {
            "time_ns": [str(point.time_ns) for point in points],
            "until_ns": [str(max(point.until_ns, point.time_ns)) for point in points],
            "gpu": [point.gpu for point in points],
            "pinned": [point.pinned for point in points],
            "most": [point.most for point in points],
            "failures": [point.failures for point in points],
        },
        "profiles": [str(time_ns) for time_ns in times],
        "failures": [_note(note) for note in reversed(notes)],
    }


def _note(note: FailureNote) -> dict[str, Any]:
    name = cuda_errors.name(note.error, note.call)
    return {
        "time_ns": str(note.time_ns),
        "profile_ns": str(note.profile_ns),
        "error": name or f"error {note.error}",
        "meaning": cuda_errors.meaning(note.error) or "",
        "call": clean(note.call),
        "function": clean(note.function),
        "kind": clean(note.kind),
        "device": clean(note.device),
        "requested": note.requested,
        "free": note.free,
        "total": note.total,
        "in_use": note.in_use,
    }


def described(owner: Owner) -> str:
    """An owner in words, for titles."""
    parts: Mapping[str, None] = dict.fromkeys(
        filter(None, (owner.namespace, owner.workload, owner.pod, owner.container))
    )
    return clean(" / ".join(parts) or "a process of no pod")
