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


class StoreSink:
    """Puts profiles into the local store."""

    def __init__(self, store: ProfileStore) -> None:
        self.store = store
        self._queue: deque[ContainerProfile] = deque()
        self._change = threading.Condition()
        self._working = threading.Lock()
        """Held while one is stored, so that none is after its container was forgotten."""
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
        """Keep nothing of these containers, neither what waits nor what is stored."""
        with self._working:
            with self._change:
                self._queue = deque(each for each in self._queue if not off(each.owner))
            self.store.forget_where(off)

    def stop(self) -> None:
        """Store what waits, and end."""
        with self._change:
            self._stopping = True
            self._change.notify()
        self._thread.join(10)
        self.store.close()

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._queue or self._stopping)
                if not self._queue:
                    return
            with self._working:
                with self._change:
                    if not self._queue:
                        continue
                    profile = self._queue.popleft()
                try:
                    self.store.put(profile)
                except Exception:
                    log.exception("a profile could not be stored")


class PyroscopeSink:
    """Pushes profiles; Pyroscope keeps what was sent before a namespace was switched off."""

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
        """For Prometheus."""
        status = self._pusher.status()
        return PushStatus(status.settled, status.waiting, status.last_success_ns, status.attempts)
