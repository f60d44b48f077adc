"""On which file system an open file is, without asking the file system."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gpumemprof.errors import ProcessGone, RemoteDataError
from gpumemprof.process import mounts
from gpumemprof.process.mapped_file import open_in_root
from gpumemprof.process.mounts import OpenFile, filesystem_name, inspect, is_fuse

MOUNTINFO = rb"""22 1 8:2 / / rw,relatime shared:1 - ext4 /dev/root rw
23 22 0:21 / /proc rw - proc proc rw
31 22 0:40 / /data\040one rw,relatime master:3 propagate_from:2 - fuse.sshfs host:/x rw,user_id=0
32 22 0:41 / /odd rw - fuse hung rw
2 22 0:42 / /broken
"""


@pytest.mark.parametrize(
    ("mount", "name"),
    [(22, "ext4"), (23, "proc"), (31, "fuse.sshfs"), (32, "fuse"), (3, None), (2, None)],
)
def test_the_type_of_a_mount_is_read_from_mountinfo(
    tmp_path: Path, mount: int, name: str | None
) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/mountinfo").write_bytes(MOUNTINFO)
    assert filesystem_name(7, OpenFile(0, mount, 0, 0), tmp_path) == name


def test_mounts_of_a_process_that_ended_cannot_be_told(tmp_path: Path) -> None:
    with pytest.raises(ProcessGone):
        filesystem_name(7, OpenFile(0, 1, 0, 0), tmp_path)


def test_mounts_without_end_are_refused(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/mountinfo").write_bytes(MOUNTINFO)
    os.truncate(tmp_path / "7/mountinfo", mounts.MAX_MOUNTINFO + 1)
    with pytest.raises(RemoteDataError):
        filesystem_name(7, OpenFile(0, 1, 0, 0), tmp_path)


@pytest.mark.parametrize(
    ("name", "fuse"),
    [("fuse", True), ("fuseblk", True), ("fuse.sshfs", True), ("fusectl", False), ("ext4", False)],
)
def test_fuse_has_several_names(name: str, fuse: bool) -> None:
    assert is_fuse(name) == fuse


def test_what_the_kernel_knows_of_a_file_equals_its_stat(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    for place in (path, tmp_path, Path("/dev/null")):
        fd = os.open(place, os.O_PATH)
        found, status = inspect(fd), os.fstat(fd)
        os.close(fd)
        assert (found.mode, found.device) == (status.st_mode, status.st_dev)
        if stat.S_ISCHR(found.mode):
            assert found.node == status.st_rdev


def test_files_of_this_machine_are_opened_for_strangers_too(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    fd = open_in_root(os.getpid(), str(path), allow_fuse=False)
    assert os.read(fd, 10) == b"x"
    os.close(fd)


def test_a_file_whose_mounts_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "7/root").mkdir(parents=True)
    (tmp_path / "7/root/file").write_text("x")
    (tmp_path / "7/mountinfo").write_bytes(MOUNTINFO)  # of another namespace
    before = len(list(Path("/proc/self/fd").iterdir()))
    on_a_device = os.major((tmp_path / "7").stat().st_dev) != 0
    if not on_a_device:
        with pytest.raises(RemoteDataError, match="cannot be told"):
            open_in_root(7, "/file", proc=tmp_path, allow_fuse=False)
    (tmp_path / "7/mountinfo").unlink()
    with pytest.raises(ProcessGone):
        open_in_root(7, "/file", proc=tmp_path, allow_fuse=False)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_file_on_fuse_is_refused(tmp_path: Path) -> None:
    (tmp_path / "7/root").mkdir(parents=True)
    path = tmp_path / "7/root/file"
    path.write_text("x")
    fd = os.open(path, os.O_PATH)
    mount = inspect(fd).mount
    os.close(fd)
    (tmp_path / "7/mountinfo").write_text(f"{mount} 1 0:40 / / rw - fuse.any server rw\n")
    with pytest.raises(RemoteDataError, match="FUSE"):
        open_in_root(7, "/file", proc=tmp_path, allow_fuse=False)
    fd = open_in_root(7, "/file", proc=tmp_path)
    os.close(fd)
