"""The command ``gpumemprof``: finds the verb, and turns what goes wrong into a sentence."""

from __future__ import annotations

import contextlib
import errno
import importlib
import importlib.util
import io
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import click

from gpumemprof import __version__
from gpumemprof.errors import GpumemprofError

PROGRAM = "gpumemprof"


@dataclass(frozen=True, slots=True)
class Verb:
    """``target``: module:attribute of its click command, imported when it is used."""

    target: str
    help: str


VERBS: dict[str, Verb] = {
    "record": Verb("gpumemprof.cli.record:record", "Record GPU memory and write a profile."),
    "top": Verb("gpumemprof.cli.top:top", "Show live which functions hold GPU memory."),
    "report": Verb("gpumemprof.cli.report:report", "Show a recorded profile."),
    "diff": Verb("gpumemprof.cli.diff:diff", "Show what changed between two profiles."),
    "snapshot": Verb("gpumemprof.cli.snapshot:snapshot", "Show a PyTorch memory snapshot."),
    "plan": Verb("gpumemprof.cli.plan:plan", "Tell what memory a model needs, and what fits."),
    "doctor": Verb("gpumemprof.cli.doctor:doctor", "Check whether this machine can record."),
    "demo": Verb("gpumemprof.cli.demo:demo", "Try it without a GPU."),
    "agent": Verb("gpumemprof.cli.agent:agent", "Profile the pods of a Kubernetes node."),
}
"""Adding a verb is adding a row. A verb whose module is not installed is not shown."""


class _ReaderLeft(Exception):
    """Whoever read our output closed it."""


class _Verbs(click.Group):
    """Loads a verb's module only when that verb is used: ``--help`` stays fast, and a verb whose
    dependencies are missing does not break the others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, verb in VERBS.items() if _is_installed(verb)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        verb = VERBS.get(cmd_name)
        if verb is None or not _is_installed(verb):
            return None
        module, _, attribute = verb.target.partition(":")
        try:
            command = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            raise GpumemprofError(
                f"'{PROGRAM} {cmd_name}' needs the Python module {error.name}, "
                "which is not installed"
            ) from error
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError as error:  # click would end the program with success
            raise _ReaderLeft from error
        return result

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, VERBS[name].help) for name in self.list_commands(ctx)])


def _is_installed(verb: Verb) -> bool:
    return importlib.util.find_spec(verb.target.partition(":")[0]) is not None


@click.group(cls=_Verbs, name=PROGRAM, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name=PROGRAM)
def cli() -> None:
    """Show which functions of an unmodified program hold GPU memory."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code.

    0: done. 1: it did not work, one sentence says why. 2: it was used wrongly, or a file is no
    profile. 3: probes could not be attached. 130: Ctrl-C. 141: whoever read the output left.
    A verb may return an exit code of its own. A traceback means a bug of ours."""
    _replace_missing_streams()
    _use_any_encoding()
    try:
        code = cli.main(arguments, prog_name=PROGRAM, standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except GpumemprofError as error:
        with contextlib.suppress(BrokenPipeError):
            print(f"{PROGRAM}: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _leave_stdout()
        print(f"{PROGRAM}: the output cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, click.Abort):
        return 128 + signal.SIGINT
    except _ReaderLeft:
        _leave_stdout()
        return 128 + signal.SIGPIPE
    return code if isinstance(code, int) else 0


def _leave_stdout() -> None:
    """The interpreter flushes standard output once more when it ends: give it a place."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _replace_missing_streams() -> None:
    """Streams that whoever started us closed become /dev/null: no file of ours gets their numbers,
    which a recorded command inherits, and everything else goes on."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
            os.set_inheritable(opened, True)
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)


def _use_any_encoding() -> None:
    """A terminal or pipe that is not UTF-8 shows escapes for what it cannot, and never fails."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
