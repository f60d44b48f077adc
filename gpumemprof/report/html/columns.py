"""Stacks as columns of numbers: equal texts, functions, frames and stack prefixes once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpumemprof.profile.merge import label
from gpumemprof.profile.model import TYPE_NAMES, Labels, Sample, Values
from gpumemprof.profile.numbering import FrameNumbers
from gpumemprof.profile.text import printable, short_path, valid_utf8
from gpumemprof.report.functions import is_cuda, owner_index
from gpumemprof.report.html.origins import origin
from gpumemprof.stack.frames import Frame, FrameKind, Stack

MAX_TEXT = 1_000
"""Characters of a name or path; of a longer one the middle is left out."""

_NO_STACK = (Frame.note("no stack"),)


def clean(text: str) -> str:
    """``text`` of a profiled program, fit to be shown: printable and not endless."""
    if len(text) > MAX_TEXT:
        text = f"{text[: MAX_TEXT // 2]}…{text[-MAX_TEXT // 2 :]}"
    return valid_utf8(printable(text))


class Columns:
    """Collects samples, frames and labels; ``as_json`` gives their part of the data."""

    def __init__(self) -> None:
        self._strings: dict[str, int] = {"": 0}
        self._numbers = FrameNumbers()
        self._functions: dict[tuple[object, ...], int] = {}
        self._frames: list[tuple[int, int]] = []
        self._function_rows: list[tuple[int, int, int, int, int]] = []
        self._nodes: dict[tuple[int, int], int] = {}
        self._paths: dict[int, list[int]] = {}
        self._kept: list[Stack] = []
        self._labels: dict[Labels, int] = {}
        self._samples: list[tuple[int, int, int]] = []
        self._values: list[Values] = []
        self._before: list[Values] = []

    def add(self, sample: Sample, *, before: bool = False) -> None:
        """A sample of the profile, or of the one it is compared with."""
        stack = sample.stack or _NO_STACK
        path = self.path(stack)
        owner = owner_index(stack) or 0
        self._samples.append((path[owner], path[0], self.labels(sample.labels)))
        self._values.append(Values() if before else sample.values)
        self._before.append(sample.values if before else Values())

    def labels(self, labels: Labels) -> int:
        """The row of a set of labels."""
        return self._labels.setdefault(labels, len(self._labels))

    def path(self, stack: Stack) -> list[int]:
        """The nodes of a stack, from the leaf to the root as its frames are."""
        known = self._paths.get(id(stack))
        if known is not None:
            return known
        node = -1
        path = []
        for frame in reversed(stack or _NO_STACK):
            number = self._numbers.number(frame)
            if number == len(self._frames):
                self._frames.append((self._function(frame), max(frame.line, 0)))
            node = self._nodes.setdefault((node, number), len(self._nodes))
            path.append(node)
        path.reverse()
        self._paths[id(stack)] = path
        self._kept.append(stack)  # so that no identity is used again
        return path

    def as_json(self, *, compared: bool) -> dict[str, Any]:
        """The columns; with those of the profile before if ``compared``."""
        names, files, modules, origins, cuda = _transposed(self._function_rows, 5)
        functions, lines = _transposed(self._frames, 2)
        owners, nodes, labels = _transposed(self._samples, 3)
        parents, frames = _transposed(list(self._nodes), 2)
        columns: dict[str, Any] = {
            "functions": {
                "name": names,
                "file": files,
                "module": modules,
                "origin": origins,
                "cuda": cuda,
            },
            "frames": {"function": functions, "line": lines},
            "nodes": {
                "up": [n - parent if parent >= 0 else 0 for n, parent in enumerate(parents)],
                "frame": frames,
            },
            "labels": self._label_columns(),
            "samples": {
                "node": nodes,
                "owner": owners,
                "labels": labels,
                "values": _transposed(self._values, len(TYPE_NAMES)),
            },
        }
        if compared:
            columns["before"] = _transposed(self._before, len(TYPE_NAMES))
        columns["strings"] = list(self._strings)
        return columns

    def _function(self, frame: Frame) -> int:
        """As the terminal tells functions apart: by kind, name, file and module, not by line."""
        key = (frame.kind, frame.name, frame.file, frame.module)
        known = self._functions.setdefault(key, len(self._functions))
        if known == len(self._function_rows):
            file = short_path(frame.file) if frame.kind is FrameKind.PYTHON else frame.file
            self._function_rows.append(
                (
                    self._string(frame.name or "[no name]"),
                    self._string(file),
                    self._string(frame.module),
                    origin(frame),
                    int(is_cuda(frame)),
                )
            )
        return known

    def _string(self, text: str) -> int:
        return self._strings.setdefault(clean(text), len(self._strings))

    def _label_columns(self) -> dict[str, list[int]]:
        return {
            name: [self._string(read(labels)) for labels in self._labels]
            for name, read in _LABELS.items()
        }


def _transposed(rows: Sequence[Sequence[int]], width: int) -> list[list[int]]:
    return [[row[column] for row in rows] for column in range(width)]


def process_of(labels: Labels) -> str:
    """``python (4242)``; with the node's name where there are several machines."""
    comm, pid, node = (label(labels, name) or "" for name in ("comm", "pid", "node"))
    name = " ".join(filter(None, (comm, f"({pid})" if pid else "")))
    return f"{name} on {node}" if name and node else name


def pod_of(labels: Labels) -> str:
    """``namespace/pod/container``, as far as known."""
    parts = (label(labels, name) for name in ("namespace", "pod", "container"))
    return "/".join(part for part in parts if part)


def device_of(labels: Labels) -> str:
    """``GPU 3`` as the node counts where that is known, else ``device 0`` as the process does."""
    gpu, node = label(labels, "gpu"), label(labels, "node")
    if gpu:
        return f"GPU {gpu} of {node}" if node else f"GPU {gpu}"
    device = label(labels, "device")
    return f"device {device}" if device else ""


_LABELS: dict[str, Callable[[Labels], str]] = {
    "process": process_of,
    "pod": pod_of,
    "device": device_of,
    "kind": lambda labels: label(labels, "kind") or "device",
    "call": lambda labels: label(labels, "call") or "",
}
