"""Code objects of another process are read exactly, and never believed when they changed."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from python_image import ALL_LAYOUTS, CODE_TYPE, Image, layout_id

from gpumemprof.errors import RemoteDataError
from gpumemprof.stack.python import code as code_module
from gpumemprof.stack.python.code import (
    Code,
    CodeReader,
    CodeReusedError,
    NotCodeError,
    fingerprint,
)
from gpumemprof.stack.python.layouts import LAYOUTS, Layout
from gpumemprof.stack.python.memory import MAX_READ

each_version = pytest.mark.parametrize("layout", ALL_LAYOUTS, ids=layout_id)
PY312 = LAYOUTS[3, 12, False]
PY314T = LAYOUTS[3, 14, True]


def read(image: Image, address: int) -> Code:
    seen = fingerprint(image.fingerprint_bytes(address))
    return CodeReader(image, image.layout, CODE_TYPE).read(address, seen)


@each_version
def test_name_file_and_lines_are_read_from_any_version(layout: Layout) -> None:
    image = Image(layout)
    address = image.code(name="Model.forward", file="/srv/model.py", first_line=10, units=5)

    code = read(image, address)

    assert code.name == ("Model.forward" if layout.version >= (3, 11) else "forward")
    assert (code.file, code.first_line) == ("/srv/model.py", 10)
    reader = CodeReader(image, layout, CODE_TYPE)
    assert [reader.line(code, image.instruction(address, unit)) for unit in range(5)] == [
        10,
        11,
        12,
        13,
        14,
    ]


@each_version
@pytest.mark.parametrize(
    "name", ["épure", "функция", "模型", "𝕗𝕠𝕣𝕨𝕒𝕣𝕕", "", "x" * 300, "模" * 1500]
)
def test_names_of_every_width_are_read(layout: Layout, name: str) -> None:
    image = Image(layout)
    assert read(image, image.code(name=name)).name == name


def test_a_name_beyond_the_limit_is_cut_and_shows_it() -> None:
    image = Image(PY312)
    code = read(image, image.code(name="f" * 5000))
    assert code.name == "f" * code_module.MAX_TEXT + "…"


def test_lone_surrogates_do_not_reach_the_profile() -> None:
    image = Image(PY312)
    name = read(image, image.code(name="bad\udc80name")).name
    assert name.encode() and name.startswith("bad")


@each_version
def test_an_object_that_took_the_place_of_another_is_not_named(layout: Layout) -> None:
    image = Image(layout)
    address = image.code(name="first")
    seen_by_kernel = fingerprint(image.fingerprint_bytes(address))
    other = image.code(name="second")
    image.write(address, image.read_some(other, layout.code_header_size))

    with pytest.raises(CodeReusedError):
        CodeReader(image, layout, CODE_TYPE).read(address, seen_by_kernel)


@each_version
def test_what_the_interpreter_changes_while_running_does_not_look_like_reuse(
    layout: Layout,
) -> None:
    image = Image(layout)
    address = image.code()
    before = fingerprint(image.fingerprint_bytes(address))
    image.write(address, struct.pack("<Q", 12345))  # reference count
    image.write(address + layout.code_linetable + 8, b"\x77" * 8)  # caches, monitoring

    assert CodeReader(image, layout, CODE_TYPE).read(address, before).file == "/srv/model.py"


def test_something_that_is_not_code_is_told_from_damage() -> None:
    image = Image(PY312)
    address = image.code()
    image.write(address + PY312.object_type, struct.pack("<Q", CODE_TYPE + 64))
    with pytest.raises(NotCodeError):
        read(image, address)


@pytest.mark.parametrize("address", [0x1000, 0x7F12_3456_0001, 1 << 63, 0x7FFF_FFFF_FFF8])
def test_an_address_without_memory_is_an_error_not_a_crash(address: int) -> None:
    with pytest.raises(RemoteDataError):
        CodeReader(Image(PY312), PY312, CODE_TYPE).read(address, 0)


def test_a_line_table_beyond_the_limit_leaves_the_name_and_no_line() -> None:
    image = Image(PY312)
    address = image.code(table=b"\x80\x00")
    table = struct.unpack("<Q", image.read_some(address + PY312.code_linetable, 8))[0]
    image.write(table + PY312.bytes_size, struct.pack("<Q", code_module.MAX_TABLE + 1))

    code = read(image, address)

    assert (code.name, code.table) == ("Model.forward", None)
    assert CodeReader(image, PY312, CODE_TYPE).line(code, image.instruction(address, 0)) == 0


def test_an_instruction_outside_the_bytecode_has_no_line() -> None:
    image = Image(PY312)
    address = image.code(units=4)
    code = read(image, address)
    reader = CodeReader(image, PY312, CODE_TYPE)
    assert reader.line(code, image.instruction(address, 4)) == 0
    assert reader.line(code, 0) == 0
    assert reader.line(code, image.instruction(address, -1)) == code.first_line


def test_each_thread_of_a_free_threaded_program_has_its_own_bytecode() -> None:
    image = Image(PY314T)
    address = image.code(first_line=10, units=5)
    own_copy = image.place(bytes(10))
    main = address + PY314T.code_bytecode
    array = image.place(struct.pack("<QQQ", 2, main, own_copy))
    image.write(address + PY314T.code_tlbc, struct.pack("<Q", array))
    code = read(image, address)
    reader = CodeReader(image, PY314T, CODE_TYPE)

    assert reader.line(code, main + 6, tlbc_index=0) == 13
    assert reader.line(code, own_copy + 6, tlbc_index=1) == 13
    assert reader.line(code, own_copy + 6, tlbc_index=2) == 0
    assert reader.line(code, own_copy + 600, tlbc_index=1) == 0


def test_a_string_made_by_a_subclass_of_str_is_read() -> None:
    """Its characters are not behind its header but elsewhere."""
    image = Image(PY312)
    address = image.code()
    characters = image.place(b"subclassed")
    text = bytearray(PY312.str_compact_data + 8)
    struct.pack_into("<Q", text, PY312.str_length, 10)
    struct.pack_into("<I", text, PY312.str_state, (1 | 1 << 4) << 2)
    struct.pack_into("<Q", text, PY312.str_compact_data, characters)
    image.write(address + PY312.code_qualname, struct.pack("<Q", image.place(bytes(text))))
    assert read(image, address).name == "subclassed"


def test_the_fingerprint_is_the_one_the_kernel_computes() -> None:
    """The same fold, written out: h = (h ^ word) * K mod 2^64, folded to 32 bits."""
    words = [0, 1, 0xFFFF_FFFF_FFFF_FFFF, 0x0123_4567_89AB_CDEF]
    value = 0xCBF29CE484222325
    for word in words:
        value = (value ^ word) * 0x9E3779B97F4A7C15 % 2**64
    assert fingerprint(struct.pack("<4Q", *words)) == (value >> 32) ^ (value & 0xFFFF_FFFF)


class Bounded:
    """Counts what is read of an image, so that damage cannot make us read without end."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self.bytes_read = 0

    def read_some(self, address: int, size: int) -> bytes:
        assert size <= MAX_READ
        data = self._image.read_some(address, size)
        self.bytes_read += len(data)
        return data


@settings(max_examples=300)
@given(
    layout=st.sampled_from(ALL_LAYOUTS),
    damage=st.lists(
        st.tuples(st.integers(0, 1000), st.binary(min_size=1, max_size=16)), max_size=6
    ),
    instruction=st.integers(0, 2**64 - 1),
    index=st.integers(0, 2**16 - 1),
)
def test_damaged_objects_end_in_a_clear_error_or_an_answer(
    layout: Layout, damage: list[tuple[int, bytes]], instruction: int, index: int
) -> None:
    image = Image(layout)
    address = image.code()
    for offset, data in damage:
        image.write(image.base + offset % len(image.data), data)
    memory = Bounded(image)
    reader = CodeReader(memory, layout)
    try:
        code = reader.read(address, 0)
    except RemoteDataError:
        return
    assert len(code.name) <= code_module.MAX_TEXT + 1
    assert reader.line(code, instruction, index) >= 0
    assert reader.line(code, image.instruction(address, 1), index) >= 0
    assert memory.bytes_read < 64 << 10
