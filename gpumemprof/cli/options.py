"""Options that several verbs have."""

from __future__ import annotations

import click

output_option = click.option(
    "-o",
    "--output",
    metavar="OUTPUT",
    type=click.Path(dir_okay=False, allow_dash=True),
    default="-",
    help="Write to this file.  [default: standard output]",
)
