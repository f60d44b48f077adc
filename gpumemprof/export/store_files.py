"""The files of the local store: what is in them, written whole or not at all, read with mistrust.

``<store>/lock``                     held by the agent that uses the store
``<store>/<id>/owner.json``          whose memory it is; the id is a hash of it
``<store>/<id>/journal``             history: points, how long the last one held, failures; a JSON
                                     array a line, later lines win
``<store>/<id>/<time_ns>.pb.gz``     the profile of that time

No name of a pod, a program or a function is ever part of a path.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpumemprof.errors import RemoteDataError
from gpumemprof.export.history import KINDS, MAX_TEXT, FailureNote, History, Point
from gpumemprof.export.model import Owner
from gpumemprof.profile.text import valid_utf8

log = logging.getLogger(__name__)

BLOCK = 4096
"""What a file takes of a disk is a multiple of this, in bytes."""
MAX_JOURNAL = 16 << 20
MAX_OWNER = 64 << 10
MAX_PROFILE = 64 << 20
"""Bytes of each kind of file that are read."""

_ID = re.compile(r"[0-9a-f]{32}\Z")
_FORGOTTEN = re.compile(r"forgotten-[0-9a-f]{32}\Z")
_PROFILE = re.compile(r"([1-9][0-9]{0,18})\.pb\.gz\Z")
_TEMPORARY = "new"
_INT64 = 2**63


def owner_id(owner: Owner) -> str:
    """A name for ``owner`` in paths and addresses: 32 hexadecimal digits."""
    text = json.dumps([valid_utf8(part) for part in owner])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def blocks(size: int) -> int:
    """What a file of ``size`` bytes takes of the disk."""
    return -(-size // BLOCK) * BLOCK


@dataclass(slots=True)
class Found:
    """What a directory of an owner holds. ``profiles``: time → bytes. ``damaged`` and
    ``foreign``: lines and files that could not be used."""

    history: History
    profiles: dict[int, int]
    journal_bytes: int
    damaged: int = 0
    foreign: int = 0


@dataclass(slots=True)
class Scan:
    """What a store holds."""

    owners: list[Found] = field(default_factory=list)
    damaged: int = 0
    foreign: int = 0


class StoreFiles:
    """A store's directory. Every method but ``close`` may raise OSError."""

    def __init__(self, path: Path) -> None:
        """Create the directory if need be and lock it."""
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = path
        self._lock = os.open(path / "lock", os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise OSError(error.errno, "another agent is using it") from error

    def close(self) -> None:
        """Let others use it."""
        os.close(self._lock)

    # Reading

    def scan(self) -> Scan:
        """What is there. What was being written or forgotten when an agent died is removed, and
        so is what cannot be attributed."""
        scan = Scan()
        with os.scandir(self.path) as entries:
            for entry in entries:
                if _FORGOTTEN.match(entry.name):
                    shutil.rmtree(entry.path, ignore_errors=True)
                elif _ID.match(entry.name) and entry.is_dir(follow_symlinks=False):
                    try:
                        scan.owners.append(self._scan_owner(entry.name))
                    except (OSError, RemoteDataError) as error:
                        # Nobody could say any more whose it is, nor forget it when asked to.
                        log.warning("%s in the store is removed: %s", entry.name, error)
                        scan.damaged += 1
                        shutil.rmtree(entry.path, ignore_errors=True)
                elif entry.name != "lock":
                    scan.foreign += 1
        return scan

    def _scan_owner(self, name: str) -> Found:
        owner = _parse_owner(_read(self.path / name / "owner.json", MAX_OWNER))
        if owner_id(owner) != name:
            raise RemoteDataError("the owner is not the one that the directory is named after")
        found = Found(History(owner), {}, 0)
        with os.scandir(self.path / name) as entries:
            for entry in entries:
                match = _PROFILE.match(entry.name)
                if entry.name == _TEMPORARY:
                    Path(entry.path).unlink(missing_ok=True)
                elif match and int(match[1]) < _INT64 and entry.is_file(follow_symlinks=False):
                    found.profiles[int(match[1])] = entry.stat(follow_symlinks=False).st_size
                elif entry.name not in ("owner.json", "journal"):
                    found.foreign += 1
        with contextlib.suppress(FileNotFoundError):
            data = _read(self.path / name / "journal", MAX_JOURNAL)
            found.journal_bytes = len(data)
            # Without its end a last line was not written whole.
            for line in data.split(b"\n"):
                if line and not _replay(line, found.history):
                    found.damaged += 1
        return found

    def read_profile(self, name: str, time_ns: int) -> bytes:
        """The bytes of a stored profile. Raises RemoteDataError if they are too many."""
        return _read(self._profile(name, time_ns), MAX_PROFILE)

    # Writing

    def write_owner(self, owner: Owner) -> None:
        """Make the directory of a new owner."""
        name = owner_id(owner)
        (self.path / name).mkdir(mode=0o700, exist_ok=True)
        text = json.dumps({"version": 1} | owner._asdict(), default=str)
        self._write(name, "owner.json", text.encode())

    def write_profile(self, name: str, time_ns: int, data: bytes) -> None:
        """Store the bytes of a profile."""
        self._write(name, f"{time_ns}.pb.gz", data)

    def write_journal(self, history: History) -> int:
        """Write a journal anew; returns its bytes."""
        lines: list[list[Any]] = [["point", *point] for point in history.points]
        lines += [["failure", *note] for note in history.notes]
        data = journal_lines(lines)
        self._write(owner_id(history.owner), "journal", data)
        return len(data)

    def append_journal(self, name: str, data: bytes) -> None:
        """Add lines to a journal."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.path / name / "journal", flags, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)

    def _write(self, name: str, file_name: str, data: bytes) -> None:
        directory = self.path / name
        temporary = directory / _TEMPORARY
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
                file.write(data)
            temporary.replace(directory / file_name)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise

    def remove_profile(self, name: str, time_ns: int) -> None:
        """Remove a stored profile."""
        self._profile(name, time_ns).unlink(missing_ok=True)

    def remove_owner(self, name: str) -> None:
        """Remove all of an owner. Its directory is renamed first: an agent that dies meanwhile
        finds it at its next start and goes on."""
        forgotten = self.path / f"forgotten-{name}"
        with contextlib.suppress(FileNotFoundError):
            (self.path / name).rename(forgotten)
        if forgotten.exists():
            shutil.rmtree(forgotten)

    def _profile(self, name: str, time_ns: int) -> Path:
        return self.path / name / f"{time_ns}.pb.gz"


def journal_lines(lines: Iterable[list[Any]]) -> bytes:
    """Lines of a journal."""
    return b"".join(
        json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n" for line in lines
    )


def _read(path: Path, limit: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise RemoteDataError(f"{path.name} is no regular file")
        data = file.read(limit + 1)
    if len(data) > limit:
        raise RemoteDataError(f"{path.name} has more than {limit:,} bytes, the limit")
    return data


# What follows reads JSON that may be damaged or written by others.


def _parse_owner(data: bytes) -> Owner:
    try:
        value = json.loads(data)
        if value["version"] != 1:
            raise RemoteDataError("the store was written by a newer version of gpumemprof")
        parts = [value[name] for name in Owner._fields]
        if not all(isinstance(part, str) and len(part) <= MAX_OWNER for part in parts):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RemoteDataError("owner.json is damaged") from error
    return Owner(*map(valid_utf8, parts))


def _replay(line: bytes, history: History) -> bool:
    """Apply one line of a journal; False if it cannot be understood."""
    try:
        topic, *fields = json.loads(line)
        if topic == "point":
            history.add(_point(*fields))
        elif topic == "until":
            history.extend(_number(*fields))
        elif topic == "failure":
            history.note(_note(*fields))
        else:
            return False
    except (ValueError, TypeError, RecursionError):
        return False
    return True


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _INT64:
        raise TypeError
    return value


def _optional(value: Any) -> int | None:
    return None if value is None else _number(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return valid_utf8(value)[:MAX_TEXT]


def _point(time_ns: Any, until_ns: Any, in_use: Any, *rest: Any) -> Point:
    if not isinstance(in_use, list) or len(in_use) != len(KINDS):
        raise TypeError
    return Point(
        _number(time_ns), _number(until_ns), tuple(map(_number, in_use)), *map(_number, rest)
    )


def _note(time_ns: Any, profile_ns: Any, error: Any, *rest: Any) -> FailureNote:
    call, kind, device, requested, free, total, in_use, function = rest
    return FailureNote(
        _number(time_ns),
        _number(profile_ns),
        _number(error),
        _text(call),
        _text(kind),
        _text(device),
        _number(requested),
        _optional(free),
        _optional(total),
        _number(in_use),
        _text(function),
    )
