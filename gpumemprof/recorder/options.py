"""What to record and how."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpumemprof.ledger.history import HistoryLimits
from gpumemprof.ledger.model import OnChange
from gpumemprof.ledger.series import SeriesLimits
from gpumemprof.probe.loader import Options
from gpumemprof.process.trust import OWN, Trust
from gpumemprof.stack.merge import FrameMode


@dataclass(frozen=True, slots=True)
class RecorderOptions:
    """What to record and how. ``library_path``: an LD_LIBRARY_PATH to look for libraries first."""

    probe: Options = field(default_factory=Options)
    frames: FrameMode = FrameMode.MIXED
    full_names: bool = False
    library_path: str = ""
    series: SeriesLimits = field(default_factory=SeriesLimits)
    """Of memory over time; no ``series``: it is not followed."""
    history: HistoryLimits = field(default_factory=HistoryLimits)
    """Of the looks at stacks that tell slow leaks; no ``stacks``: there are none."""
    on_change: OnChange | None = None
    """Told of each change of what is held (ledger.model.OnChange)."""
    trust: Trust = OWN
    """In the processes that are recorded."""
    root_pids: tuple[int, ...] = ()
    """Processes whose root may be the machine's, the best first, for an agent in a container of
    its own: its libraries are in the first of them that shows any. None: we see them."""
