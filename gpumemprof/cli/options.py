"""Options that several verbs have."""

from __future__ import annotations

import click

from gpumemprof.probe.kernel_side import LoaderChoice

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
