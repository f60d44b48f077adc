"""Compiles the C programs: with nvcc, or against the stand-in libraries of tests/fakes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"
REPOSITORY = HERE.parent.parent
SECONDS = 120

_STATIC = ("cuda_calls", "cost_loop")
_SHARED = ("cuda_calls", "cuda_ipc", "cost_loop")


def stand_in_libraries() -> Path:
    """Where the stand-ins are; GPU_TEST_FAKES names another place."""
    return Path(os.environ.get("GPU_TEST_FAKES") or REPOSITORY / "build/fakes")


def programs(out: Path, *, stand_ins: bool) -> list[str]:
    """Build into ``out``/bin; what went wrong, one text a program."""
    binaries = out / "bin"
    shutil.rmtree(binaries, ignore_errors=True)
    binaries.mkdir(parents=True)
    commands = _with_stand_ins(binaries) if stand_ins else _with_nvcc(binaries)
    if isinstance(commands, str):
        return [commands]
    problems = []
    for target, command in commands.items():
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=SECONDS, check=False
            )
            if done.returncode:
                problems.append(f"{target.name}: {' '.join(command)}\n{done.stderr.strip()}")
        except (OSError, subprocess.TimeoutExpired) as error:
            problems.append(f"{target.name}: {error}")
    (out / "logs" / "build.log").write_text("\n\n".join(problems))
    return problems


def _with_nvcc(binaries: Path) -> dict[Path, list[str]] | str:
    nvcc = shutil.which("nvcc") or next(
        (str(p) for p in sorted(Path("/usr/local").glob("cuda*/bin/nvcc"))), ""
    )
    if not nvcc:
        return "nvcc was not found: the C programs are not built"
    commands = {}
    for name in _STATIC:
        target = binaries / f"{name}_static"
        commands[target] = [
            nvcc, "-O2", "-cudart", "static", str(PROGRAMS / f"{name}.c"), "-o", str(target),
            "-ldl",
        ]  # fmt: skip
    runtime = _shared_runtime(nvcc)
    for name in _SHARED:
        target = binaries / f"{name}_shared"
        libraries: Sequence[str] = (
            ["-cudart", "none", "-Xlinker", f"{runtime},-rpath,{runtime.parent}"]
            if runtime
            else ["-cudart", "shared"]
        )
        commands[target] = [
            nvcc, "-O2", str(PROGRAMS / f"{name}.c"), *libraries, "-o", str(target), "-ldl",
        ]  # fmt: skip
    return commands


def _shared_runtime(nvcc: str) -> Path | None:
    """The libcudart of nvcc's toolkit, by its soname's file."""
    home = Path(nvcc).resolve().parent.parent
    for place in ("lib64", "targets/x86_64-linux/lib", "lib"):
        found = sorted((home / place).glob("libcudart.so.[0-9]*"), key=lambda p: len(p.name))
        if found:
            return found[0]
    return None


def _with_stand_ins(binaries: Path) -> dict[Path, list[str]] | str:
    prebuilt = os.environ.get("GPU_TEST_BINARIES")
    if prebuilt:
        for file in Path(prebuilt).iterdir():
            shutil.copy2(file, binaries / file.name)
        return {}
    fakes = REPOSITORY / "tests/fakes"
    compiler = shutil.which("cc")
    if not compiler or not fakes.is_dir():
        return "selftest needs a C compiler and tests/fakes, or GPU_TEST_BINARIES"
    base = [compiler, "-std=gnu11", "-O2", "-DSTAND_INS", f"-I{fakes}", "-pthread"]
    commands = {}
    for name in _STATIC:
        # The runtime compiled into the program, as nvcc's static one is.
        commands[binaries / f"{name}_static"] = [
            *base, "-DRUNTIME_VERSION=12090", "-fvisibility=hidden", str(PROGRAMS / f"{name}.c"),
            str(fakes / "runtime.c"), str(fakes / "runtime_exports.c"),
            "-o", str(binaries / f"{name}_static"), "-ldl",
        ]  # fmt: skip
    for name in _SHARED:
        commands[binaries / f"{name}_shared"] = [
            *base, str(PROGRAMS / f"{name}.c"), str(stand_in_libraries() / "libcudart.so.12"),
            "-o", str(binaries / f"{name}_shared"), "-ldl",
        ]  # fmt: skip
    return commands
