"""docs/kernels.md from the verdicts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from tests.kernels.check import SINCE, Attached, Verdict

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

Loader and attach: what `doctor` and `record` pick by themselves. A row with hidden BTF is the same
kernel made to look as if it had none: bcc compiles the programs in there. `session`: one program
for entry and return, from Linux 6.13. `multi`: one link for all entries of a library and one for
all returns, from 6.6. `single`: a perf event for each place, from 5.15. `wrapped`: the same, with a
small program for each place in the place of the attach cookies, by which the program for all is
told which call it is in.

## The two loaders

`--loader auto` (the default of `record`, `top`, `agent` and `doctor`) takes libbpf where it can
load, else bcc, else it says why neither can.

- **libbpf** loads programs that were compiled beforehand and fits them to the kernel by its BTF
  (`/sys/kernel/btf/vmlinux`). Nothing is compiled on the machine.
- **bcc** compiles the same sources there, in a second or two, in a process that ends with it. It is
  for kernels without BTF, and for changing a probe without a toolchain: change a file of `bpf/` (in
  an installed package: `gpumemprof/probe/source/`) and record with `--loader bcc`. It needs the
  distribution's `python3-bpfcc` (Fedora: `python3-bcc`); the virtual environment does not have to
  see the system's packages. The package named `bcc` on PyPI is another program.

bcc is used as a compiler only; its versions 0.18 (Debian 11, Ubuntu 22.04), 0.26 (Debian 12) and
0.31 (Debian 13) were tried. Programs are attached as with libbpf, so that bcc's limit of 1,000
probes, its tenth of a second for each probe, and its need of a mounted tracefs do not matter. No
kernel headers are needed: the programs read eight fields of kernel structures, by offsets from the
BTF, or, where there is none, found in the kernel's memory by values that are known of one's own
threads.
What is not found in exactly one place is told, and nothing is recorded. On every kernel above both
ways find the same. `GPUMEMPROF_LIBBPF` and `GPUMEMPROF_BCC` name another `libbpf.so.1` and another
directory of the module `bcc`.

## What attaching costs

On an emulated processor without hardware help, several times slower than a real one. Detaching
perf events takes half a minute, in which nobody waits for it. Steps: what the verifier went through
for the largest program, of the million that it allows (not told before 5.16).

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
                    f"| {verdict.series} | {mode} | {_steps(attached)} | {attached.load:.1f} | "
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


def _steps(attached: Attached) -> str:
    return f"{attached.steps:,}" if attached.steps else "not told"


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
