"""Runs in a virtual machine: how long loading, attaching and detaching take, as JSON."""

import ctypes
import json
import os
import struct
import sys
import time

from gpumemprof.errors import ProbeError
from gpumemprof.probe import syscalls
from gpumemprof.probe.attach import AttachMode
from gpumemprof.probe.libbpf import Libbpf
from gpumemprof.probe.loader import Options, Probes
from gpumemprof.process.libraries import LibraryProber, installed_libraries

_OBJ_GET_INFO_BY_FD = 15
_VERIFIED_INSNS = 216  # in struct bpf_prog_info, since 5.16


def verified(fd: int) -> int:
    """Instructions that the verifier went through: it gives up at a million."""
    info = ctypes.create_string_buffer(256)
    attr = struct.pack("<IIQ", fd, len(info), ctypes.addressof(info))
    syscalls._bpf(_OBJ_GET_INFO_BY_FD, attr)
    return int(struct.unpack_from("<I", info, _VERIFIED_INSNS)[0])


began = time.monotonic()
options = Options(mode=AttachMode(sys.argv[1]), events_ring=1 << 18, stacks_ring=1 << 18)
libbpf = Libbpf()
try:
    probes = Probes(options, libbpf)
except ProbeError as error:
    sys.exit("\n".join([*libbpf.log[-60:], str(error)]))
loaded = time.monotonic()
prober = LibraryProber(probes.attach)
for library in installed_libraries(os.environ["LD_LIBRARY_PATH"]):
    prober.probe_path(library)
attached = time.monotonic()
calls = sum(len(file.calls) for file in prober.probed)
prober.close()
detached = time.monotonic()
print(
    json.dumps(
        {
            "load_seconds": loaded - began,
            "attach_seconds": attached - loaded,
            "detach_seconds": detached - attached,
            "calls": calls,
            "verified": [verified(fd) for fd in probes._program_fds],
            "problems": prober.problems,
            "lifecycle_error": probes.lifecycle_error,
            "libbpf": probes.libbpf.version,
        }
    )
)
