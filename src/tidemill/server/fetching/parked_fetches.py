"""Parked fetches: how many there may be, and which of them may have something to say.

A produce request with data for eight partitions pokes a consumer that waits for all eight up to
eight times. Answering at the first poke would send it one eighth; so pokes only queue, and the
queue is worked off when the event loop gets to it, a slice per turn.

A parked fetch costs memory for every partition that it watches, so their number is bounded: beyond
it a fetch does not wait but is answered with what there is (S40). When the broker stops, all of
them are; when a connection is lost, its fetches are forgotten at once.

Looking at a fetch runs its handler again outside of any connection's call. A bug there costs that
fetch its connection, as it would have at the start; the others do not notice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol, final

from tidemill.core.errors import InvariantViolation
from tidemill.core.limits import LOOKED_AT_PARTITIONS_PER_TURN, PARKED_PARTITIONS_MAX
from tidemill.core.loop.deferred import Deferred

__all__ = ["ParkedFetch", "ReadyQueue"]

log = logging.getLogger(__name__)


class ParkedFetch(Protocol):
    """A fetch that waits for more bytes, for its time to be up, or for nobody any more."""

    @property
    def watched_partitions(self) -> int: ...

    def look(self) -> None:
        """It was poked: finish if there is enough now."""
        ...

    def finish(self) -> None:
        """Answer with what there is."""
        ...

    def abandon(self) -> None:
        """Nobody waits for the answer: let go of everything."""
        ...


@final
class ReadyQueue:
    """Parked fetches by their answers; queued at most once each, looked at in order."""

    def __init__(self, soon: Callable[[Callable[[], None]], object]) -> None:
        self._soon = soon
        self._queue: dict[Deferred[Any], None] = {}
        self._parked: dict[Deferred[Any], ParkedFetch] = {}
        self._stopped = False
        self.parked_partitions = 0

    def __len__(self) -> int:
        return len(self._parked)

    def try_park(self, answer: Deferred[Any], fetch: ParkedFetch) -> bool:
        """Keep `fetch` until its answer comes; False: there are too many, or we are stopping."""
        watched = fetch.watched_partitions
        if self._stopped or self.parked_partitions + watched > PARKED_PARTITIONS_MAX:
            return False
        self.parked_partitions += watched
        self._parked[answer] = fetch
        return True

    def poke(self, answer: Deferred[Any]) -> None:
        """There may be more for this fetch: look at it after the current turn."""
        if not self._queue:
            self._soon(self._run)
        self._queue[answer] = None

    def finish(self, answer: Deferred[Any]) -> None:
        """Its time is up: no longer parked, answered with what there is."""
        fetch = self.unpark(answer)
        if fetch is not None:
            self._guarded(answer, fetch.finish)

    def abandon(self, answer: Deferred[Any]) -> None:
        """The connection that waits for this answer is gone."""
        fetch = self.unpark(answer)
        if fetch is not None:
            fetch.abandon()

    def unpark(self, answer: Deferred[Any]) -> ParkedFetch | None:
        fetch = self._parked.pop(answer, None)
        if fetch is not None:
            self.parked_partitions -= fetch.watched_partitions
            self._queue.pop(answer, None)
        return fetch

    def stop(self) -> None:
        """Answer everybody with what there is; nobody is parked from now on."""
        self._stopped = True
        for answer in list(self._parked):
            self.finish(answer)

    def _run(self) -> None:
        budget = LOOKED_AT_PARTITIONS_PER_TURN
        try:
            while self._queue and budget > 0:
                answer = next(iter(self._queue))
                del self._queue[answer]
                fetch = self._parked.get(answer)
                if fetch is not None:
                    budget -= fetch.watched_partitions
                    self._guarded(answer, fetch.look)
        finally:
            if self._queue:
                self._soon(self._run)

    def _guarded(self, answer: Deferred[Any], work: Callable[[], None]) -> None:
        try:
            work()
        except InvariantViolation:
            raise
        except Exception:
            log.exception("a parked fetch failed, its connection is closed")
            self.unpark(answer)
            if not answer.resolved:
                answer.resolve(None)
