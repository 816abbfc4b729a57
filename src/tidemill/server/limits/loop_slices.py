"""Slices of the event loop: a busy connection does not hold up the others (S10, S11).

A client may put ten thousand small requests into one read. Handling them all in one go would stop
every other client. So all connections together get one slice of each turn of the loop. A connection
that finds the slice used up keeps its remaining requests and queues for the next slice.

The first request of a read is handled at once, unless it looks costly or the client's previous one
was. So a client that sends one small request at a time never waits, and a turn handles one costly
request. Between two slices the loop turns a few times for other work: libuv accepts one connection
per turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol, final

from tidemill.core.clock import Clock
from tidemill.core.limits import TURN_S

__all__ = ["LoopSlices", "SliceUser"]

TURNS_BETWEEN_SLICES: Final = 8
"""A turn with nothing to do takes about 15 us, so they cost greedy clients half a per cent."""


class SliceUser(Protocol):
    """A connection with more requests than fitted into the slice, or the rest of a request."""

    def take_slice(self) -> None: ...


@final
class LoopSlices:
    """The slice of the current turn, and the queue for the next one."""

    __slots__ = ("_clock", "_is_closed", "_is_open", "_queue", "_slice_ends_at", "_turns_left")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._is_open = False
        self._slice_ends_at = 0.0
        self._turns_left = TURNS_BETWEEN_SLICES
        """Turns of the loop until the next slice."""
        self._queue: deque[SliceUser] = deque()
        self._is_closed = False

    def is_used_up(self, *, for_long: bool = False) -> bool:
        """Whether the slice is over; the first call in a turn begins it.

        A long request begins only in the first half: several begun later would overrun the slice.
        """
        now = self._clock.monotonic()
        if self._is_open:
            return now >= (self._slice_ends_at - TURN_S / 2 if for_long else self._slice_ends_at)
        self._is_open = True
        self._slice_ends_at = now + TURN_S
        asyncio.get_running_loop().call_soon(self._begin_next)
        return False

    def is_exceeded(self, since: float) -> bool:
        """Whether work that began at `since` has taken longer than a slice."""
        return self._clock.monotonic() - since > TURN_S

    def enqueue(self, user: SliceUser) -> None:
        """Call `user.take_slice` in a later turn."""
        if self._is_closed:
            return
        self._queue.append(user)
        if not self._is_open:
            self.is_used_up()  # opens the slice, whose end begins the next one

    def close(self) -> None:
        """Give no more slices: the logs are about to be closed, and work may outlive its client."""
        self._is_closed = True
        self._queue.clear()

    def _begin_next(self) -> None:
        if self._queue and self._turns_left:
            self._turns_left -= 1
            asyncio.get_running_loop().call_soon(self._begin_next)
            return
        self._is_open = False
        self._turns_left = TURNS_BETWEEN_SLICES
        for _ in range(len(self._queue)):
            if self.is_used_up():
                return
            self._queue.popleft().take_slice()
