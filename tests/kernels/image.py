"""What a virtual machine boots: a Debian kernel, a small system around Debian's python3, and this
checkout. The first two are kept in build/kernels, the last is put together anew each time."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.kernels.archive import Archive, NotAtHand
from tests.kernels.newc import Cpio

CHECKOUT = Path(__file__).parents[2]
CACHE = CHECKOUT / "build" / "kernels"
FAKES = CHECKOUT / "build" / "fakes"
SYSTEM_SUITE = "bookworm"
SYSTEM_PACKAGES = ("python3.11", "libbpf1")
BCC_PACKAGES = ("python3-bpfcc",)
PYTHON = "3.11"
"""The suite's."""

GUEST_CHECKOUT = "gpumemprof-checkout"
GUEST_SITE = "site"
_LEFT_OUT = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/lintian",
             "usr/share/info", "var")  # fmt: skip


def archive() -> Archive:
    """Debian's archive, as build/kernels knows it."""
    return Archive(CACHE / "apt")


def is_at_hand(series: str) -> bool:
    """Whether nothing needs to be fetched to boot this kernel."""
    return bool(_kernels(series)) and _system_path().exists()


def _kernels(series: str) -> list[Path]:
    return sorted((CACHE / "linux" / series).glob("vmlinuz-*"))


def kernel(series: str) -> Path:
    """The image of the newest Debian kernel of a series, fetched if it is not there."""
    directory = CACHE / "linux" / series
    found = _kernels(series)
    if found:
        return found[-1]
    source = archive()
    deb = source.fetch(source.kernel_package(series), directory)
    unpacked = directory / "unpacked"
    _unpack(deb, unpacked, "*/vmlinuz*")  # in /boot, and since 7.2 beside its modules
    (image,) = (path for path in unpacked.rglob("vmlinuz*") if path.is_file())
    release = deb.name.split("_")[0].split("-", 2)[2]
    image = image.rename(directory / f"vmlinuz-{release}")
    shutil.rmtree(unpacked)
    deb.unlink()
    return image


def _unpack(deb: Path, into: Path, *members: str) -> None:
    into.mkdir(parents=True, exist_ok=True)
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE) as packed:
        unpacked = subprocess.run(
            ["tar", "-x", "--no-same-owner", "--keep-directory-symlink", "-C", into,
             "--wildcards", *members],
            stdin=packed.stdout, check=False,
        )  # fmt: skip
    if packed.returncode or unpacked.returncode:
        raise NotAtHand(f"{deb.name} cannot be unpacked: remove it and try again")


def _dependencies() -> list[str]:
    """What pyproject.toml names."""
    needed = importlib.metadata.requires("gpumemprof") or []
    return [line for line in needed if "extra ==" not in line]


def _system_path() -> Path:
    """Named by what is in it, so that it is made again when that changes."""
    told = "\n".join([SYSTEM_SUITE, *SYSTEM_PACKAGES, *_dependencies()])
    return CACHE / f"system-{hashlib.sha256(told.encode()).hexdigest()[:12]}.cpio"


def system() -> Path:
    """A cpio archive with Debian's python3, libbpf, and what gpumemprof depends on."""
    path = _system_path()
    if path.exists():
        return path
    for old_archive in CACHE.glob("system-*.cpio"):
        old_archive.unlink()
    root, site = CACHE / "root", CACHE / "site"
    for old in (root, site):
        shutil.rmtree(old, ignore_errors=True)
    _merged(root)
    for deb in archive().fetch_all(SYSTEM_PACKAGES, SYSTEM_SUITE):
        _unpack(deb, root, ".")
    for name in _LEFT_OUT:
        shutil.rmtree(root / name, ignore_errors=True)
    _install_dependencies(site)
    _compile(root / f"usr/lib/python{PYTHON}", f"/usr/lib/python{PYTHON}", hashed=True)
    _compile(site, f"/{GUEST_SITE}", hashed=True)
    new = path.with_suffix(".new")
    with Cpio(new) as cpio:
        cpio.tree(root)
        cpio.tree(site, GUEST_SITE)
        for name in ("dev", "proc", "sys", "tmp", "out"):
            cpio.directory(name)
        cpio.character_device("dev/console", 5, 1)
    return new.rename(path)


def _merged(root: Path) -> None:
    """The directories of programs and libraries, as Debian has them."""
    for name in ("lib", "lib64", "bin", "sbin"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")


def _install_dependencies(site: Path) -> None:
    """For the machine's Python and not for this one."""
    command: list[str | Path] = [
        sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
        "--target", site, "--no-compile", "--only-binary", ":all:", "--python-version", PYTHON,
        "--implementation", "cp", "--abi", f"cp{PYTHON.replace('.', '')}", "--abi", "abi3",
        "--abi", "none", "--platform", "manylinux2014_x86_64", "--platform", "any",
        *_dependencies(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotAtHand(f"pip: {done.stderr.strip()[-500:]}")


def _compile(directory: Path, inside: str, *, hashed: bool = False) -> None:
    """Compiles Python sources with the machine's Python: emulated, that would take long."""
    libraries = CACHE / "root/usr/lib/x86_64-linux-gnu"
    subprocess.run(
        [libraries / "ld-linux-x86-64.so.2", "--library-path", libraries,
         CACHE / f"root/usr/bin/python{PYTHON}", "-E", "-s", "-S", "-m", "compileall", "-q",
         "-x", "lib2to3/tests|test/", "-s", directory, "-p", inside,
         *(["--invalidation-mode", "unchecked-hash"] if hashed else []), directory],
        check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={"PYTHONHOME": str(CACHE / "root/usr")},
    )  # fmt: skip


def checkout(plan: object) -> Path:
    """A cpio archive with this package, the stand-ins, the script that runs in there, and what it
    is to do."""
    staged = CACHE / "checkout"
    shutil.rmtree(staged, ignore_errors=True)
    shutil.copytree(
        CHECKOUT / "gpumemprof", staged / "gpumemprof",
        ignore=shutil.ignore_patterns("__pycache__"),
    )  # fmt: skip
    if not (staged / "gpumemprof/probe/gpumemprof.bpf.o").exists():
        raise NotAtHand("the BPF object is not built: make build")
    _compile(staged / "gpumemprof", f"/{GUEST_CHECKOUT}/gpumemprof")
    if not (FAKES / "driver_loop").exists():
        raise NotAtHand("the stand-in libraries are not built: make fakes")
    (staged / "plan.json").write_text(json.dumps(plan))
    path = CACHE / "checkout.cpio"
    with Cpio(path) as cpio:
        cpio.tree(staged, GUEST_CHECKOUT)
        cpio.tree(FAKES, f"{GUEST_CHECKOUT}/build/fakes")
        here = Path(__file__).parent
        cpio.file(here / "guest.py", "init")
        cpio.file(here / "attach_cost.py", f"{GUEST_CHECKOUT}/attach_cost.py")
    return path


def compiler() -> Path:
    """A cpio archive with bcc and what it needs beyond ``system``."""
    path = CACHE / "bcc.cpio"
    if path.exists():
        return path
    root, base = CACHE / "bcc", CACHE / "root"
    shutil.rmtree(root, ignore_errors=True)
    _merged(root)
    for deb in archive().fetch_all(BCC_PACKAGES, SYSTEM_SUITE):
        if not deb.name.startswith(("python3.", "libpython3")):
            _unpack(deb, root, ".")
    for name in _LEFT_OUT:
        shutil.rmtree(root / name, ignore_errors=True)
    for file in list(root.rglob("*")):
        if not file.is_dir() and os.path.lexists(base / file.relative_to(root)):
            file.unlink()  # it is in the other archive
    _compile(root / "usr/lib/python3/dist-packages", "/usr/lib/python3/dist-packages")
    new = path.with_suffix(".new")
    with Cpio(new) as cpio:
        cpio.tree(root)
    return new.rename(path)


def initial_file_system(plan: object, *, bcc: bool) -> Path:
    """The archives in one file: the kernel unpacks one after the other."""
    path = CACHE / "initrd.cpio"
    parts = [system(), *([compiler()] if bcc else ()), checkout(plan)]
    with path.open("wb") as file:
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, file, 1 << 20)
    return path
