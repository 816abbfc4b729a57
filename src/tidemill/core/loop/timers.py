"""Many deadlines at low cost: a timer wheel.

Each parked fetch and acknowledgement sets a deadline and nearly always cancels it before it is due.
A wheel makes both O(1): time is divided into slots, a deadline is added to the map of its slot, and
cancelling removes it at once. The wheel knows no clock and no loop: `LoopTimers` turns it.

Ten milliseconds are a good slot for deadlines that hardly ever pass. The few that clients measure,
such as the end of a session, have a wheel of their own with slots of one millisecond.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, final

from tidemill.core.clock import Clock

__all__ = ["LoopTimers", "Timer", "TimerWheel"]

FINE_SLOT_S: Final = 0.001
TURN_S_MIN: Final = 1e-6
"""The clock and the loop round times differently: a wait of nothing might be repeated for ever."""


@final
class Timer:
    """One deadline that can be cancelled."""

    __slots__ = ("_slot", "action")

    def __init__(self, slot: dict[Timer, None], action: Callable[[], None]) -> None:
        self._slot = slot
        self.action = action

    def cancel(self) -> None:
        """Remove the deadline; no effect if it has fired.

        The owner of a timer often is what its action is bound to. Dropping the action breaks that
        cycle, so nothing is left to the garbage collector.
        """
        self._slot.pop(self, None)
        self.action = _nothing


def _nothing() -> None:
    """Takes the place of an action that was called or cancelled."""


@final
class TimerWheel:
    """Deadlines in slots of `slot_s` seconds; fires up to one slot late, never early."""

    def __init__(self, *, now: float, slot_s: float = 0.01) -> None:
        self._slot_s = slot_s
        self._slots: dict[int, dict[Timer, None]] = {}
        self._next_slot = int(now / slot_s) + 1

    def __len__(self) -> int:
        return sum(map(len, self._slots.values()))

    def add(self, deadline: float, action: Callable[[], None]) -> Timer:
        """Call `action` once `deadline` has passed, unless cancelled."""
        index = max(int(deadline / self._slot_s) + 1, self._next_slot)
        slot = self._slots.get(index)
        if slot is None:
            slot = self._slots[index] = {}
        timer = Timer(slot, action)
        slot[timer] = None
        return timer

    def advance(self, now: float) -> None:
        """Fire everything that is due, slot by slot, in the order in which it was added."""
        current = int(now / self._slot_s)
        if (current + 1) * self._slot_s <= now:  # as `next_deadline` rounds: else it is never due
            current += 1
        self._next_slot = current + 1
        for index in sorted(index for index in self._slots if index <= current):
            # An action of an earlier slot may have removed it: `next_deadline` drops empty slots.
            slot = self._slots.get(index, {})
            while slot:  # one by one: an action that fails leaves the rest in place
                timer = next(iter(slot))
                del slot[timer]
                action, timer.action = timer.action, _nothing
                action()
            self._slots.pop(index, None)

    def next_deadline(self) -> float | None:
        """When `advance` has something to do next; also drops empty slots."""
        for index in [index for index, slot in self._slots.items() if not slot]:
            del self._slots[index]
        return min(self._slots) * self._slot_s if self._slots else None


@final
class LoopTimers:
    """Two wheels, coarse and fine, that the event loop turns while there are deadlines."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wheel = TimerWheel(now=clock.monotonic())
        self._fine_wheel = TimerWheel(now=clock.monotonic(), slot_s=FINE_SLOT_S)
        self._wake: asyncio.TimerHandle | None = None
        self._wake_at = 0.0

    def add_after(self, delay_s: float, action: Callable[[], None]) -> Timer:
        """Call `action` in `delay_s` seconds and up to 10 ms later, unless cancelled."""
        return self._add(self._wheel, delay_s, action)

    def add_exactly_after(self, delay_s: float, action: Callable[[], None]) -> Timer:
        """The same, at most 1 ms late: for deadlines that are few, not one per request."""
        return self._add(self._fine_wheel, delay_s, action)

    def _add(self, wheel: TimerWheel, delay_s: float, action: Callable[[], None]) -> Timer:
        deadline = self._clock.monotonic() + delay_s
        timer = wheel.add(deadline, action)
        if self._wake is None or deadline < self._wake_at:
            self._arm()
        return timer

    def stop(self) -> None:
        if self._wake is not None:
            self._wake.cancel()

    def _arm(self) -> None:
        self.stop()
        coarse, fine = self._wheel.next_deadline(), self._fine_wheel.next_deadline()
        deadline = coarse if fine is None or (coarse is not None and coarse < fine) else fine
        if deadline is None:
            self._wake = None
            return
        self._wake_at = deadline
        delay = max(TURN_S_MIN, deadline - self._clock.monotonic())
        self._wake = asyncio.get_running_loop().call_later(delay, self._turn)

    def _turn(self) -> None:
        self._wake = None
        try:
            now = self._clock.monotonic()
            self._fine_wheel.advance(now)
            self._wheel.advance(now)
        finally:
            self._arm()
