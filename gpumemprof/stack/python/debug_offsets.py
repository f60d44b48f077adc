"""The offsets that CPython 3.13 and later publishes about itself, ``_Py_DebugOffsets``.

They stand at the start of ``_PyRuntime`` (ELF section ``.PyRuntime``): a cookie, the version as
``PY_VERSION_HEX``, a flag for free-threaded builds, then groups of u64 offsets. Which groups
and fields there are depends on the version, so each version has its own list here, from its
``pycore_debug_offsets.h`` (3.13: ``pycore_runtime.h``).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpumemprof.errors import RemoteDataError
from gpumemprof.stack.python.layouts import ABSENT, Layout, layout_for

COOKIE = b"xdebugpy"
MAX_SIZE = 4096
"""Enough bytes for the offsets of every known version."""

MAX_FRAME_SIZE = 128  # of bpf/events.h
MAX_FINGERPRINT = 128  # of bpf/events.h
MAX_CODE_HEADER = 1024

_CANDIDATE = 0xC  # release level in PY_VERSION_HEX: candidates keep the final's structures
_HEADER = struct.Struct("<8sQQ")

_RUNTIME = "runtime_state: size finalizing interpreters_head"
_TYPES = """
pyobject: size ob_type
type_object: size tp_name tp_repr tp_flags
"""
_INTERPRETER_3_14 = """
interpreter_state: size id next threads_head threads_main gc imports_modules sysdict builtins
    ceval_gil gil_runtime_state gil_runtime_state_enabled gil_runtime_state_locked
    gil_runtime_state_holder code_object_generation tlbc_generation
"""
_FRAME_3_14 = """
interpreter_frame: size previous executable instr_ptr localsplus owner stackpointer tlbc_index
code_object: size filename name qualname linetable firstlineno argcount localsplusnames
    localspluskinds co_code_adaptive co_tlbc
"""
_CONTAINERS_3_14 = """
tuple_object: size ob_item ob_size
list_object: size ob_item ob_size
set_object: size used table mask
dict_object: size ma_keys ma_values
float_object: size ob_fval
long_object: size lv_tag ob_digit
bytes_object: size ob_size ob_sval
"""

_GROUPS: Mapping[tuple[int, int], str] = {
    (3, 13): f"""
{_RUNTIME}
interpreter_state: size id next threads_head gc imports_modules sysdict builtins ceval_gil
    gil_runtime_state gil_runtime_state_enabled gil_runtime_state_locked gil_runtime_state_holder
thread_state: size prev next interp current_frame thread_id native_thread_id datastack_chunk status
interpreter_frame: size previous executable instr_ptr localsplus owner
code_object: size filename name qualname linetable firstlineno argcount localsplusnames
    localspluskinds co_code_adaptive
{_TYPES}
tuple_object: size ob_item ob_size
list_object: size ob_item ob_size
dict_object: size ma_keys ma_values
float_object: size ob_fval
long_object: size lv_tag ob_digit
bytes_object: size ob_size ob_sval
unicode_object: size state length asciiobject_size
""",
    (3, 14): f"""
{_RUNTIME}
{_INTERPRETER_3_14}
thread_state: size prev next interp current_frame thread_id native_thread_id datastack_chunk status
{_FRAME_3_14}
{_TYPES}
{_CONTAINERS_3_14}
unicode_object: size state length asciiobject_size
""",
    (3, 15): f"""
{_RUNTIME}
{_INTERPRETER_3_14}
thread_state: size prev next interp current_frame base_frame last_profiled_frame
    last_profiled_frame_seq thread_id native_thread_id datastack_chunk status holds_gil
    gil_requested current_exception exc_state
err_stackitem: exc_value
{_FRAME_3_14}
{_TYPES} tp_basicsize tp_dictoffset
heap_type_object: size ht_cached_keys
{_CONTAINERS_3_14}
unicode_object: size state length asciiobject_size compactunicodeobject_size
""",
}

_TO_LAYOUT: Mapping[str, str] = {
    "runtime_interpreters_head": "runtime_state.interpreters_head",
    "interp_next": "interpreter_state.next",
    "interp_threads": "interpreter_state.threads_head",
    "tstate_next": "thread_state.next",
    "tstate_thread_id": "thread_state.thread_id",
    "tstate_frame": "thread_state.current_frame",
    "frame_code": "interpreter_frame.executable",
    "frame_previous": "interpreter_frame.previous",
    "frame_instruction": "interpreter_frame.instr_ptr",
    "frame_owner": "interpreter_frame.owner",
    "frame_tlbc_index": "interpreter_frame.tlbc_index",
    "object_type": "pyobject.ob_type",
    "code_firstlineno": "code_object.firstlineno",
    "code_filename": "code_object.filename",
    "code_name": "code_object.name",
    "code_qualname": "code_object.qualname",
    "code_linetable": "code_object.linetable",
    "code_bytecode": "code_object.co_code_adaptive",
    "code_tlbc": "code_object.co_tlbc",
    "str_length": "unicode_object.length",
    "str_state": "unicode_object.state",
    "str_ascii_data": "unicode_object.asciiobject_size",
    "str_compact_data": "unicode_object.compactunicodeobject_size",
    "bytes_size": "bytes_object.ob_size",
    "bytes_data": "bytes_object.ob_sval",
}
_ONLY_FREE_THREADED = ("frame_tlbc_index", "code_tlbc")  # published as 0 by the other builds


def _field_names(groups: str) -> tuple[str, ...]:
    names: list[str] = []
    group = ""
    for word in groups.split():
        if word.endswith(":"):
            group = word[:-1]
        else:
            names.append(f"{group}.{word}")
    return tuple(names)


@dataclass(frozen=True, slots=True)
class DebugOffsets:
    """What an interpreter says of itself: its version and the offsets by ``group.field``."""

    version_hex: int
    free_threaded: bool
    offsets: Mapping[str, int]

    @property
    def version(self) -> tuple[int, int]:
        """Major and minor."""
        return version_of(self.version_hex)


def version_of(version_hex: int) -> tuple[int, int]:
    """Major and minor version of a ``PY_VERSION_HEX``."""
    return version_hex >> 24 & 0xFF, version_hex >> 16 & 0xFF


def decode(data: bytes) -> DebugOffsets | None:
    """Decode the bytes at the start of ``_PyRuntime``; at least ``MAX_SIZE`` if there are as many.

    Returns None where there is no cookie: before 3.13, or the data of a process whose
    ``_PyRuntime`` is not yet filled. Raises RemoteDataError for a version that is not known
    here, a prerelease, or data that is cut short.
    """
    if len(data) < _HEADER.size or data[:8] != COOKIE:
        return None
    _, version_hex, free_threaded = _HEADER.unpack_from(data)
    if version_hex > 0xFFFFFFFF or free_threaded > 1:
        raise RemoteDataError("the interpreter's table of offsets is damaged")
    major, minor = version_of(version_hex)
    groups = _GROUPS.get((major, minor))
    if groups is None:
        raise RemoteDataError(f"Python {major}.{minor} is not known to this version of gpumemprof")
    if version_hex >> 4 & 0xF < _CANDIDATE:
        raise RemoteDataError(f"this is a prerelease of Python {major}.{minor}: layout not known")
    names = _field_names(groups)
    if len(data) < _HEADER.size + 8 * len(names):
        raise RemoteDataError("the interpreter's table of offsets is cut short")
    values = struct.unpack_from(f"<{len(names)}Q", data, _HEADER.size)
    return DebugOffsets(version_hex, bool(free_threaded), dict(zip(names, values, strict=True)))


def layout_from(published: DebugOffsets) -> Layout:
    """The layout an interpreter publishes, completed from the table where it is silent.

    Raises RemoteDataError for offsets that cannot be true.
    """
    known = layout_for(published.version, published.free_threaded)
    if known is None:
        raise RemoteDataError(f"Python {published.version} has no layout here")
    changes: dict[str, Any] = {}
    for name, field in _TO_LAYOUT.items():
        if name in _ONLY_FREE_THREADED and not published.free_threaded:
            continue
        value = published.offsets.get(field)
        if value is None or (name in _ONLY_FREE_THREADED and value == 0):
            continue
        if value >= ABSENT:
            raise RemoteDataError(f"the interpreter publishes {field} at {value}")
        changes[name] = value
    layout = replace(known, **changes)
    if not _possible(layout):
        raise RemoteDataError("the interpreter publishes offsets that cannot be")
    return layout


def _possible(layout: Layout) -> bool:
    strings = (layout.code_filename, layout.code_name, layout.code_qualname, layout.object_type)
    return (
        layout.frame_size <= MAX_FRAME_SIZE
        and 0 < layout.fingerprint_length <= MAX_FINGERPRINT
        and layout.fingerprint_length % 8 == 0
        and layout.code_header_size <= MAX_CODE_HEADER
        and max(strings) + 8 <= layout.code_header_size
    )
