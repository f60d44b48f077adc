"""From pprof's message to the model; the rules are told in pprof.py.

The message may be anybody's: every index is checked, and what one small message can unfold to is
bounded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol, TypeVar

from gpumemprof.errors import UsageError
from gpumemprof.profile import pprof_comments, pprof_pb2
from gpumemprof.profile.model import SAMPLE_TYPES, Labels, Profile, Sample, Values
from gpumemprof.profile.text import printable
from gpumemprof.stack.frames import Frame, FrameKind, Stack

MAX_FRAMES = 1 << 25
"""Frames of all stacks together. A location may stand for many inlined calls and be used by many
samples, so their number is not bounded by the size of a file."""


def profile_of(message: pprof_pb2.Profile, required: Collection[str]) -> Profile:
    """The profile in ``message``.

    ``required``: sample types that must be there; those of the model that are not required and
    not there are read as 0. Raises UsageError."""
    return _Reader(message).profile(required)


class _Identified(Protocol):
    @property
    def id(self) -> int: ...


E = TypeVar("E", bound=_Identified)


def _by_id(entries: Iterable[E], what: str) -> dict[int, E]:
    found: dict[int, E] = {}
    for entry in entries:
        if entry.id == 0 or entry.id in found:
            raise UsageError(f"the profile is damaged: the id of a {what} is 0 or used twice")
        found[entry.id] = entry
    return found


class _Reader:
    def __init__(self, message: pprof_pb2.Profile) -> None:
        self._message = message
        self._strings = list(message.string_table)
        if not self._strings or self._strings[0]:
            raise UsageError("this is not a pprof profile: its table of strings is wrong")
        self._comments = [self._string(index) for index in message.comment]
        self._ours = pprof_comments.written_by_us(self._comments)
        self._mappings = _by_id(message.mapping, "mapping")
        self._functions = _by_id(message.function, "function")
        self._frames: dict[int, Stack] = {}
        self._frame_count = 0

    def profile(self, required: Collection[str]) -> Profile:
        columns = self._columns(required)
        self._frames = {
            id_: self._location(location)
            for id_, location in _by_id(self._message.location, "location").items()
        }
        stacks: dict[tuple[int, ...], Stack] = {}
        samples = []
        for entry in self._message.sample:
            if len(entry.value) != len(self._message.sample_type):
                raise UsageError(
                    "the profile is damaged: a sample has not one value for each sample type"
                )
            ids = tuple(entry.location_id)
            if ids not in stacks:
                stacks[ids] = self._stack(ids)
            row = tuple(entry.value)
            values = Values(*(0 if at is None else row[at] for at in columns))
            samples.append(Sample(stacks[ids], self._labels(entry.label), values))
        profile = Profile(
            samples=tuple(samples),
            time_ns=self._message.time_nanos,
            duration_ns=self._message.duration_nanos,
        )
        return pprof_comments.read(self._comments, profile) if self._ours else profile

    def _string(self, index: int) -> str:
        if not 0 <= index < len(self._strings):
            raise UsageError("the profile is damaged: it names a string that it does not hold")
        return self._strings[index]

    def _columns(self, required: Collection[str]) -> list[int | None]:
        """For each type of the model, the index of its value in a sample."""
        there = [
            (self._string(type_.type), self._string(type_.unit))
            for type_ in self._message.sample_type
        ]
        missing = [
            f"{name}/{unit}"
            for name, unit in SAMPLE_TYPES
            if name in required and (name, unit) not in there
        ]
        if missing:
            found = ", ".join(printable(f"{name}/{unit}")[:80] for name, unit in there[:20])
            raise UsageError(
                f"this is not a profile of GPU memory: it has the sample types {found or 'none'}, "
                f"but not {', '.join(missing)}"
            )
        return [there.index(type_) if type_ in there else None for type_ in SAMPLE_TYPES]

    def _labels(self, entries: Iterable[pprof_pb2.Label]) -> Labels:
        return tuple(
            sorted(
                (
                    self._string(entry.key),
                    str(entry.num) if entry.num and not entry.str else self._string(entry.str),
                )
                for entry in entries
            )
        )

    def _stack(self, ids: tuple[int, ...]) -> Stack:
        try:
            parts = [self._frames[id_] for id_ in ids]
        except KeyError as error:
            raise UsageError(
                "the profile is damaged: a sample names a location that it does not hold"
            ) from error
        self._count(sum(map(len, parts)))
        return tuple(frame for part in parts for frame in part)

    def _count(self, frames: int) -> None:
        self._frame_count += frames
        if self._frame_count > MAX_FRAMES:
            raise UsageError(f"the profile has more than {MAX_FRAMES:,} frames, the limit")

    def _location(self, location: pprof_pb2.Location) -> Stack:
        module = None
        if location.mapping_id:
            mapping = self._mappings.get(location.mapping_id)
            if mapping is None:
                raise UsageError(
                    "the profile is damaged: a location names a mapping that it does not hold"
                )
            module = self._string(mapping.filename)
        if not location.line:
            name = f"{(module or '').rpartition('/')[2]}+{location.address:#x}"
            return (Frame(name, FrameKind.NATIVE, module=module or ""),)
        return tuple(self._frame(line, module) for line in location.line)

    def _frame(self, line: pprof_pb2.Line, module: str | None) -> Frame:
        function = self._functions.get(line.function_id)
        if function is None:
            raise UsageError(
                "the profile is damaged: a location names a function that it does not hold"
            )
        name, file = self._string(function.name), self._string(function.filename)
        kind = self._kind(self._string(function.system_name), file, module)
        return Frame(name, kind, file, line.line, module or "")

    def _kind(self, system_name: str, file: str, module: str | None) -> FrameKind:
        if module is not None:
            return FrameKind.NATIVE
        if self._ours:
            return FrameKind.NOTE if system_name else FrameKind.PYTHON
        return FrameKind.PYTHON if file.endswith(".py") else FrameKind.NATIVE
