"""Where bcc is looked for, and what is said when it is not there. No root, no bcc."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpumemprof.errors import ProbeError
from gpumemprof.probe.bcc import find_module


def module(root: Path, *files: str) -> Path:
    directory = root / "dist-packages" / "bcc"
    directory.mkdir(parents=True)
    for name in files:
        (directory / name).touch()
    return directory


@pytest.fixture(autouse=True)
def not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUMEMPROF_BCC", raising=False)


def test_the_distribution_s_module_is_found_without_being_importable(tmp_path: Path) -> None:
    directory = module(tmp_path, "__init__.py", "libbcc.py")
    assert find_module((str(tmp_path),)) == directory
    assert "bcc" not in sys.modules


def test_without_it_the_package_to_install_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match=r"bcc is not installed; install .*python3-bpfcc"):
        find_module((str(tmp_path),))


def test_the_package_of_that_name_on_pypi_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = module(tmp_path, "__init__.py")
    monkeypatch.syspath_prepend(str(other.parent))
    with pytest.raises(ProbeError, match=r"is another program \(PyPI's\); install .*python3-bpfcc"):
        find_module((str(tmp_path),))


def test_another_directory_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = module(tmp_path, "__init__.py", "libbcc.py")
    monkeypatch.setenv("GPUMEMPROF_BCC", str(directory))
    assert find_module(()) == directory
    monkeypatch.setenv("GPUMEMPROF_BCC", str(tmp_path))
    with pytest.raises(ProbeError, match="there is no bcc in"):
        find_module(())
