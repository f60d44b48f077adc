"""``gpumemprof demo``: record a small LLM server, on a GPU or on stand-in CUDA libraries."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import click

from gpumemprof import recording
from gpumemprof.demo import llm_server
from gpumemprof.errors import UsageError
from gpumemprof.recorder import RecorderOptions

_RUNTIME = "libcudart.so.12"
_BUILT = Path(__file__).parents[2] / "build" / "fakes"


@click.command()
@click.option("--fixed", is_flag=True, help="Run the server without its leak, to compare.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where to write the profile.  [default: demo.pb.gz, or demo-fixed.pb.gz]",
)
def demo(*, fixed: bool, output: Path | None) -> int:
    """Record a small LLM server and show which of its functions hold GPU memory.

    Without a GPU it runs on the stand-in CUDA libraries of a source checkout (make fakes).
    """
    library_path = _library_path()
    os.environ["LD_LIBRARY_PATH"] = library_path
    arguments = ["--fixed"] if fixed else []
    chosen = output or Path("demo-fixed.pb.gz" if fixed else "demo.pb.gz")
    request = recording.Request(
        options=RecorderOptions(library_path=library_path),
        command=(sys.executable, str(llm_server.__file__), *arguments),
        output=chosen,
        invoked="gpumemprof demo" + (" --fixed" if fixed else ""),
    )
    code = recording.run(request)
    click.echo(f"\nlook again: gpumemprof report {chosen} --stacks")
    return code


def _library_path() -> str:
    """An LD_LIBRARY_PATH with a CUDA runtime on it: the user's own, the system's, a stand-in's."""
    given = os.environ.get("LD_LIBRARY_PATH", "")
    if any((Path(part) / _RUNTIME).exists() for part in given.split(":") if part):
        return given
    try:
        ctypes.CDLL("libcuda.so.1")
        ctypes.CDLL(_RUNTIME)
    except OSError:
        if not (_BUILT / _RUNTIME).exists():
            raise UsageError(
                f"there is no {_RUNTIME} here and no stand-in: run `make demo` in a checkout"
            ) from None
        return f"{_BUILT}:{given}".rstrip(":")
    return given
