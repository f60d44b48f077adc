"""Objects out of streams of JSON, however the network cuts them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumemprof.errors import RemoteDataError
from gpumemprof.kube.json_stream import MAX_SKELETON_BYTES, ObjectList, Piece, lines

UID = "c1a7ac8b-1c3e-4a6d-9f5e-0123456789ab"

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(st.text(), values, max_size=4)


def cut(data: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


def a_list(items: list[Any], **metadata: Any) -> bytes:
    whole = {"kind": "PodList", "metadata": {"resourceVersion": "42", **metadata}, "items": items}
    return json.dumps(whole, ensure_ascii=False).encode("utf-8", "surrogatepass")


@given(st.lists(objects, max_size=5), st.integers(1, 50), st.booleans())
def test_a_list_is_read_one_object_at_a_time(
    items: list[dict[str, Any]], size: int, ascii_only: bool
) -> None:
    text = json.dumps(
        {"metadata": {"resourceVersion": "42", "x": [1]}, "items": items}, ensure_ascii=ascii_only
    )
    found = ObjectList(cut(text.encode("utf-8", "replace"), size))
    assert len([piece.json() for piece in found]) == len(items)
    assert found.resource_version == "42"
    if ascii_only:
        again = ObjectList(cut(text.encode(), size))
        assert [piece.json() for piece in again] == items


def test_what_is_before_or_after_the_objects_does_not_matter() -> None:
    text = b'{"items": [ {"a": "]}\\"{"} , {"b": []} ], "metadata": {"resourceVersion": "7"}}'
    found = ObjectList([text])
    assert [piece.json() for piece in found] == [{"a": ']}"{'}, {"b": []}]
    assert found.resource_version == "7"


def test_an_empty_list_is_a_list() -> None:
    for items in (b"[]", b"null"):
        found = ObjectList([b'{"metadata":{"resourceVersion":"9"},"items":' + items + b"}"])
        assert list(found) == []
        assert found.resource_version == "9"


@given(st.integers(1, 400))
def test_a_list_that_is_cut_off_is_an_error(left: int) -> None:
    text = a_list([{"name": "a"}, {"name": "b"}])
    with pytest.raises(RemoteDataError):
        list(ObjectList([text[: -min(left, len(text) - 1)]]))


@pytest.mark.parametrize("text", [b"", b"]", b"{}", b"[]", b"<html>", b'{"metadata":{}}', b"{[]}"])
def test_what_is_no_list_is_an_error(text: bytes) -> None:
    with pytest.raises(RemoteDataError):
        list(ObjectList([text]))


@given(st.integers(1, 3000))
def test_an_object_that_is_too_large_is_cut_and_its_neighbours_are_not(size: int) -> None:
    large = {"metadata": {"uid": UID, "labels": {"x": '"}{][' * 2000}}}
    text = a_list([{"first": 1}, large, {"last": 1}])
    first, middle, last = ObjectList(cut(text, size), limit=1000)
    assert (first.json(), last.json()) == ({"first": 1}, {"last": 1})
    assert not middle.whole
    assert middle.uid() == UID
    assert len(middle.data) <= 4096
    with pytest.raises(RemoteDataError, match="more than"):
        middle.json()


def test_a_list_that_is_nothing_but_padding_is_refused() -> None:
    def endless() -> Iterator[bytes]:
        yield b'{"metadata": {"x": "'
        while True:
            yield b"x" * 65_536

    with pytest.raises(RemoteDataError, match="too much"):
        list(ObjectList(endless()))
    assert MAX_SKELETON_BYTES < 1 << 21


def test_lines_come_as_soon_as_they_are_whole() -> None:
    seen: list[str] = []

    def stream() -> Iterator[bytes]:
        yield b'{"a":1}\n{"b'
        seen.append("between")
        yield b'":2}\n\n{"cut off'

    for line in lines(stream()):
        seen.append(line.data.decode())
    assert seen == ['{"a":1}', "between", '{"b":2}']


@given(
    st.lists(st.binary(max_size=20).filter(lambda b: b.strip() and b"\n" not in b)),
    st.integers(1, 9),
)
def test_lines_are_the_same_however_they_are_cut(parts: list[bytes], size: int) -> None:
    text = b"".join(part + b"\n" for part in parts)
    assert [line.data for line in lines(cut(text, size))] == parts


def test_a_line_that_is_too_long_is_cut_and_the_next_is_not() -> None:
    long = f'{{"object":{{"metadata":{{"uid":"{UID}"}},"x":"'.encode() + b"x" * 10_000 + b'"}}'
    first, second = lines(cut(long + b'\n{"ok":1}\n', 777), limit=5000)
    assert (first.whole, first.uid(), len(first.data)) == (False, UID, 4096)
    assert second.json() == {"ok": 1}


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"nul", b"\xff", b"[" * 100_000])
def test_what_is_no_object_is_an_error(data: bytes) -> None:
    with pytest.raises(RemoteDataError):
        Piece(data).json()
