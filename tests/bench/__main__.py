"""``make bench``: what profiling costs, and what it keeps. As root, on a machine left alone."""

from __future__ import annotations

import os
import platform
import sys

from tests.bench import idle, kept, loaders, pair_cost, stacks, symbols

SECTIONS = {
    "cost": ("Cost of a cudaMalloc/cudaFree pair, µs, best batch / median", pair_cost.report),
    "loaders": ("Loaders", loaders.report),
    "kept": ("Events kept", kept.report),
    "stacks": ("Stacks in user space", stacks.report),
    "symbols": ("Symbols of a large library", symbols.report),
    "idle": ("While nothing happens", idle.report),
}


def main() -> None:
    chosen = sys.argv[1:] or list(SECTIONS)
    print(f"Linux {platform.release()}, {os.cpu_count()} processors, Python "
          f"{platform.python_version()}")  # fmt: skip
    for name in chosen:
        title, report = SECTIONS[name]
        print(f"\n## {title}\n")
        for line in report():
            print(line, flush=True)


main()
