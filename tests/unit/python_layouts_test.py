"""Layouts of the versions, and what interpreters publish of themselves."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from python_image import ALL_LAYOUTS, layout_id

from gpumemprof.errors import RemoteDataError
from gpumemprof.stack.python import debug_offsets
from gpumemprof.stack.python.debug_offsets import COOKIE, DebugOffsets, decode, layout_from
from gpumemprof.stack.python.layouts import ABSENT, Layout, layout_for
from gpumemprof.stack.python.target import make_target
from gpumemprof.stack.python.threads import Libc, LibcKind

FINAL = 0xF0
PUBLISHING = [layout for layout in ALL_LAYOUTS if layout.version >= (3, 13)]
publishing = pytest.mark.parametrize("layout", PUBLISHING, ids=layout_id)


def version_hex(layout: Layout, level: int = FINAL) -> int:
    return layout.version[0] << 24 | layout.version[1] << 16 | 2 << 8 | level


def published(layout: Layout, level: int = FINAL, **other: int) -> bytes:
    """The table that an interpreter with this layout publishes."""
    names = debug_offsets._field_names(debug_offsets._GROUPS[layout.version])
    fields = {field: name for name, field in debug_offsets._TO_LAYOUT.items()}
    values = []
    for name in names:
        value = getattr(layout, fields[name]) if name in fields else 0
        values.append(other.get(name.replace(".", "_"), 0 if value == ABSENT else value))
    head = COOKIE + struct.pack("<QQ", version_hex(layout, level), layout.free_threaded)
    return head + struct.pack(f"<{len(values)}Q", *values) + bytes(512)


@publishing
def test_a_published_table_gives_the_layout(layout: Layout) -> None:
    offsets = decode(published(layout))
    assert offsets is not None
    assert layout_from(offsets) == layout


@publishing
def test_what_the_interpreter_says_wins_over_our_table(layout: Layout) -> None:
    """A distribution may have patched its structures."""
    offsets = decode(published(layout, interpreter_state_threads_head=7400))
    assert offsets is not None
    assert layout_from(offsets) == replace(layout, interp_threads=7400)


@publishing
def test_a_candidate_is_accepted_and_an_earlier_prerelease_is_not(layout: Layout) -> None:
    assert decode(published(layout, level=0xC1)) is not None
    with pytest.raises(RemoteDataError, match="prerelease"):
        decode(published(layout, level=0xA5))


def test_data_without_the_cookie_publish_nothing() -> None:
    assert decode(bytes(4096)) is None
    assert decode(b"") is None


def test_a_version_from_the_future_is_refused_by_name() -> None:
    with pytest.raises(RemoteDataError, match=r"Python 3\.99 is not known"):
        decode(COOKIE + struct.pack("<QQ", 0x036300F0, 0) + bytes(4000))


@publishing
@pytest.mark.parametrize("length", [24, 100, 200])
def test_a_table_cut_short_is_refused(layout: Layout, length: int) -> None:
    with pytest.raises(RemoteDataError, match="cut short"):
        decode(published(layout)[:length])


@pytest.mark.parametrize(
    "field",
    ["code_object_linetable", "code_object_firstlineno", "interpreter_frame_instr_ptr"],
)
@pytest.mark.parametrize("value", [5000, 0x10000, 2**64 - 1])
def test_offsets_that_cannot_be_are_refused(field: str, value: int) -> None:
    layout = PUBLISHING[0]
    offsets = decode(published(layout, **{field: value}))
    assert offsets is not None
    with pytest.raises(RemoteDataError):
        layout_from(offsets)


@given(data=st.binary(max_size=64), words=st.lists(st.integers(0, 2**64 - 1), max_size=120))
def test_any_bytes_after_a_cookie_give_a_sound_layout_or_a_clear_error(
    data: bytes, words: list[int]
) -> None:
    table = (
        COOKIE + struct.pack("<QQ", 0x030E00F0, 0) + data + struct.pack(f"<{len(words)}Q", *words)
    )
    try:
        offsets = decode(table)
        assert offsets is not None
        layout = layout_from(offsets)
    except RemoteDataError:
        return
    assert_fits_the_kernel(layout)


@pytest.mark.parametrize("layout", ALL_LAYOUTS, ids=layout_id)
def test_every_layout_fits_what_the_kernel_reads(layout: Layout) -> None:
    assert_fits_the_kernel(layout)


def assert_fits_the_kernel(layout: Layout) -> None:
    assert layout.frame_size <= 128
    assert layout.frame_size % 8 == 0
    assert 0 < layout.fingerprint_length <= 128
    assert layout.fingerprint_length % 8 == 0
    assert layout.fingerprint_offset + layout.fingerprint_length <= layout.code_header_size


@pytest.mark.parametrize("layout", ALL_LAYOUTS, ids=layout_id)
def test_the_kernel_is_told_addresses_of_the_process(layout: Layout) -> None:
    target = make_target(layout, 0x5000_0000, Libc(LibcKind.GLIBC, 0x310), tls_offset=-40)
    assert target.interp_head_addr == 0x5000_0000 + layout.runtime_interpreters_head
    assert (target.tss_key_addr == 0) == (layout.version >= (3, 15))
    assert (target.current_addr == 0) == (layout.version >= (3, 12))
    assert target.instruction_is_int == (layout.version <= (3, 10))
    assert (target.libc, target.pthread_specific, target.tls_offset) == (0, 0x310, -40)


def test_versions_that_are_not_known_have_no_layout() -> None:
    assert layout_for((3, 7)) is None
    assert layout_for((2, 7)) is None
    assert layout_for((3, 12), free_threaded=True) is None
    with pytest.raises(RemoteDataError):
        layout_from(DebugOffsets(0x030C00F0, True, {}))
