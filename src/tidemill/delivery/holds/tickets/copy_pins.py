"""Copies of holds that have ended, and must stay until the end is durable.

A cut of the log may take back a release: the hold is open again, and its copy is needed. So a copy
stays until everything up to its end is durable on every in-sync replica.

A pin is (offset of the end, offset of the copy). Pins come in the order of their ends, and go in
that order. A copy above that of a later pin is never the lowest while it is pinned, so it is not
kept: what remains rises in both offsets, and its first copy is the lowest.

Only a leader knows what is durable everywhere, so a follower has the pins of its whole log. Of very
many the first ones become one, which stays as long as any of them would: whoever leads next learns
soon what is durable, and they go together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import final

from tidemill.core.limits import HOLD_PINS_MAX

__all__ = ["CopyPins"]


@final
class CopyPins:
    """The lowest copy whose end is not durable yet."""

    def __init__(self, *, pins_max: int = HOLD_PINS_MAX) -> None:
        self._pins_max = pins_max
        self._pins: deque[tuple[int, int]] = deque()
        self.durable_offset = 0
        """Everything below is durable on every in-sync replica: no cut goes there."""

    def pin(self, copy_offset: int, *, end_offset: int) -> None:
        """The copy at `copy_offset` was ended by the batch before `end_offset`."""
        if end_offset <= self.durable_offset:
            return
        while self._pins and self._pins[-1][1] >= copy_offset:
            self._pins.pop()
        self._pins.append((end_offset, copy_offset))
        if len(self._pins) > self._pins_max:
            _, lowest = self._pins.popleft()
            self._pins[0] = self._pins[0][0], lowest

    def settle(self, durable_offset: int) -> None:
        """Let go of the copies whose end is durable."""
        self.durable_offset = max(self.durable_offset, durable_offset)
        while self._pins and self._pins[0][0] <= self.durable_offset:
            self._pins.popleft()

    def lowest(self) -> int | None:
        return self._pins[0][1] if self._pins else None

    def captured(self) -> list[tuple[int, int]]:
        """(offset of the end, offset of the copy), rising."""
        return list(self._pins)

    def restore(self, pins: Iterable[tuple[int, int]], durable_offset: int) -> None:
        """What was captured, in place of what there is."""
        self._pins = deque(pins)
        self.settle(durable_offset)

    def clear(self) -> None:
        """Forget the pins: the log is folded again."""
        self._pins.clear()
