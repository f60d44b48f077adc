"""Fetches Debian's packages for the virtual machines, beside the machine's own apt.

Everything lands under build/kernels; nothing is installed. Needs apt and Debian's archive keyring.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

SUITES = ("bullseye", "bookworm", "bookworm-backports", "trixie", "trixie-backports", "sid")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class NotAtHand(Exception):
    """Something this test needs cannot be had here; the text says what."""


class Archive:
    """Debian's archive, with lists of packages of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory.resolve()

    def kernel_package(self, series: str) -> str:
        """The package that holds the newest kernel image of a series such as "6.12"."""
        found = self._apt(
            "apt-cache", "search", "--names-only",
            rf"^linux-(image|binary)-{re.escape(series)}\.[0-9.]+([-+].*)?-cloud-amd64$",
        ).split("\n")  # fmt: skip
        names = [line.split()[0] for line in found if line]
        if not names:
            raise NotAtHand(f"Debian's archive has no kernel {series} any more")
        # Newer kernels keep the image apart, and linux-image is empty.
        binaries = [name for name in names if name.startswith("linux-binary-")]
        return max(binaries or names, key=_version_key)

    def fetch(self, package: str, into: Path) -> Path:
        """Downloads one package, without what it depends on."""
        into.mkdir(parents=True, exist_ok=True)
        self._apt("apt-get", "-qq", "download", package, cwd=into)
        return max(into.glob(f"{package}_*.deb"))

    def fetch_all(self, packages: Sequence[str], suite: str) -> list[Path]:
        """Downloads packages of a suite and all that they depend on."""
        debs = self._directory / f"debs-{suite}"
        shutil.rmtree(debs, ignore_errors=True)
        (debs / "partial").mkdir(parents=True)
        self._apt(
            "apt-get", "install", "-qq", "-y", "--no-install-recommends", "--download-only",
            "-t", suite, "-o", f"Dir::Cache::archives={debs}", *packages,
        )  # fmt: skip
        return sorted(debs.glob("*.deb"))

    def _apt(self, *command: str, cwd: Path | None = None) -> str:
        environment = {**os.environ, "APT_CONFIG": str(self._configuration()), "LC_ALL": "C"}
        done = subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise NotAtHand(f"{' '.join(command[:3])}: {done.stderr.strip()[-500:]}")
        return done.stdout

    def _configuration(self) -> Path:
        """apt's configuration; the first time it also fetches the lists of packages."""
        path = self._directory / "apt.conf"
        if path.exists():
            return path
        if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
            raise NotAtHand("no apt here: the kernels and the system come as Debian packages")
        if not KEYRING.exists():
            raise NotAtHand(f"{KEYRING} is missing (package debian-archive-keyring)")
        for part in ("state/lists/partial", "cache/archives/partial"):
            (self._directory / part).mkdir(parents=True, exist_ok=True)
        (self._directory / "state/status").touch()
        sources = self._directory / "sources.list"
        sources.write_text(
            "".join(f"deb [signed-by={KEYRING}] {_mirror()} {suite} main\n" for suite in SUITES)
        )
        new = path.with_suffix(".new")
        new.write_text(
            f'Dir::Etc::sourcelist "{sources}";\n'
            'Dir::Etc::sourceparts "/nonexistent";\n'
            f'Dir::State "{self._directory / "state"}";\n'
            f'Dir::State::status "{self._directory / "state/status"}";\n'
            f'Dir::Cache "{self._directory / "cache"}";\n'
            'APT::Architecture "amd64";\n'
            'APT::Sandbox::User "root";\n'
            'Acquire::Languages "none";\n'
        )
        done = subprocess.run(
            ["apt-get", "-qq", "update"],
            env={**os.environ, "APT_CONFIG": str(new)}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise NotAtHand(f"Debian's archive cannot be reached: {done.stderr.strip()[-500:]}")
        return new.rename(path)


def _mirror() -> str:
    """The mirror that this machine's apt uses. Ubuntu's archive has none of these kernels."""
    uris = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)"],
        capture_output=True, text=True, check=False,
    ).stdout.split()  # fmt: skip
    for uri in uris:
        if re.search(r"/debian/*$", uri):
            return uri
    raise NotAtHand("this machine's apt has no mirror of Debian")


def _version_key(name: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", name)]
