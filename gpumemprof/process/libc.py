"""The C library, for system calls that Python has no function for."""

from __future__ import annotations

import ctypes
import functools
import os


@functools.cache
def libc() -> ctypes.CDLL:
    """Loaded once: that alone takes longer than a call."""
    return ctypes.CDLL(None, use_errno=True)


def last_error() -> OSError:
    """Why the last call of ``libc`` in this thread failed."""
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))
