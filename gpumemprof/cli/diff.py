"""``gpumemprof diff``: what changed between two profiles."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
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
from gpumemprof.cli.sizes import size
from gpumemprof.errors import UsageError
from gpumemprof.profile import files, pprof
from gpumemprof.profile.diff import align, difference, refuse_negative
from gpumemprof.profile.model import Profile
from gpumemprof.report import diff as table
from gpumemprof.report import html, json_diff, units
from gpumemprof.report.changes import ORDERS, parts
from gpumemprof.report.functions import SORTS
from gpumemprof.report.table import make_console

_PERCENT = re.compile(r"^\d{1,9}(?:\.\d{1,9})?%$")


@dataclass(frozen=True, slots=True)
class _Options:
    names: tuple[str, str]
    type: str
    sort: str
    by: str
    limit: int | None
    stacks: bool


@dataclass(frozen=True, slots=True)
class _Growth:
    """Growth that is allowed: per cent of what was before, or bytes."""

    text: str
    percent: Decimal | None = None
    size: int = 0

    def allows(self, before: int, after: int) -> bool:
        limit = self.size if self.percent is None else before * self.percent / 100
        return after - before <= limit


def _growth(text: str) -> _Growth:
    text = text.strip()
    if not text.endswith("%"):
        return _Growth(text, size=size(text))
    if _PERCENT.match(text) is None:
        raise click.BadParameter(f"{text!r} is neither per cent (5%) nor a size (100MiB)")
    return _Growth(text, percent=Decimal(text[:-1]))


def _print_table(before: Profile, after: Profile, options: _Options, console: Console) -> None:
    table.render(
        before,
        after,
        console,
        names=options.names,
        type_=options.type,
        sort=options.sort,
        limit=options.limit or table.DEFAULT_LIMIT,
        stacks=options.stacks,
        by=options.by,
    )


def _table(before: Profile, after: Profile, options: _Options) -> bytes:
    text = io.StringIO()
    _print_table(before, after, options, make_console(text))
    return text.getvalue().encode()


def _html(before: Profile, after: Profile, options: _Options) -> bytes:
    title = " → ".join(options.names)
    return html.diff_page(align(before, after), after, title).encode()


def _json(before: Profile, after: Profile, options: _Options) -> bytes:
    value = json_diff.report(
        before,
        after,
        names=options.names,
        type_=options.type,
        sort=options.sort,
        limit=options.limit,
        by=options.by,
    )
    return (json.dumps(value, indent=2) + "\n").encode()


def _pprof(before: Profile, after: Profile, _options: _Options) -> bytes:
    return pprof.encode(difference(before, after))


_FORMATS: dict[str, Callable[[Profile, Profile, _Options], bytes]] = {
    "table": _table,
    "html": _html,
    "json": _json,
    "pprof": _pprof,
}
_NOT_FOR_TERMINALS = {"html": "a page is", "pprof": "a profile is"}


@click.command()
@click.argument("before", metavar="BEFORE", type=click.Path(allow_dash=True))
@click.argument("after", metavar="AFTER", type=click.Path(allow_dash=True))
@click.option(
    "--sort",
    type=click.Choice(list(ORDERS)),
    default="growth",
    show_default=True,
    help="Put first what grew most, what was largest before or after, or go by name.",
)
@click.option(
    "--type",
    "type_",
    type=click.Choice(list(SORTS)),
    help="Compare what is in use, what was allocated, or what was in use at the peak.  [default: "
    "in use; at the peak where one of them holds nothing any more]",
)
@by_option("Compare the functions that asked for the memory, or also those that called them.")
@limit_option
@click.option("--stacks", is_flag=True, help="Show whole stacks instead of functions.")
@click.option(
    "--fail-over",
    type=_growth,
    metavar="GROWTH",
    help="Exit with code 1 if GPU memory grew by more than this: 5%, 100MiB.",
)
@format_option(
    _FORMATS,
    "table",
    "Table for people, HTML for a page with a differential flame graph, JSON for scripts, "
    "pprof for `go tool pprof`.",
)
@output_option
def diff(
    before: str,
    after: str,
    *,
    sort: str,
    type_: str | None,
    by: str,
    limit: int | None,
    stacks: bool,
    fail_over: _Growth | None,
    form: str | None,
    output: str,
) -> int:
    """Show what changed from the profile BEFORE to the profile AFTER (one may be -, standard
    input).

    Functions and stacks match even if their lines moved; processes and devices are not compared.

    \b
    gpumemprof diff before.pb.gz after.pb.gz
    gpumemprof diff main.pb.gz branch.pb.gz --fail-over 5%
    """
    if before == after == "-":
        raise UsageError("only one of the two profiles can come from standard input")
    form = format_of(form, output, _FORMATS, "table")
    if form in _NOT_FOR_TERMINALS and output == "-" and sys.stdout.isatty():
        raise UsageError(f"{_NOT_FOR_TERMINALS[form]} not for a terminal: give -o FILE")
    was, now = _load(before), _load(after)
    names = Path(before).name, Path(after).name
    options = _Options(names, type_ or "", sort, by, limit, stacks)
    if form == "table" and output == "-":
        _print_table(was, now, options, make_console())
    else:
        files.write_bytes(output, _FORMATS[form](was, now, options))
    return _check_growth(was, now, options.type, fail_over) if fail_over else 0


def _load(path: str) -> Profile:
    profile = files.load(path)
    try:
        refuse_negative(profile)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    return profile


def _check_growth(before: Profile, after: Profile, type_: str, growth: _Growth) -> int:
    gpu, *_ = parts(before, after, type_)
    was, now = gpu.totals
    if growth.allows(was, now):
        return 0
    share = table.percents(was, now)
    click.echo(
        f"gpumemprof: GPU memory grew by {units.size(now - was)} ({share}), more than the "
        f"{growth.text} allowed",
        err=True,
    )
    return 1
