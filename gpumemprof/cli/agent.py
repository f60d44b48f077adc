"""``gpumemprof agent``: profile the GPU processes of a node until stopped."""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import click

from gpumemprof import recording
from gpumemprof.agent import config
from gpumemprof.agent.node import NodeAgent


def _setting_options(command: click.Command) -> click.Command:
    for setting in config.SETTINGS:
        command.params.append(
            click.Option(
                [setting.flag],
                metavar="VALUE",
                help=setting.help
                + ("" if setting.default in ("", False) else f"  [default: {setting.default}]"),
            )
        )
    return command


@_setting_options
@click.command()
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help=f"YAML file with settings.  [default: ${config.CONFIG_VARIABLE}]",
)
def agent(config_file: Path | None, **flags: Any) -> None:
    """Profile the GPU processes of this node until stopped.

    On Kubernetes those of the pods that the switch allows, elsewhere all of them. Profiles are
    pushed to Pyroscope, Prometheus scrapes metrics, and the agent's own page shows both.

    Every option can also be set in the file and in the environment: --pyroscope-url is
    `pyroscope: {url: …}` in the file, and GPUMEMPROF_PYROSCOPE_URL. Options go before the
    environment, the environment before the file.
    """
    names = {setting.flag[2:].replace("-", "_"): setting.key for setting in config.SETTINGS}
    given = {names[name]: value for name, value in flags.items() if value is not None}
    settings = config.load(config_file, given)
    logging.basicConfig(
        stream=sys.stderr,
        level=settings["log_level"].upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    for name in config.unknown_variables():
        logging.getLogger(__name__).warning("%s is no setting: it is ignored", name)
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    recording.require_privileges()
    stops: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        stops.append(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    with (
        recording.many_files(),
        NodeAgent(settings, library_path=os.environ.get("LD_LIBRARY_PATH", "")) as node,
    ):
        node.run(lambda: bool(stops))
