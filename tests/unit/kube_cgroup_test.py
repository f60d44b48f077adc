"""Which container a process is in, from the text of its /proc/PID/cgroup."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpumemprof.errors import ProcessGone
from gpumemprof.kube.cgroup import container_of, read_container
from gpumemprof.kube.model import ContainerRef

ID = "8f3a" * 16
OTHER_ID = "1b2c" * 16
UID = "c1a7ac8b-1c3e-4a6d-9f5e-0123456789ab"
OTHER_UID = "dddddddd-1c3e-4a6d-9f5e-0123456789ab"
SLICE_UID = UID.replace("-", "_")
STATIC = "5f4dcc3b5aa765d61d8327deb882cf99"

IN_POD = ContainerRef(ID, UID)

V1 = f"""\
12:hugetlb:/kubepods/burstable/pod{UID}/{ID}
11:net_cls,net_prio:/kubepods/burstable/pod{UID}/{ID}
2:cpu,cpuacct:/kubepods/burstable/pod{UID}/{ID}
1:name=systemd:/kubepods/burstable/pod{UID}/{ID}
"""

HYBRID = f"""\
5:memory:/kubepods/besteffort/pod{UID}/{ID}
1:name=systemd:/kubepods/besteffort/pod{UID}/{ID}
0::/system.slice/containerd.service
"""


def in_slice(name: str, qos: str = "burstable", uid: str = SLICE_UID) -> str:
    return f"0::/kubepods.slice/kubepods-{qos}.slice/kubepods-{qos}-pod{uid}.slice/{name}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    {
        "v1, cgroupfs": (V1, IN_POD),
        "hybrid": (HYBRID, IN_POD),
        "v2, cgroupfs": (f"0::/kubepods/burstable/pod{UID}/{ID}\n", IN_POD),
        "v2, guaranteed": (f"0::/kubepods/pod{UID}/{ID}\n", IN_POD),
        "systemd, containerd": (in_slice(f"cri-containerd-{ID}.scope"), IN_POD),
        "systemd, besteffort": (in_slice(f"cri-containerd-{ID}.scope", "besteffort"), IN_POD),
        "systemd, guaranteed": (
            f"0::/kubepods.slice/kubepods-pod{SLICE_UID}.slice/cri-containerd-{ID}.scope\n",
            IN_POD,
        ),
        "systemd, CRI-O": (in_slice(f"crio-{ID}.scope"), IN_POD),
        "systemd, docker": (in_slice(f"docker-{ID}.scope"), IN_POD),
        "cgroupfs, CRI-O": (f"0::/kubepods/besteffort/pod{UID}/crio-{ID}\n", IN_POD),
        "CRI-O's container below its scope": (in_slice(f"crio-{ID}.scope/container"), IN_POD),
        "runc not told of systemd": (
            f"0::/system.slice/containerd.service/kubepods-burstable-pod{SLICE_UID}.slice"
            f":cri-containerd:{ID}\n",
            IN_POD,
        ),
        "a cgroup root of its own": (
            f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SLICE_UID}.slice/"
            f"cri-containerd-{ID}.scope\n",
            IN_POD,
        ),
        "kind: nodes are containers themselves": (
            f"0::/docker/{OTHER_ID}/kubelet.slice/kubelet-kubepods.slice/"
            f"kubelet-kubepods-pod{SLICE_UID}.slice/cri-containerd-{ID}.scope\n",
            IN_POD,
        ),
        "static pod": (f"0::/kubepods/burstable/pod{STATIC}/{ID}\n", ContainerRef(ID, STATIC)),
        "static pod, systemd": (
            in_slice(f"cri-containerd-{ID}.scope", uid=STATIC),
            ContainerRef(ID, STATIC),
        ),
        "systemd inside the container": (
            in_slice(f"cri-containerd-{ID}.scope/system.slice/x.service"),
            IN_POD,
        ),
        "docker inside the container": (
            f"0::/kubepods/burstable/pod{UID}/{ID}/docker/{OTHER_ID}\n",
            IN_POD,
        ),
        "seen from another container of the same QoS": (
            f"0::/../../kubepods-burstable-pod{SLICE_UID}.slice/cri-containerd-{ID}.scope\n",
            IN_POD,
        ),
        "seen from a container of another QoS": (
            f"0::/../../../burstable/pod{UID}/{ID}\n",
            IN_POD,
        ),
        "seen from another container of the pod": (
            f"0::/../cri-containerd-{ID}.scope\n",
            ContainerRef(ID),
        ),
        "group was removed": (f"0::/kubepods/burstable/pod{UID}/{ID} (deleted)\n", IN_POD),
        "the pod's own group": (f"0::/kubepods/burstable/pod{UID}\n", ContainerRef("", UID)),
        "CRI-O's monitor, in the pod": (
            in_slice(f"crio-conmon-{ID}.scope"),
            ContainerRef("", UID),
        ),
        "a runtime of unknown names": (in_slice("kata_abc"), ContainerRef("", UID)),
        "docker": (f"0::/system.slice/docker-{ID}.scope\n", ContainerRef(ID)),
        "docker, cgroupfs": (f"4:memory:/docker/{ID}\n0::/\n", ContainerRef(ID)),
        "podman": (
            f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/x\n",
            ContainerRef(ID),
        ),
        "podman, cgroupfs": (f"0::/libpod_parent/libpod-{ID}\n", ContainerRef(ID)),
        "podman's monitor": (f"0::/machine.slice/libpod-conmon-{ID}.scope\n", None),
        "CRI-O's monitor": (f"0::/system.slice/crio-conmon-{ID}.scope\n", None),
        "a process of the host": ("0::/user.slice/user-0.slice/session-1.scope\n", None),
        "the kubelet": ("1:name=systemd:/system.slice/kubelet.service\n0::/\n", None),
        "the reader's own container": ("0::/\n", None),
        "an ancestor of the reader": ("0::/../..\n", None),
        "no text": ("", None),
    }.values(),
)
def test_container_of(text: str, expected: ContainerRef | None) -> None:
    assert container_of(text) == expected


@pytest.mark.parametrize(
    "below",
    [
        f"kubepods/burstable/pod{OTHER_UID}/{OTHER_ID}",
        f"kubepods.slice/kubepods-pod{OTHER_UID.replace('-', '_')}.slice/crio-{OTHER_ID}.scope",
        f"docker-{OTHER_ID}.scope",
        f"x:cri-containerd:{OTHER_ID}",
        f"pod{STATIC}/{OTHER_ID}",
    ],
)
@pytest.mark.parametrize(
    "own", [f"0::/kubepods/burstable/pod{UID}/{ID}", in_slice(f"cri-containerd-{ID}.scope").strip()]
)
def test_a_container_cannot_pass_for_another_by_the_names_of_its_own_groups(
    own: str, below: str
) -> None:
    assert container_of(f"{own}/{below}\n") == IN_POD


def test_a_process_of_a_pod_cannot_pass_for_one_of_the_host() -> None:
    assert container_of(f"0::/kubepods/pod{UID}/x/../../../user.slice\n") == ContainerRef("", UID)


def test_it_is_read_from_proc(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_bytes(b"9:x:/\xff\n" + V1.encode())
    assert read_container(7, tmp_path) == IN_POD
    read_container(os.getpid())
    with pytest.raises(ProcessGone):
        read_container(8, tmp_path)


@given(st.text(max_size=300), st.text(alphabet="/.:-_0123abc\n", max_size=300))
def test_any_text_is_answered(odd: str, close: str) -> None:
    for text in (odd, close, f"0::/kubepods/{odd}/pod{UID}/{close}"):
        found = container_of(text)
        assert found is None or len(found.id) in {0, 64}
