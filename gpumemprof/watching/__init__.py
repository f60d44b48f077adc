"""The live view from the command line: records, and shows what is held, until the user leaves."""

from gpumemprof.watching.session import run
from gpumemprof.watching.watcher import Request

__all__ = ["Request", "run"]
