"""Which replicas are in sync, decided from the followers' positions. Pure.

A follower is in sync while it has caught up with the leader's log end within `lag_s_max`. It may
join again only after it has reached the high watermark *and* the start of the current leader epoch:
before that it might still hold a tail that another leader wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

__all__ = ["FollowerPosition", "expanded_isr", "shrunk_isr"]

UNKNOWN_OFFSET = -1


@final
@dataclass(slots=True)
class FollowerPosition:
    """What the leader knows about one follower, from its fetches alone."""

    log_end_offset: int = UNKNOWN_OFFSET
    """It has appended everything below."""
    flushed_offset: int = UNKNOWN_OFFSET
    """It has flushed everything below; never above `log_end_offset`."""
    caught_up_at: float = 0.0
    """Monotonic time at which it was last known to have everything that the leader had."""
    leader_end_at_fetch: int = UNKNOWN_OFFSET
    fetched_at: float = 0.0
    """The leader's log end at the last fetch, and when that was."""

    def fetched(
        self, *, fetch_offset: int, flushed_offset: int, leader_end: int, now: float
    ) -> None:
        """Note a fetch: the follower has everything before `fetch_offset`."""
        self.log_end_offset = fetch_offset
        self.flushed_offset = min(flushed_offset, fetch_offset)
        if fetch_offset >= leader_end:
            self.caught_up_at = now
        elif fetch_offset >= self.leader_end_at_fetch:
            # Under steady load a follower that keeps up is always one fetch behind.
            self.caught_up_at = max(self.caught_up_at, self.fetched_at)
        self.leader_end_at_fetch = leader_end
        self.fetched_at = now


def shrunk_isr(
    isr: tuple[int, ...],
    followers: Mapping[int, FollowerPosition],
    *,
    leader_end: int,
    now: float,
    lag_s_max: float,
) -> tuple[int, ...]:
    """The in-sync set without the followers that have been behind for too long."""

    def keeps_up(broker_id: int) -> bool:
        position = followers.get(broker_id)
        if position is None:  # the leader itself
            return True
        return position.log_end_offset >= leader_end or now - position.caught_up_at <= lag_s_max

    return tuple(broker_id for broker_id in isr if keeps_up(broker_id))


def expanded_isr(
    isr: tuple[int, ...],
    followers: Mapping[int, FollowerPosition],
    *,
    high_watermark: int,
    epoch_start_offset: int,
) -> tuple[int, ...]:
    """The in-sync set plus the followers that have caught up."""
    needed = max(high_watermark, epoch_start_offset)
    joining = (
        broker_id
        for broker_id, position in sorted(followers.items())
        if broker_id not in isr and position.log_end_offset >= needed
    )
    return (*isr, *joining)
