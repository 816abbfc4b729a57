"""What a leader knows of the replicas of one partition, in one leader epoch. Pure.

Nothing here outlives the epoch: positions were told to another leader, or before another leader
could make the followers cut their logs. A position also ends when its follower registers again or
leaves, because it may have lost data since (I14); it is unknown until the follower fetches again.
"""

from __future__ import annotations

from typing import final

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.metadata.image.metadata_image import PartitionImage
from tidemill.replication.in_sync import InSync, Members
from tidemill.replication.isr import (
    NEVER,
    UNKNOWN_OFFSET,
    FollowerPosition,
    JoinBar,
    is_behind,
    joined,
    kept,
)

__all__ = ["LAG_S_MAX", "BrokerEpochs", "LedReplicas"]

LAG_S_MAX = 10.0
"""Until a broker has read its configuration: the default of replica.lag.time.max.ms."""


@final
class BrokerEpochs:
    """What a leader goes by with other brokers: the same for all partitions."""

    __slots__ = ("lag_s_max", "let_in", "registered")

    def __init__(self) -> None:
        self.registered: dict[int, int] | None = None
        """Broker ids and the epochs of their registrations; None: there is no image yet."""
        self.let_in: set[int] = set()
        """Those that the controller has let in, in that epoch, and that may join in-sync sets."""
        self.lag_s_max = LAG_S_MAX
        """After so long behind a follower leaves the in-sync set."""

    def epoch_of(self, broker_id: int) -> int:
        return -1 if self.registered is None else self.registered.get(broker_id, -1)

    def may_join(self, broker_id: int) -> bool:
        return self.registered is None or broker_id in self.let_in

    def check(self, broker_id: int, epoch: int) -> None:
        """KafkaError unless a broker that fetches is in the life that the image knows (I15)."""
        if self.registered is not None and self.registered.get(broker_id) != epoch:
            raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, f"broker {broker_id}, epoch {epoch}")


@final
class LedReplicas:
    """The followers' positions, and the in-sync set that the leader must respect."""

    __slots__ = ("_candidates", "_epochs", "_own_id", "electable", "followers", "in_sync")

    def __init__(
        self, own_id: int, image: PartitionImage, epochs: BrokerEpochs, *, now: float
    ) -> None:
        self._own_id = own_id
        self._epochs = epochs
        self._candidates: set[int] = set()
        self.in_sync = InSync(own_id, image.isr, image.partition_epoch)
        self.electable = {*image.isr, *image.elr, *image.suspects}
        """Whom the controller may elect without our knowing: whoever was in one of these sets in
        the last image, or may have come into one since."""
        self.followers: dict[int, FollowerPosition] = {
            broker_id: FollowerPosition(caught_up_at=now if broker_id in image.isr else NEVER)
            for broker_id in image.replicas
            if broker_id != own_id
        }

    def others_electable(self) -> set[int]:
        return self.electable - {self._own_id}

    def follow(self, image: PartitionImage, *, now: float) -> None:
        """Adopt another image of the same leader epoch."""
        others = [one for one in image.replicas if one != self._own_id]
        for gone in [one for one in self.followers if one not in others]:
            del self.followers[gone]
        for new in others:
            if new not in self.followers:
                since = now if new in image.isr else NEVER
                self.followers[new] = FollowerPosition(caught_up_at=since)
        self.in_sync.saw(image.isr, image.partition_epoch)
        if image.partition_epoch >= self.in_sync.partition_epoch:
            self.electable = set(self.in_sync.feared)
        self.electable.update(image.isr, image.elr, image.suspects)
        self._recount()

    def fetched(
        self,
        broker_id: int,
        *,
        fetch_offset: int,
        flushed_offset: int,
        leader_end: int,
        now: float,
        log_start_offset: int = 0,
    ) -> bool:
        """Note a follower's fetch; whether it makes the follower a candidate."""
        position = self.followers.get(broker_id)
        if position is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{broker_id} is no replica")
        if fetch_offset > leader_end:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{broker_id} is ahead of its leader")
        position.fetched(
            fetch_offset=fetch_offset,
            flushed_offset=flushed_offset,
            log_start_offset=log_start_offset,
            leader_end=leader_end,
            now=now,
        )
        if broker_id in self.in_sync.committed or broker_id in self._candidates:
            return False
        is_stuck = position.is_stuck(now, self._epochs.lag_s_max)
        if not position.keeps_up or is_stuck or not self._epochs.may_join(broker_id):
            return False
        self._candidates.add(broker_id)
        self._recount()
        return True

    def flushed(self, broker_id: int, flushed_offset: int) -> bool:
        """Note what a follower has flushed, up to what it has fetched; whether that is more.

        A flush can end before the cut that this epoch brings: what was flushed beyond the noted
        end may be what the follower has to cut.
        """
        position = self.followers.get(broker_id)
        if position is None:
            return False
        flushed = min(flushed_offset, position.log_end_offset)
        if flushed <= position.flushed_offset:
            return False
        position.flushed_offset = flushed
        return True

    def agreed_start(self, own_start: int) -> int:
        """Nobody who may be in sync, or soon is, has anything below; UNKNOWN_OFFSET: not known."""
        start = own_start
        for broker_id in sorted({*self.in_sync.maximal, *self._candidates}):
            if broker_id != self._own_id:
                position = self.followers.get(broker_id)
                start = min(
                    start, UNKNOWN_OFFSET if position is None else position.log_start_offset
                )
        return start

    def review_positions(self, *, leader_end: int, waits_for_disks: bool, now: float) -> None:
        """See who is caught up without a reason to fetch, and whose disk works."""
        for position in self.followers.values():
            position.reviewed(leader_end=leader_end, waits_for_disks=waits_for_disks, now=now)

    def restarted(self, broker_id: int) -> None:
        """Forget a broker's position: it has registered again, or it has left."""
        position = self.followers.get(broker_id)
        if position is not None:
            self.followers[broker_id] = FollowerPosition(caught_up_at=position.caught_up_at)
            self._candidates.discard(broker_id)
            self._recount()

    def review_candidates(self, now: float) -> bool:
        """Let those go that have fallen behind; whether there were any."""
        behind = [
            one
            for one in sorted(self._candidates)
            if one not in self.followers
            or self.followers[one].lags(now, self._epochs.lag_s_max)
            or not self._epochs.may_join(one)
        ]
        self._candidates.difference_update(behind)
        if behind:
            self._recount()
        return bool(behind)

    def _recount(self) -> None:
        self.in_sync.set_candidates(tuple(sorted(self._candidates)))

    def wanted(self, bar: JoinBar, *, leader_end: int, now: float) -> Members:
        """The in-sync set that the positions imply, each member in its present broker epoch.

        Nobody joins who would have to leave at once. Below the minimum the marks wait for one that
        has gone: its last position would let it join again and again.
        """
        epochs = self._epochs
        lag_s_max = epochs.lag_s_max
        isr = kept(
            self.in_sync.committed,
            self.followers,
            leader_end=leader_end,
            now=now,
            lag_s_max=lag_s_max,
        )
        eligible = {
            broker_id: position
            for broker_id, position in self.followers.items()
            if broker_id not in self.in_sync.committed
            and epochs.may_join(broker_id)
            and not is_behind(position, leader_end=leader_end, now=now, lag_s_max=lag_s_max)
        }
        return tuple([(one, epochs.epoch_of(one)) for one in joined(isr, eligible, bar)])
