"""What to call a program: by its command line, since a process's own name can be anything (PyTorch
calls every process of its ``pt_main_thread``)."""

from __future__ import annotations

import re
from collections.abc import Sequence

MAX_NAME = 64
_INTERPRETER = re.compile(r"(?:python|pypy)[\d.]*t?")
_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})
"""Python's options whose value is the next argument."""


def program_name(command: str, comm: str) -> str:
    """The name of the file that is run: of a Python script or module rather than of Python.

    ``command``: its arguments separated by spaces. ``comm``: the process's own name, for one whose
    command line tells nothing.

    >>> program_name("/usr/bin/python3 -u /srv/train.py --lr 1", "pt_main_thread")
    'train.py'
    >>> program_name("python3.12 -m vllm.entrypoints.openai.api_server --model x", "python3.12")
    'vllm.entrypoints.openai.api_server'
    >>> program_name("ray::Trainer.step", "ray::Trainer.st")
    'ray::Trainer.step'
    """
    arguments = command.split()
    if not arguments:
        return _clean(comm)
    name = arguments[0].rpartition("/")[2]
    if _INTERPRETER.fullmatch(name):
        name = _script(arguments) or name
    return _clean(name) or _clean(comm)


def _script(arguments: Sequence[str]) -> str:
    rest = iter(arguments[1:])
    for argument in rest:
        if argument == "-m":
            return next(rest, "")
        if argument in {"-c", "-"}:
            return ""
        if argument in _WITH_VALUE:
            next(rest, "")
        elif not argument.startswith("-"):
            return argument.rpartition("/")[2]
    return ""


def _clean(name: str) -> str:
    shown = "".join(letter if letter.isprintable() else "?" for letter in name.strip())
    return shown[:MAX_NAME]
