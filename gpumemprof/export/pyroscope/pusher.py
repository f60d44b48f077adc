"""Pushes the profiles of a node's containers in the background."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

from gpumemprof.export.model import ContainerProfile, Owner
from gpumemprof.export.pyroscope import schedule, series
from gpumemprof.export.pyroscope.client import Client, Outcome, Result
from gpumemprof.export.pyroscope.encode import Encoded, Encoder
from gpumemprof.export.pyroscope.queue import Pending, PushQueue
from gpumemprof.export.pyroscope.settings import PyroscopeSettings
from gpumemprof.export.pyroscope.status import PusherStatus
from gpumemprof.profile.model import TYPE_NAMES

log = logging.getLogger(__name__)

_HOLDING = frozenset({Result.THROTTLED, Result.UNAUTHORIZED, Result.UNREACHABLE, Result.UNKNOWN})
"""After these nothing else would fare better."""

_MOST_BROKEN = 3
"""More failures in a row than this are not the profiles' fault."""

_IDLE_SECONDS = 60.0
_TELL_AGAIN_SECONDS = 60.0


class Pusher:
    """A thread with a bounded queue in front of one Pyroscope server.

    ``on_dropped``: called, from the pusher's thread or from ``close``, for each push that will
    never be delivered, with a profile of the allocations of its interval and nothing else
    (``snapshot`` is False): add them to the owner's next profile that is offered, and each is
    delivered exactly once. It is not called when nothing was allocated, or when the server may
    have stored the push although it did not answer. ``renewed``: see Client.

    Raises UsageError if a certificate or key cannot be read.
    """

    def __init__(
        self,
        settings: PyroscopeSettings,
        on_dropped: Callable[[ContainerProfile], None] = lambda profile: None,
        renewed: Callable[[], PyroscopeSettings] | None = None,
    ) -> None:
        self._settings = settings
        self._on_dropped = on_dropped
        self._client = Client(settings, renewed)
        self._encoder = Encoder(settings)
        self._changed = threading.Condition()
        # All that follows is used under the lock of _changed.
        self._offered: deque[ContainerProfile] = deque()
        self._queue = PushQueue(settings.queue_items, settings.queue_bytes)
        self._dropped: deque[ContainerProfile] = deque()
        self._pace = schedule.Pace(settings.bytes_per_second)
        self._at_work: ContainerProfile | Pending | None = None
        self._discarded = False
        """Whether what is at work is to go no further."""
        self._forgetting: list[Callable[[Owner], bool]] = []
        self._hurried = False
        self._closed = False
        self._held_until = 0.0
        self._failures = 0
        self._attempts: Counter[str] = Counter()
        self._settled: Counter[str] = Counter()
        self._last_success_ns: int | None = None
        self._last_error = ""
        self._told_at = 0.0
        self._thread = threading.Thread(target=self._run, name="pyroscope", daemon=True)

    def start(self) -> None:
        """Begin to push."""
        self._thread.start()

    def offer(self, profiles: Sequence[ContainerProfile]) -> None:
        """Push these when it is their time. Never blocks; when there is no room, the oldest go."""
        with self._changed:
            if self._closed:
                self._drop_offered(profiles, "shutdown")
                return
            self._offered.extend(profiles)
            while len(self._offered) > self._settings.queue_items:
                self._drop_offered([self._offered.popleft()], "queue_full")
            self._changed.notify_all()

    def discard(self, off: Callable[[Owner], bool]) -> None:
        """Push nothing more of these containers, and give nothing of them back. What is on its way
        to the server at this moment may still arrive. Nothing of them is kept, after the request
        that is being made."""
        with self._changed:
            kept = [container for container in self._offered if not off(container.owner)]
            gone = len(self._offered) - len(kept) + len(self._queue.take_where(off))
            self._offered = deque(kept)
            self._dropped = deque(lost for lost in self._dropped if not off(lost.owner))
            if self._at_work is not None and off(self._at_work.owner):
                self._discarded = True
                gone += 1
            self._forgetting.append(off)
            self._settled["discarded"] += gone
            self._changed.notify_all()

    def flush(self, seconds: float) -> bool:
        """Send what waits now rather than at its time, for ``seconds`` at most. Returns whether
        everything is settled."""
        deadline = time.monotonic() + seconds
        with self._changed:
            self._hurried = True
            self._held_until, self._failures = 0.0, 0
            self._queue.hurry(time.monotonic())
            self._changed.notify_all()
            try:
                return self._changed.wait_for(
                    self._is_settled, max(deadline - time.monotonic(), 0.0)
                )
            finally:
                self._hurried = False

    def close(self, wait: float = 1.0) -> None:
        """Stop. A request that is being made is waited for ``wait`` seconds; what was not sent
        is dropped."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(wait)
        with self._changed:
            self._drop_offered(self._offered, "shutdown")
            self._offered.clear()
            for pending in self._queue.take_all():
                self._settle(pending, "shutdown")
        self._give_back()
        if not self._thread.is_alive():
            self._client.close()

    def status(self) -> PusherStatus:
        """How it goes, at this moment."""
        with self._changed:
            return PusherStatus(
                attempts=dict(self._attempts),
                settled=dict(self._settled),
                waiting=len(self._offered) + len(self._queue) + (self._at_work is not None),
                waiting_bytes=self._queue.bytes,
                last_success_ns=self._last_success_ns,
                last_error=self._last_error,
                encoded=self._encoder.encoded,
                unchanged=self._encoder.unchanged,
                negative_samples=self._encoder.negative,
                stacks_pruned=self._encoder.pruned,
            )

    def __enter__(self) -> Pusher:
        """Start."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.close()

    # The thread

    def _run(self) -> None:
        while True:
            with self._changed:
                forgetting, self._forgetting = self._forgetting, []
                for off in forgetting:
                    self._encoder.forget(off)
                self._at_work, self._discarded = self._next(), False
                work = self._at_work
                if work is None and not self._dropped:
                    if self._closed:
                        return
                    self._changed.notify_all()  # for flush
                    self._changed.wait(self._pause())
            try:
                if isinstance(work, Pending):
                    self._send(work)
                elif work is not None:
                    self._encode(work)
            except Exception:  # one profile must not end all pushing
                log.exception("a profile could not be pushed")
                with self._changed:
                    self._settled["broken"] += 1
            self._give_back()

    def _next(self) -> ContainerProfile | Pending | None:
        """What to do now. Profiles are packed at once, which is smaller than they are."""
        if self._closed:
            return None
        now = time.monotonic()
        oldest = time.time_ns() - schedule.MAX_AGE * 10**9
        for pending in self._queue.take_older(oldest):
            self._settle(pending, "too_old")
        if self._offered:
            return self._offered.popleft()
        if now < self._held_until or self._pace.wait(now):
            return None
        return self._queue.take(now)

    def _pause(self) -> float:
        """Seconds until there is something to do."""
        due = self._queue.next_due()
        if due is None:
            return _IDLE_SECONDS
        now = time.monotonic()
        return min(max(due - now, self._held_until - now, self._pace.wait(now)), _IDLE_SECONDS)

    def _encode(self, container: ContainerProfile) -> None:
        encoded = self._encoder.encode(container)
        with self._changed:
            if self._discarded:
                return
            if not encoded:
                self._settled["empty"] += 1
            for one in encoded:
                for gone in self._queue.add(self._pending(container, one)):
                    self._settle(gone, "queue_full")

    def _pending(self, container: ContainerProfile, encoded: Encoded) -> Pending:
        age = (time.time_ns() - container.time_ns) / 1e9
        jitter = 0.0 if self._hurried else self._settings.jitter
        due = time.monotonic() + schedule.spread(container.owner, age, jitter)
        return Pending(container.owner, container.time_ns, container.interval_ns, encoded, due)

    def _send(self, pending: Pending) -> None:
        with self._changed:
            self._pace.spend(pending.encoded.push.size, time.monotonic())
        outcome = self._client.send(pending.encoded.push.request(pending.time_ns))
        with self._changed:
            pending.attempts += 1
            pending.uncertain |= outcome.result is Result.UNKNOWN
            self._attempts[outcome.result.value] += 1
            self._tell(outcome)
            if outcome.result is Result.DELIVERED:
                self._failures = 0
                self._last_success_ns = time.time_ns()
            elif outcome.result is not Result.REJECTED:
                self._failures += 1
            holding = outcome.result in _HOLDING or self._failures > _MOST_BROKEN
            again = self._when_again(pending, outcome, holding)
            if holding:
                self._held_until = again
            if self._discarded:
                return
            if outcome.result in (Result.DELIVERED, Result.REJECTED):
                self._settle(pending, outcome.result.value)
            elif self._closed:
                self._settle(pending, "shutdown")
            else:
                pending.due = again
                for gone in self._queue.add(pending):
                    self._settle(gone, "queue_full")

    def _when_again(self, pending: Pending, outcome: Outcome, holding: bool) -> float:
        """Monotonic time of the next attempt, of everything or of this."""
        failures = self._failures if holding else pending.attempts
        place = schedule.fraction(pending.owner, pending.attempts)
        delay = schedule.backoff(failures, place)
        return time.monotonic() + max(delay, outcome.retry_after or 0.0)

    def _tell(self, outcome: Outcome) -> None:
        """Log what is new, and what stays wrong once a minute."""
        if outcome.result is Result.DELIVERED:
            if self._last_error:
                log.info("Pyroscope takes profiles again")
            self._last_error = ""
            return
        now = time.monotonic()
        if not self._last_error or now - self._told_at > _TELL_AGAIN_SECONDS:
            log.warning("Pyroscope: %s (%s)", outcome.detail, outcome.result.value)
            self._told_at = now
        self._last_error = outcome.detail

    # What is lost, under the lock

    def _settle(self, pending: Pending, reason: str) -> None:
        if reason != "delivered":
            lost = pending.undelivered()
            if lost is not None:
                self._dropped.append(lost)
            if pending.uncertain:
                reason = "unknown"
        self._settled[reason] += 1

    def _drop_offered(self, profiles: Iterable[ContainerProfile], reason: str) -> None:
        for container in profiles:
            self._settled[reason] += 1
            samples = series.undelivered(container.profile.samples, range(len(TYPE_NAMES)))
            if samples:
                self._dropped.append(
                    series.dropped(
                        container.owner, container.time_ns, container.interval_ns, samples
                    )
                )

    def _is_settled(self) -> bool:
        return not (self._offered or self._queue or self._at_work or self._dropped)

    def _give_back(self) -> None:
        while True:
            with self._changed:
                if not self._dropped:
                    return
                lost = self._dropped.popleft()
            try:
                self._on_dropped(lost)
            except Exception:
                log.exception("what a dropped push held could not be given back")
