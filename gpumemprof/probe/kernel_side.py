"""What every loader gives: the programs and maps that were loaded, and the types they speak of."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from gpumemprof.probe.btf import Btf
from gpumemprof.probe.programs import Kind


class LoaderChoice(enum.Enum):
    """Which loader to use."""

    AUTO = "auto"
    """The first of the others that works here."""
    LIBBPF = "libbpf"
    """Programs compiled beforehand, fitted to the kernel by its BTF."""
    BCC = "bcc"
    """Programs compiled here by bcc, for kernels without BTF and for changed programs."""


@dataclass(frozen=True, slots=True)
class MapInfo:
    """A map: its descriptor, bytes of key and value, and how many it holds (of a ring: bytes)."""

    fd: int
    key_size: int
    value_size: int
    max_entries: int


@dataclass(frozen=True, slots=True)
class MapSettings:
    """What of a map differs from its declaration."""

    max_entries: int
    preallocated: bool = False
    """All its memory is taken at once; else as entries come, where it is declared so."""


class KernelSide(Protocol):
    """Programs and maps in the kernel, until closed."""

    @property
    def btf(self) -> Btf:
        """The types of bpf/."""

    def program(self, name: str) -> int:
        """The descriptor of a loaded program. KeyError for others."""

    def map(self, name: str) -> MapInfo:
        """A map by its name. KeyError if there is none."""

    def close(self) -> None:
        """Let go of everything; what links hold lives on with them."""


class Loader(Protocol):
    """Brings programs and maps into the kernel."""

    @property
    def name(self) -> str:
        """With its version, such as "libbpf 1.1"."""

    def prepare(self) -> None:
        """What comes before the first ``load``. Raises ProbeError when the loader cannot work here,
        whatever is loaded."""

    def load(self, programs: Mapping[str, Kind], maps: Mapping[str, MapSettings]) -> KernelSide:
        """Load programs by name; ``maps``: those that differ from their declaration. Raises
        ProbeError with the reason of the loader or of the kernel."""
