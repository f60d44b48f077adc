"""docs/kernels.md from the verdicts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from tests.kernels.check import SINCE, Verdict

_HEAD = """\
# Kernels

Written by `make test-kernels`, which boots Debian's kernels in virtual machines and records there
programs whose memory is known to the byte: C programs on the CUDA runtime and on the driver alone,
and a small LLM server in Python. On every kernel and in every way to attach that it takes, the
recordings must have the programs' own totals (bytes, counts, peak, failures by kind of memory),
the same stacks with the same functions and lines, and nothing lost.

| Linux | release | BTF | loader | attach | cookies | session | multi | single | wrapped | result |
|---|---|---|---|---|---|---|---|---|---|---|
"""

_COST = """
**The oldest kernel supported is 5.10.** Ring buffers, which everything goes through, came with 5.8.

Loader and attach: what `doctor` and `record` pick by themselves. A row with no BTF is the same
kernel with its BTF hidden: bcc compiles the programs, and the few fields of kernel structures that
are read are found by their values; where there is BTF both ways must find the same. `session`: one
program for entry and return, from Linux 6.13. `multi`: one link for all entries of a library and
one for all returns, from 6.6. `single`: a perf event for each place, from 5.15. `wrapped`: the
same, with a small program for each place in the place of the attach cookies, by which the program
for all is told which call it is in.

## What attaching costs

On an emulated processor without hardware help, several times slower than a real one; the time to
detach is mostly waiting and does not depend on the processor. Steps: what the verifier went
through for the largest program, of the million that it allows.

| Linux | way | verifier's steps | load, s | attach, s | detach, s | calls probed |
|---|---|---|---|---|---|---|
"""


def render(verdicts: Sequence[Verdict]) -> str:
    """The page, in Markdown."""
    lines = [_HEAD.rstrip("\n")]
    lines += [row for verdict in verdicts for row in _rows(verdict)]
    lines.append(_COST.rstrip("\n"))
    for verdict in verdicts:
        for mode, attached in verdict.modes.items():
            if not attached.refused:
                lines.append(
                    f"| {verdict.series} | {mode} | {attached.steps:,} | {attached.load:.1f} | "
                    f"{attached.attach:.2f} | {attached.detach:.1f} | {attached.calls} |"
                )
    lines += _told(verdicts)
    return "\n".join(lines) + "\n"


def _rows(verdict: Verdict) -> Iterator[str]:
    yield _row(verdict, "yes" if verdict.btf else "no", "libbpf", verdict.chosen)
    if verdict.without_btf:
        yield _row(verdict, "hidden", "bcc", verdict.without_btf)


def _row(verdict: Verdict, btf: str, loader: str, chosen: str) -> str:
    recorded = [
        mode for mode, _ in verdict.programs if (mode == "without BTF") is (loader == "bcc")
    ]
    if verdict.problems:
        result = f"**{len(verdict.problems)} problems**"
    elif recorded:
        result = f"equal in {len(recorded)} recordings"
    else:
        result = "not supported, and told so"
    cookies = {"none": "", "wrapped": "wrappers"}.get(chosen, "the kernel's")
    ways = [_way(verdict, mode) for mode in SINCE] if loader == "libbpf" else ["" for _ in SINCE]
    cells = [
        verdict.series, verdict.release, btf, verdict.loaders.get(loader, "none"), chosen, cookies,
        *ways, result,
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _way(verdict: Verdict, mode: str) -> str:
    attached = verdict.modes.get(mode)
    if attached is None:
        return "not tried"
    return "refused" if attached.refused else "works"


def _told(verdicts: Iterable[Verdict]) -> list[str]:
    lines = ["", "## What is told where something is refused", ""]
    for verdict in verdicts:
        if verdict.advice:
            lines.append(f"- {verdict.series}, `doctor`: {_short(verdict.advice)}")
        for mode, attached in verdict.modes.items():
            if attached.refused:
                lines.append(f"- {verdict.series}, {mode}: `{_short(attached.refused)}`")
    problems = [(v.series, problem) for v in verdicts for problem in v.problems]
    if problems:
        lines += ["", "## Problems", ""]
        lines += [f"- {series}: {' '.join(problem.split())}" for series, problem in problems]
    return lines


def _short(reason: str) -> str:
    """Without the names that libbpf makes up, which differ each time."""
    return re.sub(r"; libbpf: failed to load object '[^']*'", "", reason)[:300]
