"""Wires the stages for one machine: probes → processes → stacks → ledger → profile.

The command line and the node agent use it alike. ``stages`` holds the stages and tells their
results, ``recorder`` has the loop, ``scanner`` looks at processes, ``driver`` at what the driver
says of them.
"""

from gpumemprof.recorder.options import RecorderOptions
from gpumemprof.recorder.recorder import Recorder

__all__ = ["Recorder", "RecorderOptions"]
