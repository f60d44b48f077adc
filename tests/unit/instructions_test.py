"""BPF instructions that are put together and changed here."""

from __future__ import annotations

import struct

from gpumemprof.probe import instructions as do

RETURN_ONE = do.move_value(do.R0, 1) + do.leave()


def decoded(program: bytes) -> list[tuple[int, int, int, int]]:
    """(code, source register, offset, value) of each instruction."""
    return [
        (code, registers >> 4, offset, value)
        for code, registers, offset, value in struct.iter_unpack("<BBhi", program)
    ]


def test_numbers_of_maps_become_descriptors_and_nothing_else_changes() -> None:
    number_in_a_constant = do.load_value(do.R3, 7 << 32 | 7)
    program = do.load_map(do.R1, 7) + number_in_a_constant + do.load_map(do.R2, 8) + do.leave()
    linked = do.with_maps(program, {7: 33, 8: 44})
    assert linked == do.load_map(do.R1, 33) + number_in_a_constant + do.load_map(do.R2, 44) + (
        do.leave()
    )


def test_a_call_leads_to_the_first_instruction_of_its_function() -> None:
    main = do.move(do.R6, do.R1) + do.call(1000) + do.call(do.MAP_LOOKUP) + do.leave()
    assert do.called(main, {1000: "one"}) == [1000]
    program = do.joined([main, RETURN_ONE, RETURN_ONE], {1000: 2})
    code, source, _, distance = decoded(program)[1]
    assert (code, source) == (0x85, 1)  # a call of a function of the same program
    assert 1 + 1 + distance == len(main + RETURN_ONE) // do.SIZE
    assert decoded(program)[2] == (0x85, 0, 0, do.MAP_LOOKUP)


def test_a_function_may_call_back() -> None:
    program = do.joined([RETURN_ONE, do.call(1000) + do.leave()], {1000: 0})
    assert decoded(program)[2][3] == -3


def test_a_cookie_of_64_bits_is_loaded_whole() -> None:
    low, high = decoded(do.load_value(do.R1, 0xFEDC_BA98_7654_3210))
    assert (low[3] & 0xFFFFFFFF, high[3] & 0xFFFFFFFF) == (0x7654_3210, 0xFEDC_BA98)
