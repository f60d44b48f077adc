"""What an agent's settings make of its outputs."""

from __future__ import annotations

from pathlib import Path

from pyroscope_examples import container

from gpumemprof.agent import config
from gpumemprof.agent.outputs import Outputs
from tests.fakes.pyroscope_receiver import Receiver


def test_a_secret_that_kubernetes_swaps_is_used_without_a_restart(tmp_path: Path) -> None:
    """A mounted secret is a symbolic link to a directory that is replaced as a whole."""

    def mount(token: str) -> None:
        directory = tmp_path / f"..{token}"
        directory.mkdir()
        (directory / "token").write_text(f"{token}\n")
        (tmp_path / "..new").symlink_to(directory.name)
        (tmp_path / "..new").replace(tmp_path / "..data")

    mount("first")
    (tmp_path / "token").symlink_to("..data/token")
    with Receiver(token="first") as receiver:
        flags = {
            "pyroscope.url": receiver.url,
            "pyroscope.token_file": str(tmp_path / "token"),
            "pyroscope.jitter": "0s",
            "store.path": "",
        }
        with Outputs(config.load(None, flags), on_dropped=lambda _: None) as outputs:
            receiver.authorization = "Bearer second"
            mount("second")
            outputs.sinks[0].offer([container()])
            outputs.flush(10.0)

        assert receiver.stored()
        assert not receiver.violations
