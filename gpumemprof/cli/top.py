"""``gpumemprof top``: processes and functions that hold GPU memory, live."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import click

from gpumemprof import watching
from gpumemprof.cli.options import loader_option
from gpumemprof.probe.kernel_side import LoaderChoice
from gpumemprof.probe.loader import Options
from gpumemprof.recorder import RecorderOptions
from gpumemprof.stack.merge import FrameMode


@click.command()
@click.option(
    "--pid",
    "pids",
    type=click.IntRange(1),
    multiple=True,
    metavar="PID",
    help="Show this process and its children; may be given several times.  [default: all]",
)
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between pictures.",
)
@click.option(
    "--count",
    type=click.IntRange(1),
    default=None,
    metavar="N",
    help="Leave after N pictures.",
)
@click.option(
    "--frames",
    type=click.Choice([mode.value for mode in FrameMode]),
    default="mixed",
    show_default=True,
    help="Python and native frames, or one of them.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("gpumemprof-top.pb.gz"),
    show_default=True,
    metavar="FILE",
    help="Where the key w writes a profile.",
)
@loader_option
def top(
    pids: tuple[int, ...], interval: float, count: int | None, frames: str, output: Path,
    loader: str,
) -> int:  # fmt: skip
    """Show what processes hold GPU memory now, and their functions.

    What was allocated before is not known; a + marks processes that hold such memory.
    Where the output is no terminal, the pictures are written as plain text, one after the other.
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
