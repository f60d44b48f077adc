"""Options that several verbs have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from gpumemprof.probe.kernel_side import LoaderChoice
from gpumemprof.report.table import DEFAULT_LIMIT
from gpumemprof.stack.merge import FrameMode

_Verb = TypeVar("_Verb", bound=Callable[..., Any])

output_option = click.option(
    "-o",
    "--output",
    metavar="OUTPUT",
    type=click.Path(dir_okay=False, allow_dash=True),
    default="-",
    help="Write to this file.  [default: standard output]",
)

loader_option = click.option(
    "--loader",
    type=click.Choice([choice.value for choice in LoaderChoice]),
    default=LoaderChoice.AUTO.value,
    show_default=True,
    help="How the probes are loaded; auto: by libbpf if that works here, else by bcc.",
)

frames_option = click.option(
    "--frames",
    type=click.Choice([mode.value for mode in FrameMode]),
    default="mixed",
    show_default=True,
    help="Python and native frames, or one of them.",
)

limit_option = click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"Rows of each table.  [default: {DEFAULT_LIMIT}; in JSON: all]",
)


def pid_option(text: str) -> Callable[[_Verb], _Verb]:
    """``--pid``, once or more; ``text``: its help."""
    return click.option(
        "--pid", "pids", type=click.IntRange(1), multiple=True, metavar="PID", help=text
    )


def by_option(text: str) -> Callable[[_Verb], _Verb]:
    """``--by`` self or total; ``text``: its help."""
    return click.option(
        "--by", type=click.Choice(["self", "total"]), default="self", show_default=True, help=text
    )
