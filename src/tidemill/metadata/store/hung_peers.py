"""Which sessions belong to processes that run no more code: the decision by their stamps. Pure.

Every process renews the stamp of its session five times a second while its event loop turns. A
stopped or hung process keeps its lock and so its leaderships, until somebody ends it: that is who
finds the stamp too old here.

An observer that was itself stopped sees only old stamps when it wakes, its peers perhaps stopped
with it and awake again. So one look is never enough: the same old stamp must be seen again after
the peers have had time to renew it, by an observer that was awake in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from tidemill.core.limits import (
    SESSION_CONFIRM_S,
    SESSION_HUNG_S,
    SESSION_LOOK_GAP_S_MAX,
)

__all__ = ["HungPeers"]


@final
class HungPeers:
    """What one observer has seen of its peers' stamps."""

    def __init__(self) -> None:
        self._first_seen: dict[int, tuple[float, float]] = {}
        """By session: its newest stamp, and when this observer first saw it."""
        self._looked_at = float("-inf")

    def look(self, stamps: Mapping[int, float], now: float) -> list[int]:
        """The sessions whose processes hang, given the stamps of all peers."""
        if now - self._looked_at > SESSION_LOOK_GAP_S_MAX:
            self._first_seen.clear()
        self._looked_at = now
        self._first_seen = {
            one: self._seen(one, stamp, now) for one, stamp in sorted(stamps.items())
        }
        return [
            one
            for one, (stamp, seen_at) in self._first_seen.items()
            if now - stamp > SESSION_HUNG_S and now - seen_at >= SESSION_CONFIRM_S
        ]

    def _seen(self, session_id: int, stamp: float, now: float) -> tuple[float, float]:
        known = self._first_seen.get(session_id)
        return known if known is not None and known[0] == stamp else (stamp, now)
