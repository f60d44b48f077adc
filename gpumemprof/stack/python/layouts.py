"""Where each CPython version keeps what a profiler reads: one table, x86-64.

Every number is checked against the interpreter's own headers by
``tests/integration/python_layouts``. Where the interpreter publishes its offsets itself
(``_Py_DebugOffsets``, 3.13 and later), :mod:`.debug_offsets` replaces these by its own.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, fields

ABSENT = 0xFFFF
"""The offset of a field that a version does not have (as in bpf/events.h)."""


class LineFormat(enum.Enum):
    """How a code object maps instructions to lines."""

    LNOTAB = "lnotab"
    """Up to 3.9: pairs of (bytes of code, signed lines), ``co_lnotab``."""
    LINETABLE = "linetable"
    """3.10, PEP 626: pairs of (bytes of code, signed lines or -128 for none)."""
    LOCATIONS = "locations"
    """3.11 and later, PEP 657: variable-length entries with columns."""


class Position(enum.Enum):
    """What a frame stores to say how far it has run."""

    BYTE_INDEX = "byte index"
    """``f_lasti`` up to 3.9: offset in bytes of the last instruction begun."""
    UNIT_INDEX = "unit index"
    """``f_lasti`` of 3.10: the same, in code units of two bytes."""
    POINTER = "pointer"
    """3.11 and later: address of a code unit of the bytecode."""


class Entry(enum.Enum):
    """How one sees which frames were entered by one call of ``_PyEval_EvalFrameDefault``."""

    EVERY_FRAME = "every frame"
    """Up to 3.10 each Python frame has its own call."""
    FLAG = "is_entry"
    """3.11: the outermost frame of each call is flagged."""
    SHIM = "shim"
    """3.12 and later: each call puts a frame of its own, without code, below its first."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Offsets in bytes within the structures of one version, and the rules that go with them."""

    version: tuple[int, int]
    free_threaded: bool

    runtime_interpreters_head: int
    runtime_current: int
    """The thread state that holds the GIL: up to 3.11 (later it is thread-local)."""
    runtime_tss_key: int
    """``autoTSSkey``: {int initialized; pthread_key_t key}: up to 3.14."""

    interp_next: int
    interp_threads: int
    tstate_next: int
    tstate_thread_id: int
    tstate_frame: int
    """To the innermost frame, or to the ``cframe`` where ``cframe_frame`` is present."""
    cframe_frame: int

    frame_code: int
    frame_previous: int
    frame_instruction: int
    frame_owner: int
    frame_is_entry: int
    frame_tlbc_index: int

    object_type: int
    code_firstlineno: int
    code_filename: int
    code_name: int
    code_qualname: int
    code_linetable: int
    code_tlbc: int
    """Free-threaded 3.14 and later: to the array of each thread's copy of the bytecode."""
    code_bytecode: int
    """Start of the bytecode within the code object: 3.11 and later."""

    str_length: int
    str_state: int
    str_kind_shift: int
    """Bit of the state word where ``kind:3, compact:1, ascii:1`` begin."""
    str_ascii_data: int
    str_compact_data: int
    bytes_size: int
    bytes_data: int

    @property
    def line_format(self) -> LineFormat:
        """How line tables are encoded."""
        if self.version >= (3, 11):
            return LineFormat.LOCATIONS
        return LineFormat.LINETABLE if self.version == (3, 10) else LineFormat.LNOTAB

    @property
    def position(self) -> Position:
        """What ``frame_instruction`` holds."""
        if self.version >= (3, 11):
            return Position.POINTER
        return Position.UNIT_INDEX if self.version == (3, 10) else Position.BYTE_INDEX

    @property
    def entry(self) -> Entry:
        """How calls of the interpreter loop show."""
        if self.version >= (3, 12):
            return Entry.SHIM
        return Entry.FLAG if self.version == (3, 11) else Entry.EVERY_FRAME

    @property
    def first_shim_owner(self) -> int:
        """Frames with this owner or a higher one run no Python code.

        3 has two names: C stack (3.12, 3.13) and interpreter (3.14 and later); 4 is the
        C stack in 3.14. Before 3.12 no frame is of that sort.
        """
        return 3 if self.version >= (3, 12) else 256

    @property
    def code_tag_mask(self) -> int:
        """Low bits of a frame's code pointer that are not part of the address.

        3.14 made it a tagged stack reference; before, the pointer is plain and the mask
        clears bits that are always zero.
        """
        return 0b11

    @property
    def frame_size(self) -> int:
        """Bytes at the start of a frame that hold every field above."""
        fields_and_sizes = (
            (self.frame_code, 8),
            (self.frame_previous, 8),
            (self.frame_instruction, 8),
            (self.frame_owner, 1),
            (self.frame_is_entry, 1),
            (self.frame_tlbc_index, 4),
        )
        ends = [offset + size for offset, size in fields_and_sizes if offset != ABSENT]
        return -(-max(ends) // 8) * 8

    @property
    def variable_size(self) -> int:
        """Number of items of an object of variable size, such as code units (3.11+)."""
        return self.object_type + 8

    @property
    def fingerprint_offset(self) -> int:
        """Start of the part of a code object that tells it from another at its address.

        From the first line number to the line table: set when the object is made and never
        changed (counters, caches and monitoring data lie outside).
        """
        return self.code_firstlineno & ~7

    @property
    def fingerprint_length(self) -> int:
        """Bytes of that part, a multiple of 8."""
        return self.code_linetable + 8 - self.fingerprint_offset

    @property
    def code_header_size(self) -> int:
        """Bytes at the start of a code object that hold every field read of it."""
        size = self.code_linetable + 8
        return size if self.code_tlbc == ABSENT else max(size, self.code_tlbc + 8)


_NO = ABSENT
_COLUMNS = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14", "3.15", "3.13t", "3.14t", "3.15t")
# fmt: off
_TABLE: Mapping[str, tuple[int, ...]] = {
    #                             3.8   3.9  3.10  3.11  3.12  3.13  3.14  3.15 3.13t 3.14t 3.15t
    "runtime_interpreters_head": (32,   32,   32,   40,   40,  632,  808,  936,  632,  808,  936),
    "runtime_current":         (1368,  568,  568,  576,  _NO,  _NO,  _NO,  _NO,  _NO,  _NO,  _NO),
    "runtime_tss_key":         (1392,  584,  584,  592, 1544, 2160, 2336,  _NO, 2160, 2336,  _NO),
    "interp_next":                (0,    0,    0,    0,    0, 7264, 7272, 7264, 7264, 7272, 7264),
    "interp_threads":             (8,    8,    8,   16,   72, 7344, 7344, 7336, 7344, 7344, 7336),
    "tstate_next":                (8,    8,    8,    8,    8,    8,    8,    8,    8,    8,    8),
    "tstate_thread_id":         (176,  176,  176,  152,  136,  152,  152,  176,  152,  152,  176),
    "tstate_frame":              (24,   24,   24,   56,   56,   72,   72,   72,   72,   72,   72),
    "cframe_frame":             (_NO,  _NO,  _NO,    8,    0,  _NO,  _NO,  _NO,  _NO,  _NO,  _NO),
    "frame_code":                (32,   32,   32,   32,    0,    0,    0,    0,    0,    0,    0),
    "frame_previous":            (24,   24,   24,   48,    8,    8,    8,    8,    8,    8,    8),
    "frame_instruction":        (104,  104,   96,   56,   56,   56,   56,   56,   56,   56,   56),
    "frame_owner":              (_NO,  _NO,  _NO,   69,   70,   70,   74,   74,   70,   78,   78),
    "frame_is_entry":           (_NO,  _NO,  _NO,   68,  _NO,  _NO,  _NO,  _NO,  _NO,  _NO,  _NO),
    "frame_tlbc_index":         (_NO,  _NO,  _NO,  _NO,  _NO,  _NO,  _NO,  _NO,  _NO,   72,   72),
    "object_type":                (8,    8,    8,    8,    8,    8,    8,    8,   24,   24,   24),
    "code_firstlineno":          (40,   40,   40,   72,   68,   68,   68,   68,   84,   84,   84),
    "code_filename":            (104,  104,  104,  112,  112,  112,  112,  112,  128,  128,  128),
    "code_name":                (112,  112,  112,  120,  120,  120,  120,  120,  136,  136,  136),
    "code_qualname":            (_NO,  _NO,  _NO,  128,  128,  128,  128,  128,  144,  144,  144),
    "code_linetable":           (120,  120,  120,  136,  136,  136,  136,  136,  152,  152,  152),
    "code_tlbc":                (_NO,  _NO,  _NO,  _NO,  _NO,  _NO,  _NO,  _NO,  _NO,  224,  224),
    "code_bytecode":            (_NO,  _NO,  _NO,  184,  192,  200,  208,  208,  216,  232,  232),
    "str_length":                (16,   16,   16,   16,   16,   16,   16,   16,   32,   32,   32),
    "str_state":                 (32,   32,   32,   32,   32,   32,   32,   32,   48,   48,   48),
    "str_kind_shift":             (2,    2,    2,    2,    2,    2,    2,    2,    2,    8,    8),
    "str_ascii_data":            (48,   48,   48,   48,   40,   40,   40,   40,   56,   56,   56),
    "str_compact_data":          (72,   72,   72,   72,   56,   56,   56,   56,   72,   72,   72),
    "bytes_size":                (16,   16,   16,   16,   16,   16,   16,   16,   32,   32,   32),
    "bytes_data":                (32,   32,   32,   32,   32,   32,   32,   32,   48,   48,   48),
}
# fmt: on


def _column(index: int, label: str) -> Layout:
    major, minor = label.rstrip("t").split(".")
    return Layout(
        version=(int(major), int(minor)),
        free_threaded=label.endswith("t"),
        **{name: row[index] for name, row in _TABLE.items()},
    )


LAYOUTS: Mapping[tuple[int, int, bool], Layout] = {
    (*layout.version, layout.free_threaded): layout
    for layout in (_column(index, label) for index, label in enumerate(_COLUMNS))
}
"""By (major, minor, free-threaded)."""

OFFSETS = tuple(field.name for field in fields(Layout) if field.name in _TABLE)
"""Names of the offsets, in the order of :class:`Layout`."""


def layout_for(version: tuple[int, int], free_threaded: bool = False) -> Layout | None:
    """The layout of a version, or None for one that is not known here."""
    return LAYOUTS.get((*version, free_threaded))
