"""Which replicas should be in sync, decided from the followers' positions. Pure.

A follower stays in sync while it has caught up with the leader's log end within `lag_s_max`. It may
join when it has reached the high watermark *and* the start of the current leader epoch: before that
it might still hold a tail that another leader wrote. If acknowledgements wait for disks, it must
also have flushed that far, or "on every in-sync disk" would end with its joining; and one that
fetches on but flushes nothing for `lag_s_max` leaves, or its disk would stop all producers. While
too few are in sync the high watermark stands still and any follower reaches it; so one that joins
then must also keep up with the log end, or it would leave again at once (KAFKA-19996).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

__all__ = [
    "NEVER",
    "UNKNOWN_OFFSET",
    "FollowerPosition",
    "JoinBar",
    "is_behind",
    "joined",
    "kept",
]

UNKNOWN_OFFSET: Final = -1
NEVER: Final = float("-inf")
FOREVER: Final = float("inf")


@final
@dataclass(slots=True)
class FollowerPosition:
    """What the leader knows about one follower, from its fetches in this leader epoch alone."""

    log_end_offset: int = UNKNOWN_OFFSET
    """It has appended everything below."""
    flushed_offset: int = UNKNOWN_OFFSET
    """It has flushed everything below; never above `log_end_offset`."""
    caught_up_at: float = NEVER
    """Monotonic time at which it was last known to have everything that the leader had."""
    leader_end_at_fetch: int = UNKNOWN_OFFSET
    fetched_at: float = NEVER
    """The leader's log end at the last fetch, and when that was."""
    keeps_up: bool = False
    """At its last fetch it had all that the leader had had at the fetch before."""
    flushes_at: float = FOREVER
    """When it was last seen to flush, or to have nothing to flush."""
    _flushed_then: int = UNKNOWN_OFFSET
    log_start_offset: int = UNKNOWN_OFFSET
    """It has nothing below."""

    def fetched(
        self,
        *,
        fetch_offset: int,
        flushed_offset: int,
        leader_end: int,
        now: float,
        log_start_offset: int = 0,
    ) -> None:
        """Note a fetch: the follower has everything from its log start to `fetch_offset`."""
        self.log_start_offset = log_start_offset
        self.log_end_offset = fetch_offset
        self.flushed_offset = min(flushed_offset, fetch_offset)
        if fetch_offset >= leader_end:
            self.caught_up_at = now
            self.keeps_up = True
        else:
            # Under steady load a follower that keeps up is always one fetch behind.
            before = self.leader_end_at_fetch
            self.keeps_up = before != UNKNOWN_OFFSET and fetch_offset >= before
            if self.keeps_up:
                self.caught_up_at = max(self.caught_up_at, self.fetched_at)
        self.leader_end_at_fetch = leader_end
        self.fetched_at = now

    def reviewed(self, *, leader_end: int, waits_for_disks: bool, now: float) -> None:
        """Look at it from time to time: it has no reason to fetch while it has everything."""
        if self.log_end_offset >= leader_end:
            self.caught_up_at = now
        flushed = self.flushed_offset
        is_done = flushed >= self.log_end_offset or not waits_for_disks
        if is_done or flushed != self._flushed_then:
            self.flushes_at, self._flushed_then = now, flushed

    def is_stuck(self, now: float, lag_s_max: float) -> bool:
        """Whether its disk holds up those who wait for it: it fetches on, but flushes nothing."""
        return now - self.flushes_at > lag_s_max

    def lags(self, now: float, lag_s_max: float) -> bool:
        return now - self.caught_up_at > lag_s_max or self.is_stuck(now, lag_s_max)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class JoinBar:
    """What a follower must have to join the in-sync set."""

    log_end_offset: int
    flushed_offset: int = UNKNOWN_OFFSET
    log_start_offset: int = UNKNOWN_OFFSET
    """It must have deleted what was deleted: it may lead soon (I9)."""
    must_keep_up: bool = False

    def admits(self, position: FollowerPosition) -> bool:
        return (
            position.log_end_offset >= self.log_end_offset
            and position.flushed_offset >= self.flushed_offset
            and position.log_start_offset >= self.log_start_offset
            and (position.keeps_up or not self.must_keep_up)
        )


def is_behind(position: FollowerPosition, *, leader_end: int, now: float, lag_s_max: float) -> bool:
    """Whether the follower has been behind for so long that it must not be in sync."""
    has_all = position.log_end_offset >= leader_end
    return position.is_stuck(now, lag_s_max) if has_all else position.lags(now, lag_s_max)


def kept(
    isr: tuple[int, ...],
    followers: Mapping[int, FollowerPosition],
    *,
    leader_end: int,
    now: float,
    lag_s_max: float,
) -> tuple[int, ...]:
    """The in-sync set without the followers that have been behind for too long."""

    def stays(broker_id: int) -> bool:
        position = followers.get(broker_id)
        # The leader itself has no position.
        return position is None or not is_behind(
            position, leader_end=leader_end, now=now, lag_s_max=lag_s_max
        )

    return tuple([broker_id for broker_id in isr if stays(broker_id)])


def joined(
    isr: tuple[int, ...], followers: Mapping[int, FollowerPosition], bar: JoinBar
) -> tuple[int, ...]:
    """The in-sync set plus those of these followers that pass the bar."""
    joining = [
        broker_id
        for broker_id, position in sorted(followers.items())
        if broker_id not in isr and bar.admits(position)
    ]
    return (*isr, *joining)
