"""Call-frame information, instruction by instruction, and damaged."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpumemprof.errors import RemoteDataError
from gpumemprof.stack.architecture import X86_64
from gpumemprof.stack.cfi import parse_cie
from gpumemprof.stack.cfi_rows import CfaRule, Cie, Fde, How, Row, Rule, row_at, rows
from gpumemprof.stack.dwarf import Cursor
from gpumemprof.stack.dwarf_expression import MAX_OPERATIONS, evaluate, linear
from gpumemprof.stack.steps import CFA, UnwindEnd, compile_row

RSP, RBP, RIP = 7, 6, 16
USUAL = bytes([0x0C, RSP, 8, 0x80 | RIP, 1])  # CFA is rsp+8, return address at CFA-8


def table(instructions: bytes, initial: bytes = USUAL) -> list[Row]:
    cie = Cie(1, -8, RIP, 0, 0xFF, True, False, initial)
    fde = Fde(cie, 0x1000, 0x1100, instructions)
    return [Row(r.start, r.cfa, dict(r.rules)) for r in rows(fde)]


def test_a_prologue_moves_the_frame_address_and_saves_registers() -> None:
    push_rbp = bytes([0x41, 0x0E, 16, 0x80 | RBP, 2])
    move = bytes([0x43, 0x0D, RBP])
    assert table(push_rbp + move) == [
        Row(0x1000, CfaRule(RSP, 8), {RIP: Rule(How.AT_CFA, -8)}),
        Row(0x1001, CfaRule(RSP, 16), {RIP: Rule(How.AT_CFA, -8), RBP: Rule(How.AT_CFA, -16)}),
        Row(0x1004, CfaRule(RBP, 16), {RIP: Rule(How.AT_CFA, -8), RBP: Rule(How.AT_CFA, -16)}),
    ]


def test_a_remembered_state_comes_back_with_its_frame_address() -> None:
    body = bytes([0x0A, 0x41, 0x0E, 32, 0x80 | RBP, 2, 0x41, 0x0B])
    found = table(body)
    assert found[1].cfa == CfaRule(RSP, 32)
    assert found[2].cfa == found[0].cfa
    assert found[2].rules == found[0].rules


def test_restore_brings_back_what_the_cie_says() -> None:
    assert table(bytes([0x80 | RIP, 5, 0xC0 | RIP, 0x80 | RBP, 2, 0xC0 | RBP]))[0].rules == {
        RIP: Rule(How.AT_CFA, -8)
    }


@pytest.mark.parametrize(
    ("instructions", "rule"),
    [
        (bytes([0x05, RBP, 3]), Rule(How.AT_CFA, -24)),
        (bytes([0x11, RBP, 0x7D]), Rule(How.AT_CFA, 24)),
        (bytes([0x07, RBP]), Rule(How.UNDEFINED)),
        (bytes([0x08, RBP]), Rule(How.SAME)),
        (bytes([0x09, RBP, 12]), Rule(How.REGISTER, 12)),
        (bytes([0x14, RBP, 2]), Rule(How.CFA_PLUS, -16)),
        (bytes([0x15, RBP, 0x7E]), Rule(How.CFA_PLUS, 16)),
        (bytes([0x10, RBP, 2, 0x76, 0]), Rule(How.AT_EXPRESSION, 0, b"\x76\x00")),
        (bytes([0x16, RBP, 2, 0x76, 0]), Rule(How.EXPRESSION, 0, b"\x76\x00")),
        (bytes([0x2F, RBP, 2]), Rule(How.AT_CFA, 16)),
    ],
)
def test_each_kind_of_rule(instructions: bytes, rule: Rule) -> None:
    assert table(instructions)[0].rules[RBP] == rule


@pytest.mark.parametrize(
    "instructions",
    [
        bytes([0x0B]),  # nothing was remembered
        bytes([0x05, 0x80, 0x08, 1]),  # register 1024
        bytes([0x10, 6, 0x81, 0x02]) + bytes(257),  # an expression of 257 bytes
        bytes([0x0A] * 100),
        bytes([0x3F]),  # no such instruction
        bytes([0x0E]),  # cut
        bytes([0x0F, 0xFF, 0xFF, 0x7F]),  # a block larger than what there is
        bytes([0x0F, 1, 0x96, 0x0D, RBP]),  # changes the register of an expression
        bytes([0x0E] + [0x80] * 30),  # a number without end
    ],
)
def test_damaged_instructions_are_refused(instructions: bytes) -> None:
    with pytest.raises(RemoteDataError):
        table(instructions)


@settings(max_examples=500)
@given(st.binary(max_size=80), st.integers(0x1000, 0x10FF))
def test_any_instructions_give_a_step_or_an_error(instructions: bytes, vaddr: int) -> None:
    fde = Fde(Cie(1, -8, RIP, 0x1B, 0xFF, True, False, USUAL), 0x1000, 0x1100, instructions)
    try:
        row = row_at(fde, vaddr)
        compile_row(row, fde.cie, vaddr, X86_64)
    except RemoteDataError:
        pass


@settings(max_examples=500)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_cie_or_an_error(data: bytes) -> None:
    with contextlib.suppress(RemoteDataError):
        parse_cie(bytes(4) + data)


def test_an_unknown_letter_of_the_augmentation_is_stepped_over() -> None:
    data = bytes(4) + b"\x01zRX\x00\x01\x78\x10\x03\x1b\x00\x00" + USUAL
    cie = parse_cie(data)
    assert cie.pointer_encoding == 0x1B
    assert cie.instructions == USUAL


# Expressions


def value(*operations: int, initial: int | None = None) -> int:
    return evaluate(bytes(operations), lambda number: 1000 * number, lambda a, n: a + n, initial)


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ((0x33,), 3),
        ((0x77, 8), 7008),
        ((0x77, 0x78), 6992),  # breg7 -8
        ((0x76, 0x78, 0x06), 5992 + 8),  # the word at rbp-8
        ((0x76, 0, 0x94, 4), 6004),
        ((0x09, 0xFF), 2**64 - 1),
        ((0x0A, 0x34, 0x12), 0x1234),
        ((0x10, 0x80, 0x01), 128),
        ((0x11, 0x7F), 2**64 - 1),
        ((0x35, 0x32, 0x1C), 3),
        ((0x32, 0x35, 0x1C), 2**64 - 3),
        ((0x09, 0xF9, 0x32, 0x1B), 2**64 - 3),  # -7 / 2 is -3
        ((0x37, 0x32, 0x1D), 1),
        ((0x31, 0x34, 0x24), 16),
        ((0x09, 0xF0, 0x32, 0x26), 2**64 - 4),
        ((0x31, 0x08, 64, 0x24), 0),
        ((0x09, 0xFF, 0x31, 0x2D), 1),  # -1 < 1
        ((0x31, 0x32, 0x16), 1),
        ((0x31, 0x32, 0x14), 1),
        ((0x31, 0x32, 0x33, 0x17), 2),
        ((0x31, 0x32, 0x15, 1), 1),
        ((0x31, 0x32, 0x13), 1),
        ((0x31, 0x28, 1, 0, 0x39, 0x33), 3),  # branch taken over lit9
        ((0x30, 0x28, 1, 0, 0x39, 0x33), 3),
        ((0x2F, 1, 0, 0x39, 0x33), 3),
        ((0x35, 0x20), 2**64 - 6),
        ((0x35, 0x1F), 2**64 - 5),
        ((0x09, 0xFB, 0x19), 5),
        ((0x35, 0x23, 10), 15),
    ],
)
def test_each_operation_of_expressions(operations: tuple[int, ...], expected: int) -> None:
    assert value(*operations) == expected


def test_a_rule_of_a_register_starts_with_the_frame_address() -> None:
    assert value(0x23, 16, initial=64) == 80


@pytest.mark.parametrize(
    "operations",
    [
        (),
        (0x22,),
        (0x31, 0x22),
        (0x06,),
        (0x31, 0x30, 0x1B),
        (0x31, 0x30, 0x1D),
        (0x15, 5),
        (0x2F, 0xFD, 0xFF),  # jumps to itself for ever
        (0x2F, 0x00, 0x70),
        (0x31,) * (MAX_OPERATIONS + 1),
        (0x31,) * 70,
        (0xFE,),
        (0x31, 0x94, 3),
        (0x03, 1, 2),
    ],
)
def test_what_is_no_such_expression_is_refused(operations: tuple[int, ...]) -> None:
    with pytest.raises(RemoteDataError):
        value(*operations)


@settings(max_examples=1000)
@given(st.binary(max_size=60))
def test_any_expression_ends(data: bytes) -> None:
    try:
        found = evaluate(data, lambda number: number, lambda address, size: address)
        assert 0 <= found < 2**64
    except RemoteDataError:
        pass
    linear(data, {RIP: 0x1234})


PLT = bytes([0x77, 8, 0x80, 0, 0x3F, 0x1A, 0x3B, 0x2A, 0x33, 0x24, 0x22])


@pytest.mark.parametrize(("pc", "offset"), [(0x1020, 8), (0x102A, 8), (0x102B, 16), (0x102F, 16)])
def test_the_frame_of_a_linkage_stub_depends_on_how_far_it_has_run(pc: int, offset: int) -> None:
    form = linear(PLT, {RIP: pc})
    assert form is not None
    assert (form.register, form.offset, form.inner) == (RSP, offset, None)
    assert evaluate(PLT, {RSP: 5000, RIP: pc}.__getitem__, lambda a, n: 0) == 5000 + offset


def test_the_frame_of_a_function_that_aligns_its_stack_is_read_through_the_frame_pointer() -> None:
    form = linear(bytes([0x76, 0x78, 0x06]), {RIP: 0x1234})
    assert form is not None
    assert (form.register, form.inner, form.offset) == (RBP, -8, 0)


@settings(max_examples=1000)
@given(st.lists(st.sampled_from([
    (0x77, 8), (0x76, 0x70), (0x06,), (0x31,), (0x38,), (0x22,), (0x1C,), (0x23, 5), (0x1A,),
    (0x80, 0), (0x24,), (0x2A,), (0x12,), (0x16,), (0x1E,),
]), max_size=8))  # fmt: skip
def test_a_linear_form_gives_what_evaluating_gives(parts: list[tuple[int, ...]]) -> None:
    expression = bytes(byte for part in parts for byte in part)
    form = linear(expression, {RIP: 0x102B})
    if form is None:
        return
    for base in (0x7000, 0x123456):
        registers = {RSP: base, RBP: base + 0x100, RIP: 0x102B}
        expected = evaluate(expression, registers.__getitem__, lambda a, n: a * 3 + 7)
        number = registers[form.register]
        if form.inner is not None:
            number = (number + form.inner) % 2**64 * 3 + 7
        assert (number + form.offset) % 2**64 == expected


# Steps


def test_the_usual_row_is_one_number() -> None:
    step = compile_row(
        table(bytes([0x0E, 48]))[0], Cie(1, -8, RIP, 0, 0, True, False, b""), 1, X86_64
    )
    assert step.words == 6


def test_a_row_without_return_address_is_the_root() -> None:
    row = table(bytes([0x07, RIP]))[0]
    step = compile_row(row, Cie(1, -8, RIP, 0, 0, True, False, b""), 1, X86_64)
    assert step.end is UnwindEnd.ROOT


def test_saved_registers_stand_relative_to_the_frame_address() -> None:
    row = table(bytes([0x0C, RBP, 16, 0x80 | RBP, 2]))[0]
    step = compile_row(row, Cie(1, -8, RIP, 0, 0, True, False, b""), 1, X86_64)
    place = step.saved[RBP]
    assert not isinstance(place, Rule)
    assert (place.register, place.offset) == (CFA, -16)
    assert (step.words, step.plain, step.base) == (0, True, RBP)


# Numbers


@pytest.mark.parametrize(
    ("data", "unsigned", "signed"),
    [
        (b"\x02", 2, 2),
        (b"\x7f", 127, -1),
        (b"\x80\x01", 128, 128),
        (b"\x80\x7f", 16256, -128),
        (b"\xff" * 9 + b"\x01", 2**64 - 1, -1),
    ],
)
def test_leb128(data: bytes, unsigned: int, signed: int) -> None:
    assert Cursor(data).uleb() == unsigned
    assert Cursor(data).sleb() == signed


@pytest.mark.parametrize(
    ("encoding", "data", "expected"),
    [
        (0x00, (5).to_bytes(8, "little"), 5),
        (0x1B, (-16).to_bytes(4, "little", signed=True), 0x1000 - 16),
        (0x3B, (16).to_bytes(4, "little"), 0x8010),
        (0x12, b"\x34\x12", 0x2234),
        (0x01, b"\x80\x01", 128),
        (0x19, b"\x7f", 0xFFF),
    ],
)
def test_pointer_encodings(encoding: int, data: bytes, expected: int) -> None:
    assert Cursor(data).pointer(encoding, 0x1000, 0x8000) == expected


@pytest.mark.parametrize("encoding", [0x9B, 0x2B, 0x4B, 0x05, 0x0F])
def test_pointer_encodings_that_no_linker_uses_for_code_are_refused(encoding: int) -> None:
    with pytest.raises(RemoteDataError):
        Cursor(bytes(16)).pointer(encoding, 0x1000)
