"""Where profiles go, each in a thread of its own: the loop never waits for a disk or a network."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from gpumemprof.export.model import ContainerProfile, Owner, PushStatus
from gpumemprof.export.pyroscope.pusher import Pusher
from gpumemprof.export.store import ProfileStore

log = logging.getLogger(__name__)

MAX_QUEUED = 1024
STOP_SECONDS = 5.0
_Off = Callable[[Owner], bool]


class StoreSink:
    """Puts profiles into the local store."""

    gives_back = False

    def __init__(self, store: ProfileStore) -> None:
        self.store = store
        self._queue: deque[ContainerProfile | _Off] = deque()
        """Profiles to store, and which containers to forget what was stored of before."""
        self._change = threading.Condition()
        self._stopping = False
        self.dropped = 0
        """Profiles that found no room: the disk is slower than they are made."""
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self._thread.start()

    def offer(self, profiles: Sequence[ContainerProfile]) -> None:
        """Store these soon."""
        with self._change:
            for profile in profiles:
                if len(self._queue) >= MAX_QUEUED:
                    self.dropped += 1
                    continue
                self._queue.append(profile)
            self._change.notify()

    def forget_where(self, off: Callable[[Owner], bool]) -> None:
        """Keep nothing of these containers: neither what waits, nor, as soon as the disk allows,
        what is stored or being stored."""
        with self._change:
            self._queue = deque(
                each
                for each in self._queue
                if not (isinstance(each, ContainerProfile) and off(each.owner))
            )
            self._queue.append(off)
            self._change.notify()

    def stop(self) -> None:
        """Store what waits, and end. A disk that does not answer is not waited for."""
        with self._change:
            self._stopping = True
            self._change.notify()
        self._thread.join(STOP_SECONDS)
        if self._thread.is_alive():
            log.warning("the store's disk does not answer: what waits is not stored")
        else:
            self.store.close()

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._queue or self._stopping)
                if not self._queue:
                    return
                work = self._queue.popleft()
            try:
                if isinstance(work, ContainerProfile):
                    self.store.put(work)
                else:
                    self.store.forget_where(work)
            except Exception:
                log.exception("a profile could not be stored")


class PyroscopeSink:
    """Pushes profiles; Pyroscope keeps what was sent before a namespace was switched off."""

    gives_back = True

    def __init__(self, pusher: Pusher) -> None:
        self._pusher = pusher
        pusher.start()

    def offer(self, profiles: Sequence[ContainerProfile]) -> None:
        """Push these in their time."""
        self._pusher.offer(profiles)

    def forget_where(self, off: Callable[[Owner], bool]) -> None:
        """Send nothing more of these containers."""
        self._pusher.discard(off)

    def flush(self, seconds: float) -> bool:
        """Send what waits now; whether all was."""
        return self._pusher.flush(seconds)

    def stop(self) -> None:
        """End."""
        self._pusher.close()

    def status(self) -> PushStatus:
        """For Prometheus and the page."""
        status = self._pusher.status()
        return PushStatus(
            status.settled,
            status.waiting,
            status.last_success_ns,
            status.attempts,
            status.last_error,
        )
