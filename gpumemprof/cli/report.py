"""``gpumemprof report``: show a recorded profile."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import click
from rich.console import Console

from gpumemprof.cli.options import (
    by_option,
    format_of,
    format_option,
    limit_option,
    output_option,
)
from gpumemprof.errors import UsageError
from gpumemprof.profile import files, folded, perfetto, speedscope
from gpumemprof.profile.merge import GPU_KINDS, PINNED_KIND, gpu_only, of_kinds
from gpumemprof.profile.model import Profile
from gpumemprof.report import html, json_report, table
from gpumemprof.report.functions import SORTS


@dataclass(frozen=True, slots=True)
class _Options:
    name: str
    sort: str
    by: str
    limit: int | None
    stacks: bool


def _print_table(profile: Profile, options: _Options, console: Console) -> None:
    limit = options.limit or table.DEFAULT_LIMIT
    table.render(profile, console, options.sort, limit, options.stacks, by=options.by)


def _table(profile: Profile, options: _Options) -> str:
    text = io.StringIO()
    _print_table(profile, options, table.make_console(text))
    return text.getvalue()


def _type(profile: Profile, options: _Options) -> str:
    return profile.held_type if options.sort == "inuse" else SORTS[options.sort]


def _json(profile: Profile, options: _Options) -> str:
    return json.dumps(json_report.report(profile, options.sort, options.limit), indent=2) + "\n"


def _html(profile: Profile, options: _Options) -> str:
    title = profile.about.get("command") or options.name
    return html.page(profile, title, _type(profile, options))


_FORMATS: dict[str, Callable[[Profile, _Options], str]] = {
    "table": _table,
    "folded": lambda profile, options: folded.encode(profile, _type(profile, options)),
    "speedscope": lambda profile, options: speedscope.encode(profile, options.name),
    "perfetto": lambda profile, _: perfetto.encode(profile),
    "json": _json,
    "html": _html,
}
_FLAME_GRAPHS = ("folded", "speedscope")

_KINDS: dict[str, Callable[[Profile], Profile]] = {
    "gpu": gpu_only,
    **{
        kind: lambda profile, kind=kind: of_kinds(profile, {kind})  # type: ignore[misc]
        for kind in (*sorted(GPU_KINDS), PINNED_KIND)
    },
}


def _only(kind: str, profile: Profile) -> Profile:
    """The part of ``profile`` that --kind names, which says so of itself."""
    if kind == "all":
        return profile
    name = "GPU" if kind == "gpu" else kind.replace("_", " ")
    about = {**profile.about, "only": f"{name} memory"}
    return replace(_KINDS[kind](profile), about=about)


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(allow_dash=True))
@click.option(
    "--sort",
    type=click.Choice(list(SORTS)),
    default="inuse",
    show_default=True,
    help="Count what is in use at the end, what was allocated, or what was in use at the peak.",
)
@by_option("Put first the functions that asked for the memory, or those that called them.")
@limit_option
@click.option("--stacks", is_flag=True, help="Show the largest stacks instead of functions.")
@click.option(
    "--kind",
    type=click.Choice(["all", *_KINDS]),
    help="Count this kind of memory only.  [default: all, apart from each other; "
    "in flame graphs: gpu]",
)
@format_option(
    _FORMATS,
    "table",
    "Table for people, HTML for a page with flame graphs in one file, JSON for scripts, "
    "folded or speedscope for other viewers of flame graphs, perfetto for memory over time in "
    "ui.perfetto.dev and chrome://tracing.",
)
@output_option
def report(
    file: str,
    *,
    sort: str,
    by: str,
    limit: int | None,
    stacks: bool,
    kind: str | None,
    form: str | None,
    output: str,
) -> None:
    """Show the profile in FILE (- is standard input).

    The table tells what was recorded and whether all of it, totals, processes, the functions that
    hold memory, and allocations that failed.
    """
    form = format_of(form, output, _FORMATS, "table")
    if form == "html" and output == "-" and sys.stdout.isatty():
        raise UsageError("a page is not for a terminal: give -o FILE")
    profile = files.load(file)
    profile = _only(kind or ("gpu" if form in _FLAME_GRAPHS else "all"), profile)
    options = _Options(Path(file).name, sort, by, limit, stacks)
    if output != "-":
        files.write_text(output, _FORMATS[form](profile, options))
    elif form == "table":
        _print_table(profile, options, table.make_console())
    else:
        sys.stdout.write(_FORMATS[form](profile, options))
