"""From the model to pprof's message; the rules are told in pprof.py."""

from __future__ import annotations

from gpumemprof.profile import pprof_comments, pprof_pb2
from gpumemprof.profile.model import SAMPLE_TYPES, Profile
from gpumemprof.profile.numbering import FrameNumbers
from gpumemprof.profile.text import valid_utf8
from gpumemprof.stack.frames import Frame, FrameKind, Stack

PERIOD_TYPE = ("space", "bytes")


def message_of(profile: Profile, *, comments: bool = True) -> pprof_pb2.Profile:
    """The message for ``profile``. Raises ValueError if a number needs more than 64 bits.

    Without ``comments`` there are only the samples: no counters, command lines or failures."""
    return _Writer(profile, comments).message


class _Writer:
    """Numbers strings, mappings, functions and locations as they are first met."""

    def __init__(self, profile: Profile, comments: bool) -> None:
        self.message = pprof_pb2.Profile(time_nanos=profile.time_ns, period=1)
        self.message.duration_nanos = profile.duration_ns
        self._strings: dict[str, int] = {}
        self._mappings: dict[str, int] = {}
        self._functions: dict[tuple[str, FrameKind, str, str], int] = {}
        self._locations = FrameNumbers()
        self._string("")
        for name, unit in SAMPLE_TYPES:
            self.message.sample_type.add(type=self._string(name), unit=self._string(unit))
        self.message.period_type.type = self._string(PERIOD_TYPE[0])
        self.message.period_type.unit = self._string(PERIOD_TYPE[1])
        self.message.default_sample_type = self._string(profile.held_type)
        for sample in profile.samples:
            entry = self.message.sample.add(
                location_id=self._stack(sample.stack), value=sample.values
            )
            for key, text in sample.labels:
                entry.label.add(key=self._string(key), str=self._string(text))
        if comments:
            self.message.comment.extend(map(self._string, pprof_comments.write(profile)))
        self.message.string_table.extend(self._strings)

    def _string(self, text: str) -> int:
        text = valid_utf8(text)
        return self._strings.setdefault(text, len(self._strings))

    def _stack(self, stack: Stack) -> list[int]:
        ids = [number + 1 for number in self._locations.numbers(stack)]
        locations = self.message.location
        for frame in self._locations.frames[len(locations) :]:
            location = locations.add(id=len(locations) + 1, mapping_id=self._mapping(frame))
            location.line.add(function_id=self._function(frame), line=frame.line)
        return ids

    def _mapping(self, frame: Frame) -> int:
        if frame.kind is not FrameKind.NATIVE:
            return 0
        known = self._mappings.get(frame.module)
        if known is None:
            known = self._mappings[frame.module] = len(self._mappings) + 1
            self.message.mapping.add(
                id=known,
                filename=self._string(frame.module),
                has_functions=True,
                has_filenames=True,
                has_line_numbers=True,
            )
        return known

    def _function(self, frame: Frame) -> int:
        key = (frame.name, frame.kind, frame.file, frame.module)
        known = self._functions.get(key)
        if known is None:
            known = self._functions[key] = len(self._functions) + 1
            self.message.function.add(
                id=known,
                name=self._string(frame.name),
                system_name=self._string(_system_name(frame)),
                filename=self._string(frame.file),
            )
        return known


def _system_name(frame: Frame) -> str:
    if frame.kind is FrameKind.PYTHON:
        return ""
    return frame.name if frame.kind is FrameKind.NATIVE else f"note: {frame.name}"
