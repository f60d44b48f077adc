"""Runs in a virtual machine: how long loading, attaching and detaching take, as JSON."""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys
import time

from gpumemprof.errors import ProbeError
from gpumemprof.probe import programs, syscalls
from gpumemprof.probe.attach import AttachMode
from gpumemprof.probe.kernel_side import LoaderChoice
from gpumemprof.probe.loader import Options, Probes
from gpumemprof.process.libraries import LibraryProber, installed_libraries

_OBJ_GET_INFO_BY_FD = 15
_VERIFIED_INSNS = 216  # in struct bpf_prog_info, since 5.16


def verified(fd: int) -> int:
    """Instructions that the verifier went through: it gives up at a million."""
    info = ctypes.create_string_buffer(232)
    attr = struct.pack("<IIQ", fd, len(info), ctypes.addressof(info))
    try:
        syscalls.bpf(_OBJ_GET_INFO_BY_FD, attr)
    except OSError:  # longer than the kernel's own, and not zeros
        return 0
    return int(struct.unpack_from("<I", info, _VERIFIED_INSNS)[0])


def measure(loader: str, mode: str) -> None:
    """Prints what one way to load and attach took."""
    began = time.monotonic()
    options = Options(
        loader=LoaderChoice(loader), mode=AttachMode(mode), events_ring=1 << 18, stacks_ring=1 << 18
    )
    try:
        probes = Probes(options)
    except ProbeError as error:
        sys.exit(str(error))
    loaded = time.monotonic()
    prober = LibraryProber(probes.attach)
    for library in installed_libraries(os.environ["LD_LIBRARY_PATH"]):
        prober.probe_path(library)
    attached = time.monotonic()
    calls = sum(len(file.calls) for file in prober.probed)
    prober.close()
    detached = time.monotonic()
    names = programs.of_calls(AttachMode(mode))
    print(
        json.dumps(
            {
                "loader": probes.loader,
                "load_seconds": loaded - began,
                "attach_seconds": attached - loaded,
                "detach_seconds": detached - attached,
                "calls": calls,
                "verified": [verified(probes._kernel.program(name)) for name in names],
                "problems": prober.problems,
                "lifecycle_error": probes.lifecycle_error,
            }
        )
    )
