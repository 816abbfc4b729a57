"""How connections share the event loop: whoever has much to do stops in between (S10, S11).

A client may put ten thousand small requests into one read. Working them off in one go would stop
everybody else; so all connections together get a slice of each turn of the loop. Who finds it used
up keeps the rest of its requests and waits here for its next slice, in order. The first request of
a read is worked on at once, unless it looks costly or the last one of the same client was: so who
sends one small request at a time never waits, and of the costly ones a turn has one. Between two
slices the loop turns a few times for everybody else: libuv accepts one connection per turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol, final

from tidemill.core.clock import Clock
from tidemill.core.limits import TURN_S

__all__ = ["Turns", "Worker"]

PAUSES = 8
"""A turn with nothing to do takes about 15 us, so they cost greedy clients half a per cent."""


class Worker(Protocol):
    """Somebody with more to do than fitted into its slice."""

    def take_turn(self) -> None: ...


@final
class Turns:
    """The slice of the current turn, and who waits for the next one."""

    __slots__ = ("_clock", "_ends_at", "_open", "_pauses", "_waiting")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open = False
        self._ends_at = 0.0
        self._pauses = PAUSES
        """Turns of the loop until the next slice."""
        self._waiting: deque[Worker] = deque()

    def is_over(self, *, for_long: bool = False) -> bool:
        """Whether the slice is used up; the first to ask in a turn begins it.

        In its second half nothing long begins: what several of these take would come on top.
        """
        now = self._clock.monotonic()
        if self._open:
            return now >= (self._ends_at - TURN_S / 2 if for_long else self._ends_at)
        self._open = True
        self._ends_at = now + TURN_S
        asyncio.get_running_loop().call_soon(self._next)
        return False

    def is_long(self, since: float) -> bool:
        """Whether work that began at `since` has taken more than a slice."""
        return self._clock.monotonic() - since > TURN_S

    def wait(self, worker: Worker) -> None:
        """Go on in one of the next turns; only after `is_over` said so."""
        self._waiting.append(worker)

    def _next(self) -> None:
        if self._waiting and self._pauses:
            self._pauses -= 1
            asyncio.get_running_loop().call_soon(self._next)
            return
        self._open = False
        self._pauses = PAUSES
        for _ in range(len(self._waiting)):
            if self.is_over():
                return
            self._waiting.popleft().take_turn()
