"""Renders deploy/manifests/gpumemprof.yaml, for those without helm: `make manifests`."""

from __future__ import annotations

import re

from tests.chart.helm_tool import CHART, MAJORS, REPOSITORY, NoHelm, helm_binary
from tests.chart.rendering import helm

MANIFEST = REPOSITORY / "deploy" / "manifests" / "gpumemprof.yaml"
NAMESPACE = "gpumemprof"

_HEAD = f"""\
# Rendered from helm/gpumemprof by `make manifests`. Set the image in kustomization.yaml.
apiVersion: v1
kind: Namespace
metadata:
  name: {NAMESPACE}
  labels:
    # hostPID, and BPF: no lower level admits the pods
    pod-security.kubernetes.io/enforce: privileged
"""
_HELMS_OWN = re.compile(
    r"^(# Source: .*|  annotations:\n    helm\.sh/hook: .*\n    helm\.sh/hook-delete-policy: .*"
    r"| +helm\.sh/chart: .*| +app\.kubernetes\.io/managed-by: .*|)\n",
    re.MULTILINE,
)


def manifests(major: int) -> str:
    """The text, the same with helm 3 and helm 4."""
    text = helm(
        major, "template", "gpumemprof", str(CHART), "--namespace", NAMESPACE,
        "--set", "image.repository=gpumemprof", "--kube-version", "1.28.0",
    )  # fmt: skip
    return _HEAD + _HELMS_OWN.sub("", text)


def main() -> None:
    """Write it with the newest helm that is there."""
    for major in reversed(MAJORS):
        try:
            helm_binary(major)
        except NoHelm as reason:
            print(reason)
            continue
        MANIFEST.parent.mkdir(parents=True, exist_ok=True)
        MANIFEST.write_text(manifests(major))
        print(f"wrote {MANIFEST.relative_to(REPOSITORY)}")
        return
    raise SystemExit(1)


if __name__ == "__main__":
    main()
