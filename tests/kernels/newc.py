"""Writes a cpio archive as the kernel unpacks it at boot (Documentation/driver-api/early-userspace:
buffer-format), device nodes included, so that nothing here needs root."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import TracebackType

_ALIGN = 4


class Cpio:
    """An archive in the "newc" format. Archives may follow each other in one file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._inode = 0
        self._directories: set[str] = set()

    def tree(self, directory: Path, at: str = "") -> None:
        """Everything under a directory, below ``at`` (no leading slash)."""
        for folder, folders, files in os.walk(directory):
            folders.sort()
            below = Path(folder).relative_to(directory)
            for name in sorted((*folders, *files)):
                inside = str(Path(at) / below / name)
                source = Path(folder) / name
                if source.is_dir() and not source.is_symlink():
                    self.directory(inside)
                else:
                    self.file(source, inside)

    def directory(self, inside: str) -> None:
        """A directory and those above it."""
        for path in [*reversed(Path(inside).parents), Path(inside)]:
            name = str(path)
            if name != "." and name not in self._directories:
                self._directories.add(name)
                self._entry(name, stat.S_IFDIR | 0o755)

    def file(self, source: Path, inside: str) -> None:
        """A file or a symbolic link, with its mode and time (compiled Python goes by that)."""
        self.directory(str(Path(inside).parent))
        status = source.lstat()
        if stat.S_ISLNK(status.st_mode):
            self._entry(inside, status.st_mode, os.fsencode(source.readlink()))
        elif stat.S_ISREG(status.st_mode):
            mode = status.st_mode | 0o444
            self._entry(inside, mode, source.read_bytes(), int(status.st_mtime))

    def character_device(self, inside: str, major: int, minor: int) -> None:
        """For example dev/console, 5, 1: without it the first process has no output."""
        self.directory(str(Path(inside).parent))
        self._entry(inside, stat.S_IFCHR | 0o600, device=(major, minor))

    def _entry(
        self, name: str, mode: int, data: bytes = b"", mtime: int = 0,
        device: tuple[int, int] = (0, 0),
    ) -> None:  # fmt: skip
        self._inode += 1
        path = os.fsencode(name) + b"\0"
        links = 2 if stat.S_ISDIR(mode) else 1
        fields = (self._inode, mode, 0, 0, links, mtime, len(data), 0, 0, *device, len(path), 0)
        header = b"070701" + b"".join(b"%08X" % field for field in fields)
        self._write(header + path)
        self._write(data)

    def _write(self, data: bytes) -> None:
        self._file.write(data + b"\0" * (-len(data) % _ALIGN))

    def __enter__(self) -> Cpio:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if kind is None:
            self._entry("TRAILER!!!", 0)
        self._file.close()
