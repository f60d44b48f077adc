"""Can this machine record, and what will be seen? Each check says what to do about its finding."""

from __future__ import annotations

import enum
import os
import platform
import resource
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpumemprof.errors import ProbeError, ProcessGone, RemoteDataError
from gpumemprof.probe import bcc
from gpumemprof.probe.attach import AttachMode, Closable, Target
from gpumemprof.probe.btf import KERNEL_BTF
from gpumemprof.probe.calls import Library
from gpumemprof.probe.kernel import OLDEST_KERNEL, kernel_version
from gpumemprof.probe.kernel_side import LoaderChoice
from gpumemprof.probe.libbpf import OBJECT_PATH, Libbpf
from gpumemprof.probe.loader import Options, Probes
from gpumemprof.process import maps, procfs
from gpumemprof.process.gpu import Nvml
from gpumemprof.process.libraries import LibraryProber, installed_libraries

_CAPABILITIES = {"CAP_BPF": 39, "CAP_PERFMON": 38, "CAP_SYS_PTRACE": 19}
_MEMLOCK_IGNORED_SINCE = (5, 11)
_SMALL_RING = 1 << 18
_OLDEST = ".".join(map(str, OLDEST_KERNEL))


class Status(enum.Enum):
    """How a check went. ``FAIL``: recording cannot work."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. ``advice``: what to do, empty when nothing needs doing."""

    name: str
    status: Status
    found: str
    advice: str = ""


def _kernel() -> Iterator[Check]:
    release = platform.release()
    machine = platform.machine()
    if machine != "x86_64":
        yield Check("machine", Status.FAIL, machine, "only x86_64 is supported")
    if kernel_version(release) < OLDEST_KERNEL:
        yield Check("kernel", Status.WARN, release,
                    f"{_OLDEST} or newer is needed, unless attaching below is ok")  # fmt: skip
    else:
        yield Check("kernel", Status.OK, release)


def _btf() -> Iterator[Check]:
    if KERNEL_BTF.exists():
        yield Check("BTF", Status.OK, str(KERNEL_BTF))
    else:
        yield Check("BTF", Status.WARN, "this kernel has none",
                    "the programs are compiled here, by bcc")  # fmt: skip


def _lockdown() -> Iterator[Check]:
    try:
        text = Path("/sys/kernel/security/lockdown").read_text().strip()
    except OSError:
        yield Check("lockdown", Status.OK, "not in use, or not visible from here")
        return
    if "[confidentiality]" in text:
        yield Check("lockdown", Status.FAIL, text,
                    "the kernel refuses BPF programs that read memory: boot with lockdown=none "
                    "or integrity (Azure: a node pool without Trusted Launch)")  # fmt: skip
    else:
        yield Check("lockdown", Status.OK, text)


def _missing_capabilities() -> list[str] | None:
    """Those that recording needs and this process has not; None where that cannot be told."""
    with suppress(OSError, ValueError, IndexError):
        status = Path("/proc/self/status").read_text()
        effective = int(status.split("CapEff:")[1].split()[0], 16)
        return [name for name, bit in _CAPABILITIES.items() if not effective >> bit & 1]
    return None


def _privileges() -> Iterator[Check]:
    missing = _missing_capabilities()
    if missing:
        yield Check("capabilities", Status.FAIL, f"missing: {', '.join(missing)}",
                    "run as root, or in a privileged container")  # fmt: skip
    elif missing is not None:
        yield Check("capabilities", Status.OK, ", ".join(_CAPABILITIES))
    if procfs.in_initial_pid_namespace():
        yield Check("pid namespace", Status.OK, "the host's")
    else:
        yield Check("pid namespace", Status.FAIL, "a container's",
                    "use the host's: docker --pid=host, Kubernetes hostPID: true")  # fmt: skip


def _limits() -> Iterator[Check]:
    memlock, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    shown = "unlimited" if memlock == resource.RLIM_INFINITY else f"{memlock >> 10} KiB"
    if kernel_version(platform.release()) >= _MEMLOCK_IGNORED_SINCE:
        yield Check("locked memory", Status.OK, f"{shown} (does not matter since Linux 5.11)")
    elif memlock != resource.RLIM_INFINITY:
        yield Check("locked memory", Status.WARN, shown, "raise it: ulimit -l unlimited")
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield Check("open files", Status.OK if files >= 1024 else Status.WARN, str(files),
                "" if files >= 1024 else "raise it: ulimit -n 4096")  # fmt: skip


def _uprobes() -> Iterator[Check]:
    if Path("/sys/bus/event_source/devices/uprobe/type").exists():
        yield Check("uprobes", Status.OK, "perf events and links")
    else:
        yield Check("uprobes", Status.WARN, "no uprobe perf events",
                    "a kernel with CONFIG_UPROBE_EVENTS, unless attaching below is ok")  # fmt: skip


def _loaders(choice: LoaderChoice) -> Iterator[Check]:
    """Which loaders are there; that they work is seen when attaching."""
    if choice is not LoaderChoice.BCC:
        try:
            libbpf = Libbpf()
        except ProbeError as error:
            yield Check("libbpf", Status.WARN, str(error), "apt-get install libbpf1")
        else:
            if not OBJECT_PATH.exists():
                yield Check("libbpf", Status.WARN, "the BPF object is not built", "run make build")
            elif libbpf.version.startswith("0"):
                yield Check("libbpf", Status.WARN, libbpf.version,
                            "it cannot read the types of kernels from 6.0 on: name a newer one "
                            "with GPUMEMPROF_LIBBPF=/path/to/libbpf.so.1")  # fmt: skip
            else:
                yield Check("libbpf", Status.OK, libbpf.version)
    if choice is not LoaderChoice.LIBBPF:
        try:
            yield Check("bcc", Status.OK, bcc.Bcc().version)
        except ProbeError as error:
            if choice is LoaderChoice.BCC or not KERNEL_BTF.exists():
                yield Check("bcc", Status.WARN, str(error), bcc.INSTALL)
            else:
                yield Check("bcc", Status.OK, "not installed, and not needed here")


def _attaching(choice: LoaderChoice) -> Iterator[Check]:
    if missing := _missing_capabilities():
        # What the kernel answers without them says nothing about what it can do.
        yield Check("attaching", Status.FAIL, f"not tried without {', '.join(missing)}",
                    "run as root, or in a privileged container")  # fmt: skip
        return
    try:
        probes = Probes(Options(events_ring=_SMALL_RING, stacks_ring=_SMALL_RING, loader=choice))
    except ProbeError as error:
        yield Check("attaching", Status.FAIL, str(error), "see the checks above for the reason")
        return
    with probes:
        refused = "".join(f"; {mode.value}: {why}" for mode, why in probes.refused.items())
        yield Check("attaching", Status.OK, f"by {probes.mode.value}{refused}")
        not_used = "".join(f"; {one.value}: {why}" for one, why in probes.loaders_refused.items())
        yield Check("loader", Status.OK, f"{probes.loader}{not_used}")
        if probes.lifecycle_error:
            yield Check("process events", Status.WARN, probes.lifecycle_error,
                        "ends of processes are found by pidfd instead, children are not "
                        "followed")  # fmt: skip
        else:
            yield Check("process events", Status.OK, "fork, exec and exit")
        yield from _cuda(probes)


def _cuda(probes: Probes) -> Iterator[Check]:
    """Attaches for real, and compares what is probed with what processes map."""

    def attach(path: str, targets: Sequence[Target]) -> Closable:
        # Where each place takes the kernel long: some, to see that it works.
        few = probes.mode in (AttachMode.SINGLE, AttachMode.WRAPPED)
        return probes.attach(path, targets[:2] if few else targets)

    prober = LibraryProber(attach)
    try:
        for path in installed_libraries(os.environ.get("LD_LIBRARY_PATH", "")):
            prober.probe_path(path)
        users: dict[str, set[int]] = {}
        for pid in procfs.pids():
            with suppress(ProcessGone, RemoteDataError):
                mapped = maps.read(pid)
                if prober.scan(pid, mapped):
                    for mapping in mapped.executable():
                        file = prober.file_of(mapping)
                        if file is not None:
                            users.setdefault(file.path, set()).add(pid)
        for file in prober.probed:
            if file.library is Library.LOADER:
                continue
            pids = sorted(users.get(file.path, ()))
            yield Check(f"{file.library.value}", Status.OK,
                        f"{file.path}: {len(file.calls)} calls probed, mapped by "
                        + (_some(pids) if pids else "no process now"))  # fmt: skip
        for name, why in prober.problems.items():
            yield Check("library", Status.WARN, f"{name}: {why}",
                        "allocations through it are seen in the driver only")  # fmt: skip
        if not any(file.library is Library.DRIVER for file in prober.probed):
            yield Check("CUDA driver", Status.WARN, "no libcuda.so.1 is installed or mapped",
                        "nothing to record here until a program brings one")  # fmt: skip
        pids = sorted({pid for found in users.values() for pid in found})
        yield Check("CUDA processes", Status.OK, _some(pids) if pids else "none now")
    finally:
        prober.close()


def _some(pids: list[int]) -> str:
    listed = ", ".join(map(str, pids[:8]))
    return f"{len(pids)} ({listed}{', ...' if len(pids) > 8 else ''})"


def _nvml() -> Iterator[Check]:
    nvml = Nvml()
    try:
        if not nvml.available:
            yield Check("NVML", Status.WARN, nvml.problem,
                        "what was allocated before recording has no size")  # fmt: skip
            return
        for gpu in nvml.gpus():
            yield Check("GPU", Status.OK, f"{gpu.index}: {gpu.name}, {gpu.used >> 20:,} of "
                        f"{gpu.total >> 20:,} MiB used, {gpu.uuid}")  # fmt: skip
    finally:
        nvml.close()


def examine(loader: LoaderChoice = LoaderChoice.AUTO) -> list[Check]:
    """All checks, in the order in which one thing needs the other."""
    groups: tuple[Iterable[Check], ...] = (
        _kernel(), _btf(), _lockdown(), _privileges(), _limits(), _uprobes(), _loaders(loader),
        _attaching(loader), _nvml(),
    )  # fmt: skip
    return [check for group in groups for check in group]
