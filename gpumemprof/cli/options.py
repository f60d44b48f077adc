"""Options that several verbs have."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

import click

from gpumemprof.probe.kernel_side import LoaderChoice
from gpumemprof.report.table import DEFAULT_LIMIT
from gpumemprof.stack.merge import FrameMode

_Verb = TypeVar("_Verb", bound=Callable[..., Any])

_SUFFIXES = (
    (".speedscope.json", "speedscope"),
    (".perfetto.json", "perfetto"),
    (".json", "json"),
    (".html", "html"),
    (".htm", "html"),
    (".folded", "folded"),
    (".pb.gz", "pprof"),
    (".pprof", "pprof"),
)
"""End of a file's name → format; the first that a verb knows counts."""


def format_option(formats: Collection[str], default: str, text: str) -> Callable[[_Verb], _Verb]:
    """``--format``; ``text``: its help. Without it the verb gets None: see ``format_of``."""
    return click.option(
        "--format",
        "form",
        type=click.Choice(list(formats)),
        help=f"{text}  [default: as --output ends (such as .html), else {default}]",
    )


def format_of(given: str | None, output: str, formats: Collection[str], default: str) -> str:
    """The format that was asked for, by --format or by the name of the file to write."""
    if given is not None:
        return given
    name = Path(output).name.lower()
    ways = (form for suffix, form in _SUFFIXES if name.endswith(suffix) and form in formats)
    return next(ways, default)


class OutputPath(click.Path):
    """A file to write, or ``-``. An empty name, as of a variable that is not set, is refused."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, allow_dash=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The name as a text."""
        if not value:
            self.fail("the name of the file is empty", param, ctx)
        return super().convert(value, param, ctx)


class _Pid(click.IntRange):
    name = "process id"

    def __init__(self) -> None:
        super().__init__(1)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            self.fail(f"{value!r} is no process id: a number from 1 on, as ps shows", param, ctx)


output_option = click.option(
    "-o",
    "--output",
    metavar="OUTPUT",
    type=OutputPath(),
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
    return click.option("--pid", "pids", type=_Pid(), multiple=True, metavar="PID", help=text)


def by_option(text: str) -> Callable[[_Verb], _Verb]:
    """``--by`` self or total; ``text``: its help."""
    return click.option(
        "--by", type=click.Choice(["self", "total"]), default="self", show_default=True, help=text
    )
