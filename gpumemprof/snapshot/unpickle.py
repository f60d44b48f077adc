"""A pickle reader that only ever makes plain values: no code of a file runs, whatever it holds.

It is an interpreter of its own for the part of the pickle language that data without classes
needs: None, booleans, whole and floating numbers, text, lists, tuples and dictionaries with text
as keys. Everything that names code or objects (GLOBAL, REDUCE, BUILD, INST, OBJ, NEWOBJ, EXT,
persistent ids, buffers) is refused with the operation's name and place; so are the text forms of
protocol 0, bytes and sets, which no snapshot has.

Format: the operations of protocols 2 to 5 as Python's pickletools documents them.
"""

from __future__ import annotations

import gc
import pickletools
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpumemprof.errors import UsageError
from gpumemprof.profile.text import printable


@dataclass(frozen=True, slots=True)
class Limits:
    """What a file may ask for. ``operations``: of the pickle; ``text``: bytes of one string;
    ``number``: bytes of one whole number; ``depth``: containers inside each other; ``memo``:
    values remembered; ``containers``: lists, tuples and dictionaries."""

    operations: int = 80_000_000
    text: int = 16 << 20
    number: int = 16
    depth: int = 100
    memo: int = 40_000_000
    containers: int = 20_000_000


_NAMES = {ord(op.code): op.name for op in pickletools.opcodes}
_FORBIDDEN = {
    name: why
    for why, names in {
        "it would call code": "GLOBAL STACK_GLOBAL REDUCE BUILD INST OBJ NEWOBJ NEWOBJ_EX "
        "EXT1 EXT2 EXT4",
        "it would ask for an object from outside": "PERSID BINPERSID NEXT_BUFFER READONLY_BUFFER",
        "snapshots have no such values": "BYTEARRAY8 BINBYTES SHORT_BINBYTES BINBYTES8 BINSTRING "
        "SHORT_BINSTRING STRING UNICODE INT LONG FLOAT GET PUT EMPTY_SET ADDITEMS FROZENSET DICT "
        "LIST",
    }.items()
    for name in names.split()
}


def loads(data: bytes, limits: Limits = Limits()) -> Any:
    """The value that ``data`` pickles.

    Raises UsageError, with what and where, for everything else: operations that would run code or
    are not needed, damaged or cut data, and whatever exceeds ``limits``. Lists and dictionaries
    may hold themselves (a pickle can say so): do not follow them without an end."""
    enabled = gc.isenabled()
    gc.disable()  # millions of containers, none of them garbage
    try:
        machine = _Machine(data, limits)
        value = machine.run()
        machine.check_depth(value)
        return value
    finally:
        if enabled:
            gc.enable()


class _Machine:
    def __init__(self, data: bytes, limits: Limits) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.limits = limits
        self.containers = limits.containers
        self.operations = limits.operations

    def run(self) -> Any:
        for _ in range(self.limits.operations):
            self.fast()
            if self.operations <= 0:
                raise self.too_many()
            if self.at >= len(self.data):
                raise self.refusal("it is cut off")
            code = self.data[self.at]
            self.at += 1
            if code == _STOP:
                break
            action = _ACTIONS.get(code)
            if action is None:
                raise self._forbidden(code)
            action(self)
        else:
            raise self.too_many()
        if len(self.stack) != 1 or self.marks:
            raise self.refusal("it is damaged: it ends with other than one value")
        if self.at != len(self.data):
            raise self.refusal(f"{len(self.data) - self.at:,} bytes follow its end")
        return self.stack[0]

    def fast(self) -> None:
        """The few operations that most of a snapshot is made of, without a call for each: on to
        the first other one, or one that has to be refused (``_ACTIONS`` then says why)."""
        data, at, stack, memo = self.data, self.at, self.stack, self.memo
        last = len(data) - 5  # what is read here has at most four bytes after its own
        left, number = self.operations, self.limits.number
        push, from_bytes = stack.append, int.from_bytes
        while at < last and left > 0:
            code = data[at]
            left -= 1
            if code == 0x68 and data[at + 1] in memo:  # BINGET
                push(memo[data[at + 1]])
                at += 2
            elif code == 0x4B:  # BININT1
                push(data[at + 1])
                at += 2
            elif code == 0x4A:  # BININT
                push(from_bytes(data[at + 1 : at + 5], "little", signed=True))
                at += 5
            elif code == 0x4D:  # BININT2
                push(data[at + 1] | data[at + 2] << 8)
                at += 3
            elif code == 0x8A and data[at + 1] <= number and at + 2 + data[at + 1] <= last:  # LONG1
                end = at + 2 + data[at + 1]
                push(from_bytes(data[at + 2 : end], "little", signed=True))
                at = end
            elif code == 0x6A:  # LONG_BINGET
                index = from_bytes(data[at + 1 : at + 5], "little")
                if index not in memo:
                    break
                push(memo[index])
                at += 5
            else:
                break
        self.at, self.operations = at, left

    def too_many(self) -> UsageError:
        return self.refusal(f"it has more than {self.limits.operations:,} operations")

    def refusal(self, why: str) -> UsageError:
        return UsageError(f"the pickle is refused at byte {self.at:,}: {why}")

    def _forbidden(self, code: int) -> UsageError:
        self.at -= 1
        name = _NAMES.get(code)
        if name is None:
            return self.refusal(f"0x{code:02x} is no operation: it is damaged, or no pickle")
        what = f"operation {name}{self._target(name)}"
        return self.refusal(f"{what}: {_FORBIDDEN.get(name, 'snapshots do not need it')}")

    def _target(self, name: str) -> str:
        """What code a forbidden operation names, for the message."""
        if name in ("GLOBAL", "INST"):
            lines = self.data[self.at + 1 : self.at + 200].split(b"\n")[:2]
            return " of " + printable(".".join(line.decode("utf-8", "replace") for line in lines))
        if name == "STACK_GLOBAL" and len(self.stack) >= 2:
            parts = self.stack[-2:]
            if all(isinstance(part, str) for part in parts):
                return " of " + printable(".".join(part[:80] for part in parts))
        return ""

    def take(self, count: int) -> bytes:
        piece = self.data[self.at : self.at + count]
        if len(piece) < count:
            raise self.refusal("it is cut off")
        self.at += count
        return piece

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def pop(self) -> Any:
        floor = self.marks[-1] if self.marks else 0
        if len(self.stack) <= floor:
            raise self.refusal("it is damaged: it takes a value that is not there")
        return self.stack.pop()

    def items(self) -> list[Any]:
        """What was pushed since the last mark; the mark goes."""
        if not self.marks:
            raise self.refusal("it is damaged: a container that was not begun")
        start = self.marks.pop()
        found = self.stack[start:]
        del self.stack[start:]
        return found

    def top(self, kind: type) -> Any:
        floor = self.marks[-1] if self.marks else 0
        if len(self.stack) <= floor or type(self.stack[-1]) is not kind:
            raise self.refusal(f"it is damaged: it fills a {kind.__name__} that is none")
        return self.stack[-1]

    def remember(self, index: int) -> None:
        if not self.stack:
            raise self.refusal("it is damaged: it remembers a value that is not there")
        if len(self.memo) >= self.limits.memo:
            raise self.refusal(f"it remembers more than {self.limits.memo:,} values")
        self.memo[index] = self.stack[-1]

    def recall(self, index: int) -> None:
        if index not in self.memo:
            raise self.refusal("it is damaged: it recalls a value that it never remembered")
        self.stack.append(self.memo[index])

    def text(self, size: int) -> None:
        if size > self.limits.text:
            raise self.refusal(f"a text of {size:,} bytes, more than {self.limits.text:,}")
        self.stack.append(self.take(size).decode("utf-8", "replace"))

    def long(self, size: int) -> None:
        if size > self.limits.number:
            raise self.refusal(f"a number of {size:,} bytes, more than {self.limits.number}")
        self.stack.append(int.from_bytes(self.take(size), "little", signed=True))

    def mark(self) -> None:
        if len(self.marks) >= self.limits.depth:
            raise self.refusal(f"containers more than {self.limits.depth} deep")
        self.marks.append(len(self.stack))

    def container(self, value: Any) -> None:
        """Push a new list, tuple or dictionary."""
        if self.containers <= 0:
            raise self.refusal(f"it has more than {self.limits.containers:,} containers")
        self.containers -= 1
        self.stack.append(value)

    def duplicate(self) -> None:
        value = self.pop()
        self.stack += (value, value)

    def append(self, values: list[Any]) -> None:
        self.top(list).extend(values)

    def set_items(self, values: list[Any]) -> None:
        target = self.top(dict)
        if len(values) % 2:
            raise self.refusal("it is damaged: a key without a value")
        for key in values[::2]:
            if type(key) is not str:
                raise self.refusal(f"a {type(key).__name__} as a key")
        target.update(zip(values[::2], values[1::2], strict=True))

    def push_float(self) -> None:
        self.stack.append(struct.unpack(">d", self.take(8))[0])

    def frame(self) -> None:
        if self.number(8) > len(self.data) - self.at:
            raise self.refusal("it is cut off: a frame reaches beyond its end")

    def protocol(self) -> None:
        version = self.number(1)
        if version > 5:
            raise self.refusal(f"protocol {version} is not known")

    def check_depth(self, value: Any) -> None:
        """Refuse what is nested too deep, level by level: nothing that follows has to recurse."""
        seen: set[int] = set()
        level = [value]
        for _ in range(self.limits.depth + 1):
            below: list[Any] = []
            for one in level:
                if type(one) in _CONTAINERS and id(one) not in seen:
                    seen.add(id(one))
                    below.extend(one.values() if type(one) is dict else one)
            if not below:
                return
            level = below
        raise self.refusal(f"containers more than {self.limits.depth} deep")

    def drop(self) -> None:
        self.pop()

    def pop_mark(self) -> None:
        self.items()


_STOP = ord(".")
_CONTAINERS = (list, dict, tuple)


def _push(value: Any) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(value)


_ACTIONS: dict[int, Callable[[_Machine], None]] = {
    ord(code): action
    for code, action in {
        "\x80": _Machine.protocol,
        "\x95": _Machine.frame,
        "(": _Machine.mark,
        "0": _Machine.drop,
        "1": _Machine.pop_mark,
        "N": _push(None),
        "\x88": _push(True),
        "\x89": _push(False),
        "J": lambda m: m.stack.append(struct.unpack("<i", m.take(4))[0]),
        "K": lambda m: m.stack.append(m.number(1)),
        "M": lambda m: m.stack.append(m.number(2)),
        "\x8a": lambda m: m.long(m.number(1)),
        "\x8b": lambda m: m.long(m.number(4)),
        "G": _Machine.push_float,
        "\x8c": lambda m: m.text(m.number(1)),
        "X": lambda m: m.text(m.number(4)),
        "\x8d": lambda m: m.text(m.number(8)),
        "]": lambda m: m.container([]),
        "}": lambda m: m.container({}),
        ")": lambda m: m.container(()),
        "\x85": lambda m: m.container((m.pop(),)),
        "\x86": lambda m: m.container((*[m.pop(), m.pop()][::-1],)),
        "\x87": lambda m: m.container((*[m.pop(), m.pop(), m.pop()][::-1],)),
        "t": lambda m: m.container(tuple(m.items())),
        "a": lambda m: m.append([m.pop()]),
        "e": lambda m: m.append(m.items()),
        "s": lambda m: m.set_items([m.pop(), m.pop()][::-1]),
        "u": lambda m: m.set_items(m.items()),
        "\x94": lambda m: m.remember(len(m.memo)),
        "q": lambda m: m.remember(m.number(1)),
        "r": lambda m: m.remember(m.number(4)),
        "h": lambda m: m.recall(m.number(1)),
        "j": lambda m: m.recall(m.number(4)),
        "2": _Machine.duplicate,
    }.items()
}
"""Operation → what it does. What is not here is refused."""
