"""From the MODEL that a user names to its architecture: a directory, a config.json, a preset."""

from __future__ import annotations

import difflib
import functools
import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from gpumemprof.errors import UsageError
from gpumemprof.plan import config, safetensors
from gpumemprof.plan.architecture import Architecture
from gpumemprof.profile.text import printable

_GPUS = "gpus.json"


@dataclass(frozen=True, slots=True)
class Model:
    """``source``: where its facts are from. ``checkpoint``: its safetensors, if they were there."""

    name: str
    source: str
    architecture: Architecture
    checkpoint: safetensors.Checkpoint | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """``memory``: bytes that CUDA tells as its total, which is less than what is printed on it."""

    name: str
    memory: int
    source: str


def find(name: str) -> Model:
    """The model in the directory ``name``, in the file ``name``, or the preset of that name (in
    any case, with or without the organisation before it).

    Raises UsageError if there is none, or its config or files are refused."""
    path = Path(name)
    try:
        is_directory, is_file = path.is_dir(), path.is_file()
    except (OSError, ValueError):
        is_directory = is_file = False
    if is_directory:
        found = config.load(path / "config.json")
        return Model(path.resolve().name, str(path / "config.json"), found,
                     safetensors.read_directory(path))  # fmt: skip
    if is_file:
        return Model(path.stem, name, config.load(path))
    presets = _presets()
    known = {_key(preset): preset for preset in presets}
    preset = known.get(_key(name))
    if preset is None:
        near = difflib.get_close_matches(_key(name)[:100], known, n=3, cutoff=0.5)
        hint = f"; did you mean {', '.join(known[key] for key in near)}?" if near else ""
        raise UsageError(
            f"{printable(name[:200])!r} is no directory, no config.json and no known model{hint} "
            "(--list shows those known)"
        )
    entry = presets[preset]
    return Model(preset, entry["source"], config.architecture(entry["config"]))


def presets() -> dict[str, tuple[int, str]]:
    """Name → (parameters as published, source) of each known model."""
    return {name: (entry["parameters"], entry["source"]) for name, entry in _presets().items()}


def gpu(name: str) -> Gpu:
    """The GPU of that name, in any case, spaces as dashes. Raises UsageError if not known."""
    known = {_key(one.name): one for one in gpus()}
    found = known.get(_key(name))
    if found is None:
        raise UsageError(
            f"the GPU {printable(name[:60])!r} is not known "
            f"(known: {', '.join(one.name for one in gpus())}): give --gpu-memory"
        )
    return found


@functools.cache
def gpus() -> tuple[Gpu, ...]:
    """Every known GPU."""
    entries = _read(_GPUS)
    return tuple(
        Gpu(name, round(entry["gib"] * (1 << 30)), entry["source"])
        for name, entry in entries.items()
    )


def _key(name: str) -> str:
    return name.rpartition("/")[2].lower().replace(" ", "-").replace("_", "-").removeprefix("meta-")


@functools.cache
def _presets() -> dict[str, Any]:
    folder = resources.files("gpumemprof.plan") / "presets"
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".json"))
    return {name: entry for file in names if file != _GPUS for name, entry in _read(file).items()}


def _read(name: str) -> dict[str, Any]:
    text = (resources.files("gpumemprof.plan") / "presets" / name).read_text(encoding="utf-8")
    parsed: dict[str, Any] = json.loads(text)
    return parsed
