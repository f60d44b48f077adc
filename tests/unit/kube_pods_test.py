"""The pods of a node, found by container."""

from __future__ import annotations

from typing import Any

import pytest

from gpumemprof.errors import RemoteDataError
from gpumemprof.kube.model import ContainerRef
from gpumemprof.kube.pod_json import MAX_LABEL_BYTES, SeenPod, pod_of
from gpumemprof.kube.pods import MAX_PODS, PodIndex

ID, NEXT_ID = "a" * 64, "b" * 64


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def index(clock: Clock) -> PodIndex:
    return PodIndex(grace=60, clock=clock)


def status(container: str = ID, name: str = "main") -> dict[str, Any]:
    return {"name": name, "containerID": f"containerd://{container}"}


def pod(uid: str = "uid-1", *containers: dict[str, Any], **metadata: Any) -> SeenPod:
    return pod_of(
        {
            "metadata": {"uid": uid, "namespace": "ml", "name": f"pod-{uid}", **metadata},
            "status": {"phase": "Running", "containerStatuses": list(containers)},
        }
    )


def ended(seen: SeenPod) -> SeenPod:
    return seen._replace(ended=True)


def test_a_container_is_found_with_its_pod_and_name(index: PodIndex) -> None:
    index.put(pod("uid-1", status(), status(NEXT_ID, "sidecar")))
    for ref in (ContainerRef(NEXT_ID, "uid-1"), ContainerRef(NEXT_ID)):
        found = index.find(ref)
        assert found and (found.pod.name, found.container) == ("pod-uid-1", "sidecar")


def test_the_pod_is_known_before_the_container(index: PodIndex) -> None:
    index.put(pod("uid-1"))
    early = index.find(ContainerRef(ID, "uid-1"))
    assert early and early.container == ""
    assert index.find(ContainerRef(ID)) is None
    index.put(pod("uid-1", status()))
    now = index.find(ContainerRef(ID, "uid-1"))
    assert now and now.container == "main"


def test_what_the_kubelet_wrote_into_the_control_group_decides(index: PodIndex) -> None:
    index.put(pod("uid-1", status()))
    index.put(pod("uid-2"))
    found = index.find(ContainerRef(ID, "uid-2"))
    assert found and (found.pod.uid, found.container) == ("uid-2", "")
    assert index.find(ContainerRef(ID, "uid-3")) is None


def test_a_static_pod_is_found_by_the_hash_of_its_manifest(index: PodIndex) -> None:
    hashed = "0123456789abcdef" * 2
    index.put(pod("uid-1", status(), annotations={"kubernetes.io/config.mirror": hashed}))
    found = index.find(ContainerRef(ID, hashed))
    assert found and found.container == "main"
    index.forget("uid-1")
    assert index.find(ContainerRef(ID, hashed)) is None


def test_a_restarted_container_is_found_by_both_ids(index: PodIndex) -> None:
    last = {"lastState": {"terminated": {"containerID": f"containerd://{ID}"}}}
    index.put(pod("uid-1", status(NEXT_ID) | last))
    assert index.find(ContainerRef(ID)) == index.find(ContainerRef(NEXT_ID))


def test_init_and_ephemeral_containers_are_containers() -> None:
    seen = pod_of(
        {
            "metadata": {"uid": "u", "namespace": "ml", "name": "p"},
            "status": {
                "initContainerStatuses": [status("1" * 64, "fetch")],
                "containerStatuses": [status("2" * 64, "main")],
                "ephemeralContainerStatuses": [status("3" * 64, "debugger")],
            },
        }
    )
    assert list(seen.pod.containers.values()) == ["main", "fetch", "debugger"]


def test_a_deleted_pod_is_found_for_a_minute(index: PodIndex, clock: Clock) -> None:
    index.put(pod("uid-1", status()))
    index.ended("uid-1")
    clock.now += 59
    assert index.find(ContainerRef(ID))
    index.ended("uid-1")  # told again: the minute is that of the first time
    clock.now += 2
    assert index.find(ContainerRef(ID)) is None
    assert len(index) == 0


def test_a_pod_whose_containers_all_ended_is_found_for_a_minute(
    index: PodIndex, clock: Clock
) -> None:
    index.put(pod("uid-1", status()))
    index.put(ended(pod("uid-1", status())))
    clock.now += 30
    index.put(ended(pod("uid-1", status(), labels={"changed": "later"})))
    assert index.find(ContainerRef(ID))
    clock.now += 31
    assert index.find(ContainerRef(ID)) is None


def test_pods_that_ended_long_ago_are_not_taken_in(index: PodIndex) -> None:
    index.replace([ended(pod("uid-1", status())), pod("uid-2")])
    assert [p.uid for p in index.pods()] == ["uid-2"]


def test_a_new_list_ends_what_is_not_in_it(index: PodIndex, clock: Clock) -> None:
    index.put(pod("uid-1", status()))
    index.put(pod("uid-2"))
    index.replace([pod("uid-2")])
    assert index.find(ContainerRef(ID)), "for its last data"
    clock.now += 61
    assert index.find(ContainerRef(ID)) is None
    assert [p.uid for p in index.pods()] == ["uid-2"]


def test_a_pod_that_is_listed_again_stays(index: PodIndex, clock: Clock) -> None:
    index.put(pod("uid-1", status()))
    index.ended("uid-1")
    index.replace([pod("uid-1", status())])
    clock.now += 61
    assert index.find(ContainerRef(ID))


def test_a_list_that_breaks_off_changes_nothing(index: PodIndex) -> None:
    index.put(pod("uid-1", status()))

    def broken() -> Any:
        yield pod("uid-2")
        raise RemoteDataError("cut off")

    before = index.version
    with pytest.raises(RemoteDataError):
        index.replace(broken())
    assert index.version == before
    assert [p.uid for p in index.pods()] == ["uid-1"]


def test_a_pod_that_became_unusable_is_forgotten_at_once(index: PodIndex) -> None:
    index.put(pod("uid-1", status()))
    index.forget("uid-1")
    assert index.find(ContainerRef(ID, "uid-1")) is None
    assert index.find(ContainerRef(ID)) is None


def test_the_version_changes_with_each_change_and_not_without(
    index: PodIndex, clock: Clock
) -> None:
    versions = [index.version]

    def changed() -> bool:
        versions.append(index.version)
        return versions[-1] != versions[-2]

    index.put(pod("uid-1", status()))
    assert changed()
    index.put(pod("uid-1", status()))
    assert not changed()
    index.put(pod("uid-1", status(), labels={"app": "x"}))
    assert changed()
    index.ended("uid-1")
    assert not changed()
    clock.now += 61
    assert changed()


def test_a_container_id_moves_with_the_pod_that_has_it_now(index: PodIndex) -> None:
    index.put(pod("uid-1", status()))
    index.put(pod("uid-2", status()))
    index.forget("uid-1")
    found = index.find(ContainerRef(ID))
    assert found and found.pod.uid == "uid-2"


def test_pods_beyond_the_limit_are_counted(index: PodIndex) -> None:
    index.replace([pod(f"uid-{i}") for i in range(MAX_PODS + 3)])
    assert (len(index), index.refused) == (MAX_PODS, 3)
    index.put(pod("one-more"))
    assert (len(index), index.refused) == (MAX_PODS, 4)


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"uid": 7, "namespace": "ml", "name": "p"},
        {"uid": "a b", "namespace": "ml", "name": "p"},
        {"uid": "u", "namespace": "", "name": "p"},
        {"uid": "u", "namespace": "ml", "name": "P\n"},
        {"uid": "u", "namespace": "ml", "name": "p", "labels": {"x": "y" * MAX_LABEL_BYTES}},
    ],
)
def test_pods_that_cannot_be_are_refused(metadata: dict[str, Any]) -> None:
    with pytest.raises(RemoteDataError):
        pod_of({"metadata": metadata})


@pytest.mark.parametrize(
    "json_status",
    [
        None,
        [],
        {"containerStatuses": {}},
        {"containerStatuses": [None, 1, {}, {"name": 1, "containerID": ID}]},
        {"containerStatuses": [{"name": "main", "containerID": ["x"], "lastState": "no"}]},
        {"containerStatuses": [{"name": "main", "containerID": ""}]},
    ],
)
def test_odd_statuses_have_no_containers(json_status: Any) -> None:
    metadata = {"uid": "u", "namespace": "ml", "name": "p"}
    assert pod_of({"metadata": metadata, "status": json_status}).pod.containers == {}
