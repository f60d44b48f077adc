"""/proc/PID/maps, and the files behind it."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumemprof.errors import ProcessGone, RemoteDataError
from gpumemprof.process import mapped_file, maps
from gpumemprof.process.mapped_file import open_in_root, open_mapped, read_memory
from gpumemprof.process.maps import Mapping

TEXT = r"""
00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/dbus-daemon
00e24000-011f7000 rw-p 00000000 00:00 0           [heap]
35b1800000-35b1820000 r-xp 00001000 08:02 135522  /usr/lib64/ld-2.15.so (deleted)
7f1234000000-7f1234001000 r-xp 00000000 00:00 0
7f1234002000-7f1234003000 r--s 00000000 00:01 77  /memfd:jit (deleted)
7f1234004000-7f1234005000 r-xp 00000000 103:05 99 /tmp/a name\012with newline \ and blanks
7ffe37ffe000-7ffe38000000 r-xp 00000000 00:00 0   [vdso]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]
"""


def test_lines_become_mappings() -> None:
    found = maps.parse(TEXT)
    assert len(found) == 8
    assert found.mappings[0] == Mapping(
        0x400000, 0x452000, 0, os.makedev(8, 2), 173521, "/usr/bin/dbus-daemon", "r-xp", False
    )
    assert [m.path for m in found.mappings[1:5]] == [
        "[heap]",
        "/usr/lib64/ld-2.15.so",
        "",
        "/memfd:jit",
    ]
    assert [m.deleted for m in found.mappings[1:5]] == [False, True, False, True]
    assert found.mappings[2].offset == 0x1000
    assert found.mappings[5].path == "/tmp/a name\nwith newline \\ and blanks"
    assert found.mappings[5].device == os.makedev(0x103, 5)
    assert [m.executable for m in found.mappings] == [True, False, True, True, False] + [True] * 3
    assert [m.file_backed for m in found.mappings[2:5]] == [True, False, True]


def test_an_address_is_found_in_the_mapping_that_holds_it() -> None:
    found = maps.parse(TEXT)
    assert found.find(0x400000) is found.mappings[0]
    assert found.find(0x451FFF) is found.mappings[0]
    for address in (0, 0x3FFFFF, 0x452000, 0x7F1234001000, 2**64 - 1, 2**70, -1):
        assert found.find(address) is None
    assert found.named("[vdso]") is found.mappings[6]


def test_a_mapping_that_changed_while_the_file_was_read_does_not_overlap() -> None:
    text = "1000-3000 r-xp 0 0:0 0 a\n1000-2000 r-xp 0 0:0 0 b\n3000-4000 r-xp 0 0:0 0 c\n"
    assert [m.path for m in maps.parse(text).mappings] == ["a", "c"]


@pytest.mark.parametrize(
    "line",
    ["nonsense", "1000-2000", "2000-1000 r-xp 0 0:0 0", "1-2 r-xp 0 0:0", "x-2 r-xp 0 0:0 0",
     "1000-20000000000000000 r-xp 0 0:0 0", "1-2 rx 0 0:0 0", "1-2 r-xp -1 0:0 0"],
)  # fmt: skip
def test_a_line_of_another_form_is_an_error(line: str) -> None:
    with pytest.raises(RemoteDataError):
        maps.parse(line)


@given(st.text(max_size=200))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        found = maps.parse(text)
    except RemoteDataError:
        return
    ends = [0, *(m.end for m in found.mappings)]
    assert all(m.start >= end for m, end in zip(found.mappings, ends, strict=False))


def test_this_process_can_be_read() -> None:
    found = maps.read(os.getpid())
    assert found.named("[vdso]") is not None
    assert any(m.path.startswith("/") and m.executable for m in found.mappings)


def test_a_process_that_ended_is_said_to_be_gone() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    with pytest.raises(ProcessGone):
        maps.read(child.pid)
    with pytest.raises(ProcessGone):
        open_in_root(child.pid, "/etc/passwd")
    with pytest.raises(ProcessGone):
        read_memory(child.pid, 0x1000, 8)


def test_a_process_that_was_not_yet_collected_is_gone() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(ProcessGone):
        maps.read(child.pid)
    child.wait()


# Files of a process


def contents(fd: int) -> bytes:
    with os.fdopen(fd, "rb") as file:
        return file.read()


def mapping_of(path: Path, *, deleted: bool = False) -> Mapping:
    """A mapping of the file that is none of this process's, so that only its path is left."""
    status = path.stat()
    return Mapping(1, 2, 0, status.st_dev, status.st_ino, str(path), "r-xp", deleted)


def test_a_mapped_file_is_opened_by_its_path_if_it_is_still_the_same(tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(b"one")
    assert contents(open_mapped(os.getpid(), mapping_of(path))) == b"one"


def test_a_file_that_was_replaced_is_not_taken_for_the_mapped_one(tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(b"one")
    mapping = mapping_of(path)
    other = tmp_path / "new"
    other.write_bytes(b"two")
    other.rename(path)
    with pytest.raises(RemoteDataError, match="no longer the file"):
        open_mapped(os.getpid(), mapping)
    with pytest.raises(RemoteDataError, match="deleted"):
        open_mapped(os.getpid(), mapping_of(path, deleted=True))


def test_every_mapped_library_of_this_process_can_be_opened() -> None:
    opened = 0
    for mapping in maps.read(os.getpid()).mappings:
        if mapping.executable and mapping.file_backed:
            assert contents(open_mapped(os.getpid(), mapping))[:4] == b"\x7fELF"
            opened += 1
    assert opened >= 2


@pytest.fixture(params=["openat2", "one component at a time"])
def root(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, bool]:
    """A directory that stands for the root of a process, and whether links are resolved in it."""
    process = tmp_path / "proc" / "7"
    process.mkdir(parents=True)
    (process / "root").mkdir()
    if request.param != "openat2":
        monkeypatch.setattr(mapped_file, "_SYS_OPENAT2", 9999)
    return tmp_path / "proc", request.param == "openat2"


def test_links_do_not_lead_out_of_the_process_root(root: tuple[Path, bool]) -> None:
    proc, resolves = root
    inside = proc / "7" / "root"
    (proc / "secret").write_text("outside")
    (inside / "secret").write_text("inside")
    (inside / "absolute").symlink_to("/secret")
    (inside / "upwards").symlink_to("../../secret")
    for path in ("/absolute", "/upwards"):
        if resolves:
            assert contents(open_in_root(7, path, proc=proc)) == b"inside"
        else:
            with pytest.raises(RemoteDataError):
                open_in_root(7, path, proc=proc)
    assert contents(open_in_root(7, "/secret", proc=proc)) == b"inside"


def test_dots_do_not_lead_out_of_the_process_root(root: tuple[Path, bool]) -> None:
    proc, _ = root
    (proc / "7" / "root" / "d").mkdir()
    (proc / "secret").write_text("outside")
    with pytest.raises(RemoteDataError):
        open_in_root(7, "/d/../../../secret", proc=proc)


def test_only_regular_files_are_opened(root: tuple[Path, bool]) -> None:
    proc, _ = root
    inside = proc / "7" / "root"
    os.mkfifo(inside / "pipe")
    (inside / "directory").mkdir()
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(inside / "socket"))
    for name in ("pipe", "directory", "socket"):
        with pytest.raises(RemoteDataError, match="not a regular file"):
            open_in_root(7, f"/{name}", proc=proc)
    server.close()


@pytest.mark.parametrize("path", ["/missing", "", "/\0", "/" + "a" * 5000])
def test_a_path_that_cannot_be_opened_is_an_error(root: tuple[Path, bool], path: str) -> None:
    with pytest.raises(RemoteDataError):
        open_in_root(7, path, proc=root[0])


def test_nothing_stays_open_after_an_error(root: tuple[Path, bool]) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for path in ("/missing", "/a/b/c", ""):
        with pytest.raises(RemoteDataError):
            open_in_root(7, path, proc=root[0])
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_memory_of_a_process_is_read_whole_or_not_at_all() -> None:
    vdso = maps.read(os.getpid()).named("[vdso]")
    assert vdso is not None
    assert read_memory(os.getpid(), vdso.start, 4) == b"\x7fELF"
    for address, size in ((0, 8), (vdso.start, 2 << 20), (2**63, 8), (vdso.start, -1)):
        with pytest.raises(RemoteDataError):
            read_memory(os.getpid(), address, size)
