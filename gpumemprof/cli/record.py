"""``gpumemprof record``: from a running program to a profile."""

from __future__ import annotations

import math
import os
import shlex
import sys
from itertools import takewhile
from pathlib import Path

import click

from gpumemprof import recording
from gpumemprof.cli.options import (
    OutputPath,
    format_of,
    format_option,
    frames_option,
    loader_option,
    pid_option,
)
from gpumemprof.probe.attach import AttachMode
from gpumemprof.probe.kernel_side import LoaderChoice
from gpumemprof.probe.loader import Options
from gpumemprof.recorder import RecorderOptions
from gpumemprof.stack.merge import FrameMode


class _Record(click.Command):
    """Says what is wrong when options of the command are taken for ours."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except (click.NoSuchOption, click.BadOptionUsage) as error:
            option = error.option_name or "-"
            before = takewhile(lambda one: not one.startswith(option), given)
            if "--" in given or all(one.startswith("-") for one in before):
                raise
            hint = "if it belongs to the command, put -- before the command: record -- COMMAND"
            raise click.UsageError(f"{error.format_message()} ({hint})", ctx) from error


@click.command(cls=_Record, context_settings={"ignore_unknown_options": False})
@pid_option("Record this running process and its children; may be given several times.")
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Record every process that uses CUDA, also those that start later.",
)
@click.option(
    "--duration",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="Stop recording after so long. A command goes on without being recorded.",
)
@click.option(
    "-o",
    "--output",
    type=OutputPath(),
    metavar="FILE",
    help="Where to write the profile.  [default: gpumemprof.pb.gz, by --format]",
)
@format_option(sorted(recording.FORMATS), "pprof", "How to write it.")
@frames_option
@click.option("--full-names", is_flag=True, help="Keep arguments and templates in C++ names.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=15,
    show_default=True,
    metavar="N",
    help="Functions to print at the end.",
)
@click.option("--no-follow", is_flag=True, help="Do not record children.")
@click.option(
    "--stack-size",
    type=click.IntRange(1024, 32768),
    default=32768,
    metavar="BYTES",
    show_default=True,
    help="How much of a native stack to capture at most.",
)
@click.option(
    "--attach",
    type=click.Choice([mode.value for mode in AttachMode]),
    default=None,
    help="How to attach.  [default: the best that the kernel takes]",
)
@loader_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def record(
    pids: tuple[int, ...], everything: bool, duration: float | None, output: str | None,
    form: str | None, frames: str, full_names: bool, limit: int, no_follow: bool, stack_size: int,
    attach: str | None, loader: str, command: tuple[str, ...],
) -> int:  # fmt: skip
    """Record GPU memory and write a profile.

    Give a COMMAND after --, or --pid, or --all. Ends when the command ends, after --duration,
    or at Ctrl-C; then prints the functions that hold most. The command's exit code is passed on.

    \b
    gpumemprof record -- python train.py
    gpumemprof record --pid 4242 --duration 60
    """
    if duration is not None and not math.isfinite(duration):
        raise click.BadParameter("it is not a number of seconds", param_hint="--duration")
    chosen = sum((bool(pids), everything, bool(command)))
    if chosen != 1:
        raise click.UsageError("give one of: a command after --, --pid, or --all")
    form = _format(form, output or "")
    options = RecorderOptions(
        probe=Options(
            record_all=everything,
            follow=not no_follow,
            stack_bytes=stack_size,
            loader=LoaderChoice(loader),
            mode=AttachMode(attach) if attach else None,
        ),
        frames=FrameMode(frames),
        full_names=full_names,
        library_path=os.environ.get("LD_LIBRARY_PATH", ""),
    )
    request = recording.Request(
        options=options,
        pids=pids,
        everything=everything,
        command=command,
        duration=duration,
        output=Path(output or recording.FORMATS[form]),
        form=form,
        limit=limit,
        invoked=shlex.join(["gpumemprof", *sys.argv[1:]]),
    )
    return recording.run(request)


def _format(given: str | None, output: str) -> str:
    form = format_of(given, output, (*recording.FORMATS, "json"), "pprof")
    if form == "json":
        raise click.UsageError(
            f"{output} may become speedscope or perfetto: give --format, or record a profile "
            "and use 'gpumemprof report --format json'"
        )
    return form
