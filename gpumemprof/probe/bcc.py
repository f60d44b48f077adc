"""The loader on bcc: compiles bpf/ here, for kernels without BTF and for changed programs.

bcc is compiler only, in a process of its own (bcc_compile.py). Maps are made from their
declarations in the types that it gives, programs are loaded through bpf(2), and hang on libraries
as those of any loader: so bcc's limit of 1,000 probes, its tenth of a second for each, and its need
of tracefs do not matter, and no kernel headers are needed (bpf/bcc/).

bcc is Debian's and Ubuntu's python3-bpfcc; the package named bcc on PyPI is something else.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpumemprof.errors import ProbeError
from gpumemprof.probe import instructions, offsets, programs
from gpumemprof.probe.btf import Btf
from gpumemprof.probe.kernel_side import KernelSide, MapInfo, MapSettings
from gpumemprof.probe.linking import Linker
from gpumemprof.probe.loading import create_map, load_program
from gpumemprof.probe.programs import Kind
from gpumemprof.probe.syscalls import Descriptor

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("source")
"""bpf/ of the repository."""
INSTALL = "install Debian's or Ubuntu's python3-bpfcc (Fedora: python3-bcc)"
_PLACES = ("/usr/local/lib/python3*", "/usr/lib/python3*", "/usr/lib64/python3*")
_PATIENCE = 180.0
_TOLD = 8
"""Lines of what the compiler says that are told when it fails."""


def find_module(places: tuple[str, ...] = _PLACES) -> Path:
    """The directory of the distribution's module; ``GPUMEMPROF_BCC`` names another. Raises
    ProbeError when there is none."""
    named = os.environ.get("GPUMEMPROF_BCC")
    candidates = [Path(named)] if named else list(_installed(places))
    for directory in candidates:
        if (directory / "libbcc.py").exists():
            return directory
    problem = "bcc is not installed"
    if named:
        problem = f"there is no bcc in {named}"
    elif importlib.util.find_spec("bcc") is not None:
        problem = "the package bcc of this Python environment is another program (PyPI's)"
    raise ProbeError(f"{problem}; {INSTALL}")


def _installed(places: tuple[str, ...]) -> Iterator[Path]:
    for place in places:
        for root in sorted(Path("/").glob(place.lstrip("/"))):
            yield from (root / kind / "bcc" for kind in ("dist-packages", "site-packages"))


@dataclass(frozen=True, slots=True)
class _Compiled:
    """Functions, with numbers in the place of maps and of other functions, and types."""

    functions: Mapping[str, bytes]
    btf: Btf


class Bcc:
    """bcc as a loader. Raises ProbeError when it is not installed."""

    def __init__(self) -> None:
        self._module = find_module()
        self.version = _version(self._module)
        self._compiled: _Compiled | None = None

    @property
    def name(self) -> str:
        """For example "bcc 0.26.0"."""
        return f"bcc {self.version}"

    def prepare(self) -> None:
        """Compile (as Loader)."""
        log.info("compiling the BPF programs with %s", self.name)
        self._compiled = self._compile()

    def load(self, programs: Mapping[str, Kind], maps: Mapping[str, MapSettings]) -> KernelSide:
        """As Loader."""
        compiled = self._compiled = self._compiled or self._compile()
        return _Loaded(compiled, programs, maps)

    def _compile(self) -> _Compiled:
        where = offsets.find()
        flags = [f"-DOFFSET_{structure}_{field}={at}" for (structure, field), at in where.items()]
        names = [*(set(programs.ALL) - {programs.TYPES_ONLY}), *programs.CALLED]
        try:
            text = (SOURCE / "gpumemprof.bpf.c").read_text()
        except OSError as error:
            raise ProbeError(f"the source of the BPF programs is missing: {error}") from None
        source = SOURCE.resolve()
        request = {
            "bcc": str(self._module),
            "headers": str(source / "bcc"),
            "text": text,
            "flags": ["-DGPUMEMPROF_BCC", f"-I{source}", *flags],
            "functions": names,
            "types": programs.TYPES_ONLY,
        }
        answer = _ask(json.dumps(request).encode())
        return _Compiled(
            {name: base64.b64decode(code) for name, code in answer["functions"].items()},
            Btf(base64.b64decode(answer["btf"])),
        )


def _version(module: Path) -> str:
    try:
        text = (module / "version.py").read_text()
    except OSError:
        return "of unknown version"
    found = re.search(r"__version__\s*=\s*['\"]([^'\"]+)", text)
    return found[1].split("+")[0] if found else "of unknown version"


def _ask(request: bytes) -> dict[str, Any]:
    script = Path(__file__).with_name("bcc_compile.py")
    try:
        done = subprocess.run(
            [sys.executable, "-I", str(script)],
            input=request, capture_output=True, timeout=_PATIENCE, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ProbeError(f"bcc was not done after {_PATIENCE:.0f} s") from None
    except OSError as error:
        raise ProbeError(f"bcc cannot be run: {error}") from None
    if done.returncode:
        raise ProbeError(f"bcc cannot compile the programs: {_reason(done)}")
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise ProbeError(f"bcc gave no programs: {_reason(done)}") from None
    return answer


def _reason(done: subprocess.CompletedProcess[bytes]) -> str:
    """The errors of the compiler, or the last line of what was printed."""
    lines = [line.strip() for line in done.stderr.decode(errors="replace").splitlines()]
    lines = [line for line in lines if line]
    errors = [line for line in lines if "error:" in line][:_TOLD]
    if done.returncode < 0:
        errors.append(f"it was ended by signal {-done.returncode}")
    return "; ".join(errors or lines[-1:]) or "it says nothing"


class _Loaded:
    """KernelSide."""

    def __init__(
        self, compiled: _Compiled, kinds: Mapping[str, Kind], maps: Mapping[str, MapSettings]
    ) -> None:
        self.btf = compiled.btf
        self._owned: list[Descriptor] = []
        self._maps: dict[str, MapInfo] = {}
        self._programs: dict[str, int] = {}
        try:
            numbers = self._create_maps(maps)
            linker = Linker(compiled.functions, compiled.btf)
            types = linker.types()
            self._owned.append(types)
            for name, kind in kinds.items():
                code, about = linker.program(name, types)
                code = instructions.with_maps(code, numbers)
                self._programs[name] = self._own(load_program(name, kind, code, about))
        except BaseException:
            self.close()
            raise

    def _create_maps(self, settings: Mapping[str, MapSettings]) -> dict[int, int]:
        numbers = {}
        for name, declared in self.btf.maps("maps").items():
            wanted = settings.get(name, MapSettings(declared["max_entries"]))
            most = wanted.max_entries
            flags = 0 if wanted.preallocated else declared.get("map_flags", 0)
            key, value = declared.get("key_size", 0), declared.get("value_size", 0)
            fd = self._own(create_map(name, declared["type"], key, value, most, flags))
            self._maps[name] = MapInfo(fd, key, value, most)
            numbers[declared["number"]] = fd
        return numbers

    def _own(self, descriptor: Descriptor) -> int:
        self._owned.append(descriptor)
        return descriptor.fd

    def program(self, name: str) -> int:
        """As KernelSide."""
        return self._programs[name]

    def map(self, name: str) -> MapInfo:
        """As KernelSide."""
        return self._maps[name]

    def close(self) -> None:
        """As KernelSide."""
        for descriptor in self._owned:
            descriptor.close()
        self._owned.clear()
