"""Stacks seen before are recognised, and only those."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_programs import VARIANTS, Captured, build_stacks, capture

from gpumemprof.stack.unwind import FileCache, ProcessImage, UnwindEnd, Unwinder

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_stacks(tmp_path_factory.mktemp("stacks"), VARIANTS["gcc -O2"])


@pytest.fixture(scope="module")
def image_and_captures(program: Path):  # type: ignore[no-untyped-def]
    """Stacks of one process: three equal ones, then one whose frame of variable size differs."""
    with capture(program, "repeat") as first:
        captures = [first]
        for _ in range(3):
            captures.append(captures[-1].next())
        yield ProcessImage(first.pid, FileCache()), captures


def test_an_equal_stack_is_the_same_object(image_and_captures) -> None:  # type: ignore[no-untyped-def]
    image, captures = image_and_captures
    unwinder = Unwinder(image)
    stacks = [unwinder.unwind(c.registers, c.window) for c in captures]
    assert stacks[0] is stacks[1] is stacks[2]
    assert unwinder.memo_hits == 2
    assert stacks[3] is not stacks[0]  # called from elsewhere, with another size of alloca
    assert stacks[3].pcs != stacks[0].pcs


def test_a_stack_at_another_address_is_recognised(image_and_captures) -> None:  # type: ignore[no-untyped-def]
    """Threads run the same code on stacks of their own."""
    image, captures = image_and_captures
    unwinder = Unwinder(image)
    first = unwinder.unwind(captures[0].registers, captures[0].window)
    moved = _moved(captures[0], 0x7000)
    again = unwinder.unwind(moved.registers, moved.window)
    assert again is first
    assert unwinder.memo_hits == 1


def _moved(captured: Captured, distance: int) -> Captured:
    """The same stack at another address: every word that points into it moves along."""
    registers = captured.registers
    low, high = registers.sp, registers.sp + len(captured.window)

    def move(value: int) -> int:
        return value + distance if low <= value <= high else value

    words = struct.unpack(f"<{len(captured.window) // 8}Q", captured.window)
    return Captured(
        captured.pid,
        registers._replace(**{name: move(getattr(registers, name)) for name in ("sp", "bp", "bx")}),
        struct.pack(f"<{len(words)}Q", *map(move, words)),
        captured.process,
    )


def test_nothing_is_recognised_once_a_mapping_went_away(image_and_captures) -> None:  # type: ignore[no-untyped-def]
    image, captures = image_and_captures
    own = ProcessImage(image.pid, FileCache())
    unwinder = Unwinder(own)
    assert unwinder.unwind(captures[0].registers, captures[0].window).end is UnwindEnd.ROOT
    own.refresh(type(own.maps)(tuple(m for m in own.maps.mappings if "libc" not in m.path)))
    stack = unwinder.unwind(captures[1].registers, captures[1].window)
    assert stack.end is UnwindEnd.NO_MAPPING
    assert unwinder.memo_hits == 0


KINDS = ["variable", "aligned", "recursion", "libc", "asm", "signal", "chain"]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_recognising_gives_what_unwinding_gives_whatever_changes_on_the_stack(
    program: Path, kind: str, data: st.DataObject
) -> None:
    """Words are changed at will, above all those that matter; with and without the memory of
    earlier stacks the result is the same."""
    image, original = _captured(program, kind)
    remembering, plain = Unwinder(image), Unwinder(image, memo=False)
    known = remembering.unwind(original.registers, original.window)
    count = len(original.window) // 8
    telling = sorted(
        {slot // 8 for slot in known.return_slots}
        | {slot // 8 for slot, _ in known.frame_pointer_slots}
    )
    values = st.one_of(
        st.sampled_from(known.pcs),
        st.integers(0, count + 2).map(lambda word: original.registers.sp + 8 * word),
        st.integers(0, 2**64 - 1),
        st.just(0),
    )
    for _ in range(4):
        words = list(struct.unpack(f"<{count}Q", original.window))
        changes = st.lists(
            st.tuples(st.one_of(st.sampled_from(telling), st.integers(0, count - 1)), values),
            max_size=3,
        )
        for place, value in data.draw(changes):
            words[place] = value
        size = data.draw(st.one_of(st.just(count), st.integers(0, count)))
        window = struct.pack(f"<{size}Q", *words[:size])
        registers = original.registers
        if data.draw(st.booleans()):
            registers = registers._replace(bp=data.draw(values), bx=data.draw(values))
        expected = plain.unwind(registers, window)
        for _ in range(2):
            found = remembering.unwind(registers, window)
            assert (found.pcs, found.return_slots, found.bases, found.end, found.exact) == (
                expected.pcs,
                expected.return_slots,
                expected.bases,
                expected.end,
                expected.exact,
            )


_open: dict[str, tuple[ProcessImage, Captured]] = {}


def _captured(program: Path, kind: str) -> tuple[ProcessImage, Captured]:
    """One stack of each kind for all examples; its process ended, its files are still open."""
    if kind not in _open:
        with capture(program, kind) as captured:
            image = ProcessImage(captured.pid, FileCache())
            Unwinder(image).unwind(captured.registers, captured.window)
            _open[kind] = (image, captured)
    return _open[kind]
