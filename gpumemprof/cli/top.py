"""``gpumemprof top``: processes and functions that hold GPU memory, live."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import click

from gpumemprof import watching
from gpumemprof.cli.options import frames_option, loader_option, pid_option
from gpumemprof.probe.kernel_side import LoaderChoice
from gpumemprof.probe.loader import Options
from gpumemprof.recorder import RecorderOptions
from gpumemprof.stack.merge import FrameMode


@click.command()
@pid_option("Show this process and its children; may be given several times.  [default: all]")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between updates.",
)
@click.option(
    "--count",
    type=click.IntRange(1),
    default=None,
    metavar="N",
    help="End after N updates.",
)
@frames_option
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("gpumemprof-top.pb.gz"),
    show_default=True,
    metavar="FILE",
    help="Where the key w writes a profile to.",
)
@loader_option
def top(
    pids: tuple[int, ...], interval: float, count: int | None, frames: str, output: Path,
    loader: str,
) -> int:  # fmt: skip
    """Show what processes hold GPU memory now, and their functions.

    Memory allocated before this command began has no functions; a + marks processes that hold
    some. Where the output is not a terminal, each update is written as plain text.

    \b
    j, k or arrows  choose a process       p  pause
    s  sort by another column              w  write a profile to --output
    m  another kind of memory              q  quit
    t  functions by self or total
    """
    options = RecorderOptions(
        probe=Options(record_all=not pids, loader=LoaderChoice(loader)),
        frames=FrameMode(frames),
        library_path=os.environ.get("LD_LIBRARY_PATH", ""),
    )
    return watching.run(
        watching.Request(
            options=options,
            pids=pids,
            interval=interval,
            count=count or 0,
            output=output,
            invoked=shlex.join(["gpumemprof", *sys.argv[1:]]),
        )
    )
