"""Which kernel this is, and which is needed."""

from __future__ import annotations

import re

OLDEST_KERNEL = (5, 10)
"""The oldest that is tried (docs/kernels.md). BPF ring buffers came with 5.8, and distributions
carry them back: so an older version is a likely reason when attaching fails, and none not to try.
"""


def kernel_version(release: str) -> tuple[int, int]:
    """Major and minor of a release string; zeros when there are none.

    >>> kernel_version("6.8.0-1015-azure")
    (6, 8)
    """
    found = re.match(r"(\d+)\.(\d+)", release)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def too_old(release: str) -> str:
    """What to say of an older kernel when attaching fails; empty for others.

    >>> too_old("5.4.0-150-generic")
    'Linux 5.4.0-150-generic is too old: 5.10 or newer is needed (BPF ring buffers)'
    """
    if kernel_version(release) >= OLDEST_KERNEL:
        return ""
    needed = ".".join(map(str, OLDEST_KERNEL))
    return f"Linux {release} is too old: {needed} or newer is needed (BPF ring buffers)"
