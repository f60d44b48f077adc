"""Symbolised frames: what a stack is once addresses have names. Pure values."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias


class FrameKind(enum.Enum):
    """Where a frame's code comes from."""

    PYTHON = "python"
    NATIVE = "native"
    NOTE = "note"
    """Not code: a sentence in brackets that stands for what is not known,
    such as ``[unwind failed: no CFI]`` or ``[before attach]``."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One function activation.

    ``name``: qualified Python name, demangled native name, ``libfoo.so+0x1234`` where
    there is no symbol, or a note in brackets.
    ``file``: Python source file; for native frames the source file if known, else "".
    ``line``: executing line, 0 if unknown.
    ``module``: path of the mapped object of a native frame as the process sees it, else "".
    """

    name: str
    kind: FrameKind = FrameKind.NATIVE
    file: str = ""
    line: int = 0
    module: str = ""

    @classmethod
    def note(cls, text: str) -> Frame:
        """A frame that says what is not known; ``text`` without the brackets."""
        return cls(name=f"[{text}]", kind=FrameKind.NOTE)


Stack: TypeAlias = "tuple[Frame, ...]"
"""Frames from the leaf (innermost, the hooked call) to the root, as in pprof."""
