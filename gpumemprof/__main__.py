"""The program ``gpumemprof``, also as ``python -m gpumemprof``."""

import signal
import sys


def main() -> int:
    """Run the command line; returns the exit code. Ctrl-C while modules are still being imported
    ends it as quietly as later."""
    try:
        from gpumemprof.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
