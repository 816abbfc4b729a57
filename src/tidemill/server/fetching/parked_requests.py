"""Parked requests: answered when their partitions have enough, or when their time is up.

HOT PATH: every fetch of a consumer that has caught up is parked here.

    parked --wake--> woken --not ready--> parked
       |               |
       |               +--ready--> answered
       +--deadline, or the broker stops--> answered
       +--connection lost--> forgotten

A produce request with data for eight partitions wakes a consumer that waits for all eight up to
eight times. Answering at the first wake-up would send it one eighth, so waking only queues; the
queue is worked off when the event loop gets to it, a slice per turn.

A parked request costs memory for every partition that it watches, so their number is bounded:
beyond it a request does not wait but is answered with what there is (S40).

The request's handler runs again here, outside of any connection's call. A bug there costs that
request its connection, as it would have at the start; the others do not notice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar, final

from tidemill.core.errors import InvariantViolation
from tidemill.core.limits import LOOKED_AT_PARTITIONS_PER_TURN, PARKED_PARTITIONS_MAX
from tidemill.core.loop.deferred import Deferred
from tidemill.core.loop.timers import LoopTimers, Timer
from tidemill.replication.waiting.waiters import Watcher
from tidemill.server.limits.memory_pool import MemoryPool

__all__ = ["ParkedRequests"]

log = logging.getLogger(__name__)

T = TypeVar("T")


@final
class _ParkedRequest:
    """One request, as the `Watcher` of its partitions."""

    __slots__ = ("_parked", "answer", "finish", "is_ready", "memory", "timer", "watched")

    def __init__(
        self,
        parked: ParkedRequests,
        watched: Sequence[dict[Watcher, None]],
        is_ready: Callable[[], bool],
        finish: Callable[[], Any],
        memory: MemoryPool | None,
        answer: Deferred[Any] | None,
    ) -> None:
        self._parked = parked
        self.watched = watched
        """The watchers of each partition; this request is among them while it is parked."""
        self.is_ready = is_ready
        self.finish = finish
        self.memory = memory
        """The pool that must have room before the request is answered, unless its time is up."""
        self.answer: Deferred[Any] = Deferred() if answer is None else answer
        self.timer: Timer | None = None

    def wake(self) -> None:
        self._parked.queue(self)


@final
class ParkedRequests:
    """Parked requests by their answers; each is queued at most once and looked at in order."""

    def __init__(self, soon: Callable[[Callable[[], None]], object], timers: LoopTimers) -> None:
        self._soon = soon
        self._timers = timers
        self._woken: dict[_ParkedRequest, None] = {}
        self._parked: dict[Deferred[Any], _ParkedRequest] = {}
        self._at_work: set[Deferred[Any]] = set()
        """Answers that are being made in a task, and may have to wait after it."""
        self._stopped = False
        self.parked_partitions = 0

    def __len__(self) -> int:
        return len(self._parked)

    def try_park(
        self,
        watched: Sequence[dict[Watcher, None]],
        *,
        wait_ms: int,
        is_ready: Callable[[], bool],
        finish: Callable[[], T | Deferred[T]],
        memory: MemoryPool | None = None,
        answer: Deferred[T] | None = None,
    ) -> Deferred[T] | None:
        """The answer that `finish` will make; None: too many are parked, or the broker stops.

        A request that is given `memory` waits for room there in place of `is_ready`. One whose
        handler has returned an `answer` already parks with it.
        """
        if self._stopped or self.parked_partitions + len(watched) > PARKED_PARTITIONS_MAX:
            return None
        request = _ParkedRequest(self, watched, is_ready, finish, memory, answer)
        answer = request.answer
        self.parked_partitions += len(watched)
        self._parked[answer] = request
        for watchers in watched:
            watchers[request] = None
        # By its answer, not by the request: the timer would keep the request in a cycle.
        request.timer = self._timers.add_after(wait_ms / 1000, partial(self._time_out, answer))
        if memory is not None:
            memory.wait(request.wake)
        return answer

    def begin_work(self, answer: Deferred[Any]) -> None:
        """A task makes this answer now, and may park it; it calls `end_work` before."""
        self._at_work.add(answer)

    def end_work(self, answer: Deferred[Any]) -> bool:
        """Whether somebody still waits for the answer."""
        is_wanted = answer in self._at_work
        self._at_work.discard(answer)
        return is_wanted

    def queue(self, request: _ParkedRequest) -> None:
        """Look at a request after the current turn."""
        if not self._woken:
            self._soon(self._look)
        self._woken[request] = None

    def abandon(self, answer: Deferred[Any]) -> None:
        """Forget the request with this answer, if one is parked: its connection is gone."""
        self._at_work.discard(answer)
        request = self._parked.get(answer)
        if request is not None:
            self._unpark(request)

    def stop(self) -> None:
        """Answer all requests with what there is, and park none from now on."""
        self._stopped = True
        for request in list(self._parked.values()):
            self._serve(request, is_due=True)

    def _time_out(self, answer: Deferred[Any]) -> None:
        request = self._parked.get(answer)
        if request is not None:
            self._serve(request, is_due=True)

    def _look(self) -> None:
        budget = LOOKED_AT_PARTITIONS_PER_TURN
        try:
            while self._woken and budget > 0:
                request = next(iter(self._woken))
                del self._woken[request]
                budget -= len(request.watched)
                self._serve(request, is_due=False)
        finally:
            if self._woken:
                self._soon(self._look)

    def _serve(self, request: _ParkedRequest, *, is_due: bool) -> None:
        answer = request.answer
        try:
            if not is_due and not _is_ready(request):
                return
            if not self._unpark(request):
                return  # abandoned while `stop` answered another request of its connection
            outcome = request.finish()
            if outcome is answer:
                return  # it goes on by itself, and may park again
            if isinstance(outcome, Deferred):
                outcome.then(answer.resolve)
            else:
                answer.resolve(outcome)
        except InvariantViolation:
            raise
        except Exception:
            log.exception("a parked request failed, its connection is closed")
            self._unpark(request)
            if not answer.resolved:
                answer.resolve(None)

    def _unpark(self, request: _ParkedRequest) -> bool:
        """False: the request was not parked any more."""
        if self._parked.pop(request.answer, None) is None:
            return False
        self.parked_partitions -= len(request.watched)
        self._woken.pop(request, None)
        for watchers in request.watched:
            watchers.pop(request, None)
        if request.timer is not None:
            request.timer.cancel()
        if request.memory is not None:
            request.memory.forget(request.wake)
        return True


def _is_ready(request: _ParkedRequest) -> bool:
    memory = request.memory
    if memory is None:
        return request.is_ready()
    if memory.is_exhausted:
        memory.wait(request.wake)
        return False
    return True
