"""The CPython interpreters of this machine that the tests compare with.

pyenv's versions, the system's own, and what ``python_layouts_debian.sh`` has unpacked.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

UNPACKED = Path(__file__).parents[2] / "build" / "pythons" / "root"
OLDEST, NEWEST = (3, 8), (3, 15)


@dataclass(frozen=True)
class Interpreter:
    version: tuple[int, int]
    label: str
    command: tuple[str, ...]
    root: Path
    """What it sees as its root directory."""
    library: Path
    """The file that holds the interpreter."""
    include: Path | None
    """Its headers, internal ones included; None if they are not installed."""

    @property
    def home(self) -> str:
        """PYTHONHOME, as it sees it."""
        return "/usr" if self.root != Path("/") else str(Path(self.command[0]).parents[1])

    @property
    def shared_library(self) -> Path | None:
        """Its libpython, also where its executable does not use it."""
        if ".so" in self.library.name:
            return self.library
        name = f"libpython{self.version[0]}.{self.version[1]}.so.1.0"
        found = self.root / "usr/lib/x86_64-linux-gnu" / name
        return found if found.exists() else None

    @property
    def id(self) -> str:
        return f"{self.label}-{self.version[0]}.{self.version[1]}"


def _pyenv() -> list[Interpreter]:
    found = []
    for prefix in sorted((Path.home() / ".pyenv" / "versions").glob("3.*")):
        match = re.match(r"3\.(\d+)", prefix.name)
        if match is None:
            continue
        name = f"python3.{match[1]}"
        library = prefix / "lib" / f"lib{name}.so.1.0"
        executable = prefix / "bin" / name
        include = prefix / "include" / name
        found.append(
            Interpreter(
                (3, int(match[1])),
                "pyenv",
                (str(executable),),
                Path("/"),
                library if library.exists() else executable,
                include if (include / "internal").exists() else None,
            )
        )
    return found


def _distribution(root: Path, label: str) -> list[Interpreter]:
    found = []
    for executable in sorted((root / "usr/bin").glob("python3.*")):
        match = re.fullmatch(r"python3\.(\d+)", executable.name)
        if match is None:
            continue
        include = root / "usr/include" / executable.name
        inside = f"/usr/bin/{executable.name}"
        chroot = shutil.which("chroot") or "chroot"
        found.append(
            Interpreter(
                (3, int(match[1])),
                label,
                (inside,) if root == Path("/") else (chroot, str(root), inside),
                root,
                executable,
                include if (include / "internal").exists() else None,
            )
        )
    return found


INTERPRETERS = [
    interpreter
    for interpreter in (
        *_pyenv(),
        *_distribution(Path("/"), "system"),
        # Another root directory is for root only.
        *(_distribution(UNPACKED, "sid") if os.geteuid() == 0 else ()),
    )
    if OLDEST <= interpreter.version <= NEWEST
]
WITH_HEADERS = [interpreter for interpreter in INTERPRETERS if interpreter.include is not None]
