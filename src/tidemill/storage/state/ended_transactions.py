"""Transactions that have ended, but whose marker may still be cut from the log.

A marker at or above the high watermark is not on every replica: it may be lost with its leader, and
then its transaction is open again. Until the watermark has passed it, the transaction holds the
last stable offset like an open one (I23).

Markers come in order of offset. A later marker of an earlier transaction holds all that an earlier
one does, so first offsets rise too, and the oldest entry is always the one that holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import final

from tidemill.core.limits import ENDED_TRANSACTIONS_MAX

__all__ = ["EndedTransactions"]


@final
class EndedTransactions:
    """(first offset, offset of the marker), both rising."""

    __slots__ = ("_ended",)

    def __init__(self, ended: Iterable[tuple[int, int]] = ()) -> None:
        self._ended: deque[tuple[int, int]] = deque(ended)

    def __len__(self) -> int:
        return len(self._ended)

    def entries(self) -> list[tuple[int, int]]:
        return list(self._ended)

    def add(self, first_offset: int, marker_offset: int) -> None:
        ended = self._ended
        while ended and ended[-1][0] >= first_offset:
            ended.pop()
        if len(ended) >= ENDED_TRANSACTIONS_MAX:
            # Holding a transaction for longer than needed is safe.
            first_offset = ended.pop()[0]
        ended.append((first_offset, marker_offset))

    def settle(self, high_watermark: int) -> int:
        """Forget those that cannot be lost; the first offset that is still held, -1 if none is."""
        ended = self._ended
        while ended and ended[0][1] < high_watermark:
            ended.popleft()
        return ended[0][0] if ended else -1
