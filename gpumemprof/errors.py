"""The errors a user sees: each carries one clear sentence and an exit code.

Anything else that escapes to the command line is a bug of ours and keeps its traceback.
"""


class GpumemprofError(Exception):
    """A condition to report to the user in one sentence, without a traceback."""

    exit_code = 1


class UsageError(GpumemprofError):
    """The command was given something it cannot work with (arguments, files)."""

    exit_code = 2


class ProbeError(GpumemprofError):
    """eBPF programs could not be loaded or attached on this machine."""

    exit_code = 3


class ProcessGone(GpumemprofError):
    """A process ended, or was replaced, while it was being looked at."""


class RemoteDataError(GpumemprofError):
    """Data of another process or a file is damaged, or exceeds a limit."""
