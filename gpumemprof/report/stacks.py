"""Whole stacks in the report: the largest ones, and those of allocations that failed."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from gpumemprof.profile.merge import label
from gpumemprof.profile.model import Failure, Labels, Profile
from gpumemprof.report import cuda_errors, units
from gpumemprof.report.functions import owner, place
from gpumemprof.report.layout import INDENT, Column, columns, print_lines
from gpumemprof.stack.frames import Frame, Stack

MAX_FAILURES = 10
"""Kinds of failures (stack, call, process, error) that are shown."""
MAX_LIVE = 5
"""Stacks shown of what was live at a failure."""

_STACK_LAYOUT = (
    Column("", flexible=True, style="cyan"),
    Column("", flexible=True, style="dim"),
)


def print_stacks(profile: Profile, console: Console, column: int, limit: int) -> None:
    """The ``limit`` samples with the largest value in ``column``, a block for each."""
    samples = [sample for sample in profile.samples if sample.values[column]]
    samples.sort(key=lambda sample: -sample.values[column])
    whole = profile.total[column]
    for sample in samples[:limit]:
        value = sample.values[column]
        console.print()
        title = Text.assemble(
            (f"{units.size(value)}  {units.share(value, whole)}", "bold"),
            f"  {', '.join(describe(sample.labels))}, "
            f"{units.number(sample.values.inuse_objects, 'allocation')} in use "
            f"of {sample.values.alloc_objects:,}",
        )
        print_lines(console, [title])
        print_stack(sample.stack, console, INDENT)
    rest = sum(sample.values[column] for sample in samples[limit:])
    if rest:
        console.print()
        more = units.number(len(samples) - limit, "more stack")
        print_lines(console, [Text(f"and {more} with {units.size(rest)} (--limit)", "dim")])


def print_failures(profile: Profile, console: Console) -> None:
    """The allocations that failed; equal ones once, with the newest one's numbers."""
    groups: dict[tuple[Labels, int, Stack], list[Failure]] = {}
    for failure in profile.failures:
        groups.setdefault((failure.labels, failure.error, failure.stack), []).append(failure)
    failures = units.number(len(profile.failures), "allocation")
    print_lines(console, [Text(f"{failures} failed", "bold red")])
    for same in list(groups.values())[:MAX_FAILURES]:
        console.print()
        newest = max(same, key=lambda failure: failure.time_ns)
        _print_failure(newest, len(same), profile, console)
    left_out = list(groups.values())[MAX_FAILURES:]
    if left_out:
        console.print()
        rest = units.number(sum(map(len, left_out)), "more failure")
        print_lines(console, [Text(f"and {rest} at other places (--format json has all)", "dim")])


def _print_failure(failure: Failure, times: int, profile: Profile, console: Console) -> None:
    call = label(failure.labels, "call") or "an allocation"
    where = ", ".join(part for part in describe(failure.labels) if part != call)
    since = since_start(failure, profile)
    print_lines(
        console,
        [
            Text.assemble(
                (f"{call} asked for {units.size(failure.requested)}", "bold"),
                f" ({units.exact(failure.requested)})"
                + (f", {since}" if since else "")
                + (f": {where}" if where else ""),
            )
        ],
    )
    name, meaning = cuda_errors.name(failure.error, call), cuda_errors.meaning(failure.error)
    lines = [f"error {failure.error}" + (f" {name}" if name else "") + f": {meaning or 'unknown'}"]
    if times > 1:
        lines.append(f"{times:,} times at this place; this is the last one")
    if failure.free is None or failure.total is None:
        lines.append("free: not known, the program never asked the driver")
    else:
        lines.append(
            f"free: {units.size(failure.free)} of {units.size(failure.total)}, "
            "as the driver last told the program"
        )
        if strange := mismatch(failure, profile):
            lines.append(strange)
    lines.append(f"the process held {units.size(failure.in_use)} ({units.exact(failure.in_use)}):")
    print_lines(console, lines, INDENT)
    print_lines(console, _live(failure, profile, console))
    print_lines(console, ["stack:"], INDENT)
    print_stack(failure.stack, console, 2 * INDENT)


def since_start(failure: Failure, profile: Profile) -> str:
    """When it failed; empty where no time is known."""
    if not profile.time_ns:
        return ""
    return f"{units.duration(failure.time_ns - profile.time_ns)} after the start"


def mismatch(failure: Failure, profile: Profile) -> str:
    """Why the driver's figure does not go with what the process held; empty where it does.

    The driver told of one GPU, at some time before; the process's bytes are of the moment, on
    all its GPUs."""
    if failure.free is None or failure.total is None:
        return ""
    if failure.in_use <= failure.total - failure.free:
        return ""
    pid = label(failure.labels, "pid")
    devices = {
        label(sample.labels, "device")
        for sample in profile.samples
        if label(sample.labels, "pid") == pid
    }
    if len(devices - {""}) > 1:
        return (
            "the driver told of one GPU, the process held memory on several: "
            "how much others held is not known"
        )
    return (
        "the driver's figure is older than what the process held: "
        "how much was free, or held by others, is not known"
    )


def _live(failure: Failure, profile: Profile, console: Console) -> list[Text]:
    """What was live, by the functions that own it."""
    sizes: dict[Frame | None, int] = {}
    for index, size in failure.live:
        frame = owner(profile.samples[index].stack)
        sizes[frame] = sizes.get(frame, 0) + size
    largest = sorted(sizes.items(), key=lambda pair: -pair[1])
    rows = [
        (units.size(size), frame.name, place(frame))
        if frame
        else (units.size(size), "[no stack]", "")
        for frame, size in largest[:MAX_LIVE]
    ]
    rest = failure.live_omitted + sum(size for _, size in largest[MAX_LIVE:])
    if rest:
        rows.append((units.size(rest), "elsewhere", ""))
    layout = (Column("", right=True), *_STACK_LAYOUT)
    return columns(console, layout, rows, indent=2 * INDENT)


def print_stack(stack: Stack, console: Console, indent: int) -> None:
    """Frames from the innermost to the root, a line for each."""
    rows = [(frame.name, place(frame)) for frame in stack] or [("[no stack]", "")]
    print_lines(console, columns(console, _STACK_LAYOUT, rows, indent))


def describe(labels: Labels) -> Iterable[str]:
    """Labels in words: call, kind unless it is plain device memory, device, process, pod."""
    found = dict(labels)
    pod = "/".join(filter(None, (found.get(key) for key in ("namespace", "pod", "container"))))
    parts = [
        found.get("call", ""),
        found.get("kind", "device").replace("_", " "),
        f"device {found['device']}" if "device" in found else "",
        f"{found.get('comm', 'pid')} ({found['pid']})" if "pid" in found else "",
        pod,
        f"on {found['node']}" if "node" in found else "",
    ]
    return [part for part in parts if part and part != "device"]
