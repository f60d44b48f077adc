"""``gpumemprof snapshot``: what a PyTorch memory snapshot says."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import click

from gpumemprof.cli.options import format_of, format_option, output_option
from gpumemprof.cli.sizes import size
from gpumemprof.errors import UsageError
from gpumemprof.profile import files, pprof
from gpumemprof.profile.model import Profile
from gpumemprof.report import html
from gpumemprof.snapshot import convert, read, render
from gpumemprof.snapshot.summary import as_json, summarise

_FORMATS = ("table", "json", "pprof", "html")
_PROFILES: dict[str, Callable[[Profile, str], bytes]] = {
    "pprof": lambda profile, _name: pprof.encode(profile),
    "html": lambda profile, name: html.page(profile, name).encode(),
}
_LIMIT = 10


@click.command()
@click.argument("file", metavar="FILE", type=click.Path())
@click.option(
    "--request",
    type=size,
    metavar="SIZE",
    help="Judge fragmentation by a request of this size.  [default: what failed last]",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"Rows of each table.  [default: {_LIMIT}; in JSON: all]",
)
@format_option(
    _FORMATS,
    "table",
    "Table for people, JSON for scripts, HTML for a page with flame graphs, pprof for "
    "'gpumemprof report' and others.",
)
@output_option
def snapshot(
    file: str, *, request: int | None, limit: int | None, form: str | None, output: str
) -> None:
    """Show the PyTorch memory snapshot in FILE (torch.cuda.memory._dump_snapshot).

    The file is read without running any code that it may hold, gzipped or not.
    """
    form = format_of(form, output, _FORMATS, "table")
    found = read.load(Path(file))
    if form in _PROFILES:
        if output == "-" and sys.stdout.isatty():
            raise UsageError(f"{form} is not for a terminal: give -o FILE")
        files.write_bytes(output, _PROFILES[form](convert.profile(found), Path(file).name))
        return
    summary = summarise(found, request)
    if form == "json":
        files.write_bytes(output, (json.dumps(as_json(summary, limit), indent=2) + "\n").encode())
    elif output == "-":
        render.render(summary, render.make_console(), limit or _LIMIT)
    else:
        files.write_text(output, render.as_text(summary, limit or _LIMIT))
