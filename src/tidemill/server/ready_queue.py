"""Parked fetches that may have something to say: each is looked at once, after the current turn.

A produce request with data for eight partitions pokes a consumer that waits for all eight up to
eight times. Answering at the first poke would send it one eighth; so pokes only queue, and the
queue is worked off when the event loop gets to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, final

__all__ = ["Ready", "ReadyQueue"]


class Ready(Protocol):
    """Something that wants to be looked at soon."""

    def look(self) -> None: ...


@final
class ReadyQueue:
    """Queued at most once each, looked at in order."""

    def __init__(self, soon: Callable[[Callable[[], None]], object]) -> None:
        self._soon = soon
        self._queue: dict[Ready, None] = {}

    def add(self, ready: Ready) -> None:
        if not self._queue:
            self._soon(self._run)
        self._queue[ready] = None

    def _run(self) -> None:
        queue, self._queue = self._queue, {}
        for ready in queue:
            ready.look()
