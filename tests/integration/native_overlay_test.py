"""One image layer in two containers is one file."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpumemprof.process.file_key import FileKey, real_file_key
from gpumemprof.process.maps import Mapping
from gpumemprof.stack.code_files import FileCache

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root"),
]


@pytest.fixture
def containers(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Two overlay mounts above one layer that holds lib.so."""
    layer = tmp_path / "layer"
    layer.mkdir()
    (layer / "lib.so").write_bytes(Path("/bin/true").read_bytes())
    mounts = []
    for name in ("one", "two"):
        for part in ("upper", "work", "root"):
            (tmp_path / name / part).mkdir(parents=True)
        root = tmp_path / name / "root"
        options = (
            f"lowerdir={layer},upperdir={tmp_path}/{name}/upper,workdir={tmp_path}/{name}/work"
        )
        command = ["mount", "-t", "overlay", name, "-o", options, root]
        if subprocess.run(command, check=False).returncode != 0:
            pytest.skip("overlayfs cannot be mounted here")
        mounts.append(root)
    yield mounts[0], mounts[1]
    for root in mounts:
        subprocess.run(["umount", root], check=True)


def key(path: Path) -> FileKey:
    fd = os.open(path, os.O_RDONLY)
    try:
        return real_file_key(fd)
    finally:
        os.close(fd)


def test_a_file_of_a_shared_layer_has_one_key_in_both(containers: tuple[Path, Path]) -> None:
    one, two = (root / "lib.so" for root in containers)
    assert one.stat().st_dev != two.stat().st_dev
    assert key(one) == key(two)


def test_a_file_that_one_container_changed_has_a_key_of_its_own(
    containers: tuple[Path, Path],
) -> None:
    one, two = (root / "lib.so" for root in containers)
    before = key(two)
    with one.open("r+b") as file:
        file.write(b"\x7fELF")  # the same bytes, in a copy of its own
    assert key(one) != before
    assert key(two) == before


def test_it_is_opened_once(containers: tuple[Path, Path]) -> None:
    files = FileCache()
    opened = []
    for root in containers:
        path = root / "lib.so"
        status = path.stat()
        mapping = Mapping(1, 2, 0, status.st_dev, status.st_ino, str(path), "r-xp", False)
        opened.append(files.mapped(os.getpid(), mapping))
    assert opened[0] is opened[1]
    assert opened[0].elf is not None
    for file in opened:
        files.release(file)
        file.close()  # or the mounts stay busy
