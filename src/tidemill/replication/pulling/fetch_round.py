"""What one lane of a follower tells its leader next: the partitions that changed (ADR 0012). Pure.

    changed  -> named in the next fetch
    held     -> not named until its time, or until it is released: it rests, or its log is being cut
    named    -> the leader knows it, and tells what is new

A fetch names at most `SLOTS_PER_FETCH_MAX` partitions, so that neither side works on it for long.
While more are to be named, the leader is asked not to wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import final
from uuid import UUID

from tidemill.core.byte_rate import NO_BOUND
from tidemill.core.limits import MIB
from tidemill.replication.partition import Partition
from tidemill.wire.generated.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)

__all__ = ["FetchRound", "LaneLimits", "Named", "SlotKey", "key_of"]

FETCH_WAIT_MS = 500
SLOTS_PER_FETCH_MAX = 500
NO_SESSION = 0
FOREVER = float("inf")

SlotKey = tuple[UUID, int]
"""Topic id and partition."""


@final
@dataclass(frozen=True, slots=True)
class LaneLimits:
    """How much one answer may bring."""

    partition_bytes: int = 1 * MIB
    answer_bytes: int = 8 * MIB


@final
@dataclass(frozen=True, slots=True)
class Named:
    """What the leader was told of a partition."""

    partition: Partition
    leader_epoch: int
    first_fetch: int
    """The number of the fetch that named it first, since it is in this round."""


def key_of(partition: Partition) -> SlotKey:
    return partition.topic_id, partition.name.partition


@final
class FetchRound:
    """The partitions of one lane, and which of them the next fetch names."""

    def __init__(
        self, broker_id: int, lane: int, limits: LaneLimits, *, vouches: bool = False
    ) -> None:
        """`vouches`: whoever stops following here is silent as a leader for a while."""
        self._broker_id = broker_id
        self._lane = lane
        self._vouches = vouches
        self.limits = limits
        self._partitions: dict[Partition, None] = {}
        self._changed: dict[Partition, None] = {}
        self._held: dict[Partition, float] = {}
        """Until when each must not be named."""
        self._named: dict[SlotKey, Named] = {}
        self._forgotten: dict[SlotKey, None] = {}
        self._session_id = NO_SESSION
        self._fetches = 0
        self._answers = 0

    def __len__(self) -> int:
        return len(self._partitions)

    def __contains__(self, partition: Partition) -> bool:
        return partition in self._partitions

    @property
    def has_session(self) -> bool:
        return self._session_id != NO_SESSION

    @property
    def has_changes(self) -> bool:
        return bool(self._changed)

    # --- partitions ------------------------------------------------------------------------------

    def add(self, partition: Partition) -> None:
        """Follow the partition in this lane, or name it again: its role has changed."""
        self._partitions[partition] = None
        self.release(partition)

    def remove(self, partition: Partition) -> None:
        if partition not in self._partitions:
            return
        del self._partitions[partition]
        self._changed.pop(partition, None)
        self._held.pop(partition, None)
        key = key_of(partition)
        if self._named.pop(key, None) is not None:
            self._forgotten[key] = None

    def change(self, partition: Partition) -> None:
        """Its position is another one: the leader should know."""
        if partition in self._partitions and partition not in self._held:
            self._changed[partition] = None

    def hold(self, partition: Partition, until: float = FOREVER) -> None:
        """Do not name it until then; `release` ends that sooner."""
        if partition in self._partitions:
            self._changed.pop(partition, None)
            self._held[partition] = until

    def release(self, partition: Partition) -> None:
        self._held.pop(partition, None)
        self.change(partition)

    # --- fetches ---------------------------------------------------------------------------------

    def restart(self) -> None:
        """A new connection: its session knows nothing."""
        self._session_id = NO_SESSION
        self._fetches = self._answers = 0
        self._named.clear()
        self._forgotten.clear()
        for partition in self._partitions:
            self.change(partition)

    def next_request(
        self, *, broker_epoch: int, now: float, bytes_max: int = NO_BOUND
    ) -> FetchRequest:
        """The next fetch: what has changed since the last one. `bytes_max`: of its answer."""
        for partition in [one for one, until in self._held.items() if until <= now]:
            self.release(partition)
        self._fetches += 1
        forgotten, self._forgotten = self._forgotten, {}
        topics: dict[UUID, FetchTopic] = {}
        for partition in list(islice(self._changed, SLOTS_PER_FETCH_MAX)):
            del self._changed[partition]
            self._name(partition, topics)
        return FetchRequest(
            replica_state=ReplicaState(replica_id=self._broker_id, replica_epoch=broker_epoch),
            replica_lane=self._lane,
            replica_vouches=self._vouches,
            session_id=self._session_id,
            session_epoch=self._answers,
            max_wait_ms=self._wait_ms(now),
            min_bytes=1,
            max_bytes=min(self.limits.answer_bytes, bytes_max),
            topics=list(topics.values()),
            forgotten_topics_data=_forgotten_topics(forgotten),
        )

    def answered(self, session_id: int) -> int:
        """An answer is here; which one it is."""
        self._session_id = session_id
        self._answers += 1
        return self._answers

    def try_named(self, key: SlotKey, answer: int) -> Named | None:
        """The partition that this answer is about, unless it has left or come back since."""
        named = self._named.get(key)
        return named if named is not None and named.first_fetch <= answer else None

    def _name(self, partition: Partition, topics: dict[UUID, FetchTopic]) -> None:
        key = key_of(partition)
        known = self._named.get(key)
        first_fetch = self._fetches if known is None else known.first_fetch
        self._named[key] = Named(partition, partition.leader_epoch, first_fetch)
        topic = topics.get(partition.topic_id)
        if topic is None:
            topic = topics[partition.topic_id] = FetchTopic(topic_id=partition.topic_id)
        topic.partitions.append(_wanted(partition, self.limits.partition_bytes))

    def _wait_ms(self, now: float) -> int:
        """How long the leader may wait: not while there is more to say, nor beyond a rest."""
        if self._changed:
            return 0
        ends = [until - now for until in self._held.values()]
        return min([FETCH_WAIT_MS, *(int(1000 * end) for end in ends if end < FOREVER)])


def _wanted(partition: Partition, max_bytes: int) -> FetchPartition:
    log = partition.log
    return FetchPartition(
        partition=partition.name.partition,
        current_leader_epoch=partition.leader_epoch,
        fetch_offset=partition.as_follower.fetch_offset,
        last_fetched_epoch=log.epochs.latest,
        log_start_offset=partition.as_follower.start_offset,
        partition_max_bytes=max_bytes,
        high_watermark=partition.high_watermark,
        flushed_offset=log.flushed_offset,
    )


def _forgotten_topics(keys: dict[SlotKey, None]) -> list[ForgottenTopic]:
    topics: dict[UUID, ForgottenTopic] = {}
    for topic_id, index in keys:
        topics.setdefault(topic_id, ForgottenTopic(topic_id=topic_id)).partitions.append(index)
    return list(topics.values())
