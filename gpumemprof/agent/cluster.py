"""The cluster as the agent asks it: the watches of the API behind the questions of ``placing``."""

from __future__ import annotations

from gpumemprof.export.model import Owner
from gpumemprof.kube.model import ContainerRef, Pod
from gpumemprof.kube.switch import DEFAULT
from gpumemprof.kube.watch import ClusterWatch


class WatchedCluster:
    """``placing.Cluster`` by a ClusterWatch."""

    def __init__(self, watch: ClusterWatch) -> None:
        self._watch = watch

    @property
    def ready(self) -> bool:
        """Whether both were read."""
        return self._watch.synced

    @property
    def up_to_date(self) -> bool:
        """Whether both watches run."""
        return self._watch.synced and all(self._watch.status().values())

    def find(self, ref: ContainerRef) -> tuple[Pod, str] | None:
        """The pod and the container's name."""
        found = self._watch.pods.find(ref)
        return None if found is None else (found.pod, found.container)

    def allows(self, pod: Pod | None) -> bool:
        """What the switch says."""
        return self._watch.switch.allows(pod)

    def is_off(self, owner: Owner) -> bool:
        """Whether the whole namespace of a container, perhaps gone by now, is off."""
        if not self._watch.synced:
            return False
        if not owner.namespace:
            return not self.allows(None)
        settings = self._watch.switch.settings
        return settings.get(owner.namespace, settings.get(DEFAULT, False)) is False
