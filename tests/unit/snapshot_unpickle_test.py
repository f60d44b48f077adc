"""Reading pickles of strangers: plain values come out, and nothing of the file ever runs."""

from __future__ import annotations

import builtins
import copyreg
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumemprof.errors import UsageError
from gpumemprof.snapshot.unpickle import Limits, loads

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    | st.tuples(inner) | st.tuples(inner, inner, inner, inner),
    max_leaves=30,
)  # fmt: skip


@given(PLAIN, st.integers(2, 5))
def test_plain_values_come_back_as_they_were(value: Any, protocol: int) -> None:
    assert loads(pickle.dumps(value, protocol)) == value


class Runs:
    """Pickles as a call of anything."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


class Slotted:
    """Is built from a state."""

    def __init__(self) -> None:
        self.x = 1


def exploits(touched: Path) -> dict[str, bytes]:
    command = f"touch {touched}"
    python = f"open({str(touched)!r}, 'w')"
    call = str(touched).encode()
    return {
        "os.system": pickle.dumps(Runs(os.system, command)),
        "os.system, protocol 2": pickle.dumps(Runs(os.system, command), 2),
        "builtins.eval": pickle.dumps(Runs(eval, python)),
        "builtins.exec": pickle.dumps(Runs(exec, python)),
        "subprocess": pickle.dumps(Runs(subprocess.call, ["touch", str(touched)])),
        "getattr chain": pickle.dumps(Runs(getattr, "x", "upper")),
        "__import__": pickle.dumps(Runs(builtins.__import__, "antigravity")),
        "copyreg": pickle.dumps(Runs(copyreg._reconstructor, Slotted, object, None)),  # type: ignore[attr-defined]
        "an object": pickle.dumps(Slotted()),
        "an object, protocol 2": pickle.dumps(Slotted(), 2),
        "a class": pickle.dumps(Slotted),
        "a function by name only": pickle.dumps(os.system),
        "within a snapshot": pickle.dumps({"segments": [Runs(os.system, command)]}),
        "as a key": pickle.dumps({Runs(os.system, command): 1}),
        "protocol 0": b"cos\nsystem\n(S'touch " + call + b"'\ntR.",
        "INST": b"(S'touch " + call + b"'\nios\nsystem\n.",
        "OBJ": b"(cos\nsystem\nS'touch " + call + b"'\no.",
        "BUILD": b"\x80\x02}}b.",
        "EXT1": b"\x80\x02\x82\x01.",
        "EXT2": b"\x80\x02\x83\x01\x00.",
        "EXT4": b"\x80\x02\x84\x01\x00\x00\x00.",
        "persistent id": b"\x80\x02X\x01\x00\x00\x00aQ.",
        "persistent id as text": b"Pabc\n.",
        "a buffer from outside": b"\x80\x05\x97.",
        "bytes": pickle.dumps(b"\x90" * 10),
        "bytearray": pickle.dumps(bytearray(10), 5),
        "a set": pickle.dumps({1, 2}),
        "a frozenset": pickle.dumps(frozenset((1, 2))),
    }


@pytest.mark.parametrize("name", exploits(Path("/nowhere")))
def test_a_hostile_pickle_is_refused_and_does_not_run(name: str, tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    modules = set(sys.modules)
    with pytest.raises(UsageError, match="refused at byte"):
        loads(exploits(touched)[name])
    assert not touched.exists()
    assert set(sys.modules) == modules


def test_the_refusal_names_the_code_that_would_have_run() -> None:
    with pytest.raises(UsageError, match=r"GLOBAL of posix\.system: it would call code"):
        loads(pickle.dumps(Runs(os.system, "true"), 2))
    with pytest.raises(UsageError, match=r"STACK_GLOBAL of builtins\.eval: it would call code"):
        loads(pickle.dumps(Runs(eval, "1")))


def test_the_refusal_is_safe_to_print() -> None:
    with pytest.raises(UsageError) as refused:
        loads(b"c\x1b[31mos\n\x07system\n.")
    assert str(refused.value).isprintable()


BOMBS: dict[str, tuple[bytes, str]] = {
    "lists in lists": (b"]" * 100_000 + b"a" * 99_999 + b".", "deep"),
    "tuples in tuples": (b")" + b"\x85" * 100_000 + b".", "deep"),
    "dictionaries in dictionaries": (
        b"}" + b"X\x01\x00\x00\x00a}" * 100_000 + b"s" * 100_000 + b".", "deep",
    ),
    "marks": (b"(" * 100_000 + b".", "deep"),
    "a number of 2 GiB": (b"\x8b\xff\xff\xff\x7f.", "a number of"),
    "a number of 200 bytes": (b"\x8a\xc8" + b"\x01" * 200 + b".", "a number of"),
    "a text of 2 GiB": (b"X\xff\xff\xff\x7f.", "a text of"),
    "a text of 2^63 bytes": (b"\x8d" + b"\xff" * 7 + b"\x7f.", "a text of"),
    "a text that is not there": (b"\x8c\x05ab.", "cut off"),
    "a memo far away": (b"]r\xff\xff\xff\xffj\xfe\xff\xff\xff.", "never remembered"),
    "a frame beyond the end": (b"\x80\x04\x95" + b"\xff" * 8 + b"N.", "frame"),
    "a later protocol": (b"\x80\x63N.", "protocol 99"),
    "no end": (b"\x80\x04]", "cut off"),
    "nothing": (b"", "cut off"),
    "more after the end": (b"N.N.", "follow its end"),
    "pop of nothing": (b"0.", "not there"),
    "append to a number": (b"K\x01K\x02a.", "fills a list"),
    "items of a tuple": (b")(K\x01K\x02u.", "fills a dict"),
    "a key without a value": (b"}(X\x01\x00\x00\x00au.", "without a value"),
    "a tuple as a key": (b"})K\x01s.", "as a key"),
    "a list as a key": (b"}]K\x01s.", "as a key"),
    "items from outside the mark": (b"](K\x01ae.", "not there|fills"),
    "two values": (b"NN.", "other than one"),
    "a mark left": (b"N(.", "other than one|not there"),
    "not a pickle": (b"\xff\xd8\xff\xe0 JPEG", "no operation"),
    "text": (b"{\"segments\": []}", "no operation|refused"),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused(name: str) -> None:
    data, why = BOMBS[name]
    with pytest.raises(UsageError, match=why):
        loads(data)


def test_references_that_multiply_stay_references() -> None:
    """Nine levels of ten references each: a billion values if they were copied."""
    nested: Any = []
    for _ in range(9):
        nested = [nested] * 10
    value = loads(pickle.dumps(nested))
    assert len(value) == 10
    assert all(one is value[0] for one in value)


def test_a_value_may_hold_itself() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert loads(pickle.dumps(loop))[0].__class__ is list


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (Limits(operations=50), "more than 50 operations"),
        (Limits(containers=5), "more than 5 containers"),
        (Limits(memo=5), "remembers more than 5"),
        (Limits(text=3), "a text of"),
    ],
)
def test_what_a_file_may_ask_for_is_bounded(limits: Limits, why: str) -> None:
    value = [["text", number, (number, number)] for number in range(1000, 1100)]
    assert loads(pickle.dumps(value)) == value
    with pytest.raises(UsageError, match=why):
        loads(pickle.dumps(value), limits)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        loads(data + b".")
    except UsageError:
        return


@given(st.data())
def test_a_damaged_pickle_is_read_or_refused(data: st.DataObject) -> None:
    good = bytearray(pickle.dumps({"segments": [{"address": 1 << 40, "blocks": [(1, 2.5, None)]}]}))
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        loads(bytes(good))
    except UsageError:
        return


def test_signed_and_large_numbers_are_exact() -> None:
    numbers = [0, 255, 256, 65_535, 65_536, -1, -(1 << 31), (1 << 31) - 1, 1 << 63, -(1 << 63)]
    assert loads(pickle.dumps(numbers)) == numbers
    assert loads(b"J" + struct.pack("<i", -5) + b".") == -5
