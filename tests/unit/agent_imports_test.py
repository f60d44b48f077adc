"""What ``gpumemprof agent`` loads: a node without Kubernetes needs no Kubernetes client."""

from __future__ import annotations

import subprocess
import sys

LOADED = "import sys, gpumemprof.cli.agent; print('kubernetes' in sys.modules)"


def test_the_agent_loads_the_kubernetes_client_only_when_it_asks_a_cluster() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=False
    )
    assert done.stdout == "False\n", done.stderr
