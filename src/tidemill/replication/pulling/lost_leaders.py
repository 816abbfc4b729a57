"""Leaders whose connection has just ended: probably gone, but not yet replaced. Pure.

A client that loses its leader asks another broker at once, before anyone can have elected a
successor. If it hears of the old leader again it believes that, and librdkafka asks no sooner than
a second later. If it hears that there is no leader it asks again soon, and finds the new one.

The doubt is short and comes once per lost connection: perhaps only this broker cannot reach the
leader, and clients can.
"""

from __future__ import annotations

from typing import Final, final

__all__ = ["LostLeaders"]

DOUBT_S: Final = 1.0


@final
class LostLeaders:
    """When the connection to each leader ended; no more entries than there were brokers."""

    def __init__(self) -> None:
        self._lost_at: dict[int, float] = {}

    def lost(self, leader_id: int, now: float) -> None:
        """A connection ended; of several the first counts."""
        self._lost_at.setdefault(leader_id, now)

    def reached(self, leader_id: int) -> None:
        """It has answered; that it takes a connection says little."""
        self._lost_at.pop(leader_id, None)

    def is_doubtful(self, leader_id: int, now: float) -> bool:
        """Whether clients should ask again instead of trying this leader."""
        lost_at = self._lost_at.get(leader_id)
        return lost_at is not None and now < lost_at + DOUBT_S
