"""All partitions of this broker: opened, given their role and dropped as the metadata image says.

The image is the only source of roles. `apply` brings the partitions in line with it: a partition
whose replicas include this broker gets a log, and leads or follows; one that is no longer ours
resigns and its log is deleted. A missing log is made away from the event loop (`log_opener`). Until
then its partition is in `pending_logs`, and `find` does not return it.

A broker that the controller has not let in yet leads nothing, not even for its followers: its log
may have lost records since its last life, and they would cut theirs. It leads when it is let in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Protocol, final
from uuid import UUID

from tidemill.core.clock import Clock
from tidemill.core.config.keys import INT64_MAX
from tidemill.core.errors import ErrorCode
from tidemill.core.ids import NO_LEADER, TopicId, TopicPartition
from tidemill.core.limits import PARTITIONS_CHANGED_PER_SLICE
from tidemill.core.loop.steps import Steps
from tidemill.core.owner_lease import ALWAYS, OwnerLease
from tidemill.metadata.image.metadata_image import (
    DeletedTopic,
    Delta,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from tidemill.metadata.image.page import page_of
from tidemill.metadata.image.topic_config import TopicConfig
from tidemill.replication.flushing.flush_requests import FlushRequests
from tidemill.replication.holding.hold_host import HoldHost
from tidemill.replication.holding.hold_policy import HoldPolicy
from tidemill.replication.leader_log import LeaderLog
from tidemill.replication.led_replicas import BrokerEpochs
from tidemill.replication.partition import Partition
from tidemill.replication.partition_settings import PartitionSettings
from tidemill.replication.pending_logs import PendingLogs
from tidemill.replication.refused_batches import RefusedTotal
from tidemill.storage.files.disk_room import DiskRoom
from tidemill.storage.log.interface import FOREVER, LogConfig, PartitionLog
from tidemill.wire.produced_batch import BatchPolicy

__all__ = ["LogStore", "ReplicaManager", "log_config_of", "settings_of"]


class LogStore(Protocol):
    """Where logs live: the data directory, as far as replication needs it."""

    def get(self, partition: TopicPartition, topic_id: TopicId) -> PartitionLog | None:
        """The partition's log, if it is open and belongs to this topic."""
        ...

    def high_watermark(self, partition: TopicPartition) -> int:
        """The high watermark of the last checkpoint; 0 if there is none."""
        ...

    def delete_log(self, partition: TopicPartition) -> None:
        """Stop serving the log; its files go later. No effect if there is none."""
        ...

    def delete_unloaded(self, partition: TopicPartition, topic_id: TopicId) -> bool:
        """The topic was deleted: delete its log if there is one that could not be loaded."""
        ...


def log_config_of(config: TopicConfig) -> LogConfig:
    """The part of a topic's configuration that the log obeys."""
    return LogConfig(
        segment_bytes=config.segment_bytes,
        segment_ms=config.segment_ms,
        index_interval_bytes=config.index_interval_bytes,
        retention_ms=config.retention_ms,
        retention_bytes=config.retention_bytes,
        delete_delay_ms=config.file_delete_delay_ms,
        deletes=config.deletes,
        compacts=config.compacts,
        min_cleanable_dirty_ratio=config.min_cleanable_dirty_ratio,
        delete_retention_ms=config.delete_retention_ms,
        min_compaction_lag_ms=config.min_compaction_lag_ms,
        max_compaction_lag_ms=_or_forever(config.max_compaction_lag_ms),
        flush_messages=_or_forever(config.flush_messages),
        flush_ms=_or_forever(config.flush_ms),
    )


def _or_forever(limit: int) -> int:
    """Kafka writes "never" as the largest number."""
    return FOREVER if limit == INT64_MAX else limit


def settings_of(topic: TopicImage) -> PartitionSettings:
    """The part of a topic's configuration that the partition obeys."""
    config = topic.config
    return PartitionSettings(
        policy=BatchPolicy(
            max_message_bytes=config.max_message_bytes,
            timestamp_type="append" if config.log_append_time else "create",
            timestamp_before_max_ms=config.message_timestamp_before_max_ms,
            timestamp_after_max_ms=config.message_timestamp_after_max_ms,
            require_keys=config.compacts,
            compression=config.compression_type,
            delay_default_ms=config.tidemill_delay_default_ms,
        ),
        in_sync_min=topic.min_isr,
        flush_before_ack=config.flush_group,
        allows_unclean=config.unclean_leader_election_enable,
        segment_bytes=config.segment_bytes,
        holds=HoldPolicy(
            is_enabled=config.tidemill_delay_enable and not config.compacts,
            delay_max_ms=config.tidemill_delay_max_ms,
            pending_max=config.tidemill_delay_max_pending,
            pending_bytes_max=config.tidemill_delay_max_pending_bytes,
        ),
    )


@final
class ReplicaManager:
    """The partitions of one broker by name."""

    def __init__(
        self,
        broker_id: int,
        store: LogStore,
        flushes: FlushRequests,
        *,
        clock: Clock,
        followed: Callable[[Partition, PartitionImage], None] = lambda _partition, _image: None,
        unfollow: Callable[[Partition], None] = lambda _partition: None,
        follower_flushed: Callable[[Partition], None] = lambda _partition: None,
        lease: OwnerLease = ALWAYS,
        broker_epoch: Callable[[], int] | None = None,
        is_vouched: bool = False,
        hold_host: HoldHost | None = None,
        room: DiskRoom | None = None,
    ) -> None:
        """`broker_epoch` is that of our registration; without one we count as let in.

        `is_vouched`: followers of this cluster vouch for their leaders. `unfollow` is called before
        a partition leads, `followed` after each role that one takes.
        """
        self.broker_id = broker_id
        self._lease = lease
        self._hold_host = hold_host
        self._room = room
        self._broker_epoch = broker_epoch
        self._is_let_in = broker_epoch is None
        self._untold: frozenset[int] = frozenset()
        """Pages whose partitions do not know of our return yet: nothing is led there."""
        self.broker_epochs = BrokerEpochs()
        self.candidate_came: Callable[[], None] = lambda: None
        """Called when a follower has caught up and may join an in-sync set."""
        self._store = store
        self._flushes = flushes
        self._clock = clock
        self._followed = followed
        self._unfollow = unfollow
        self._boottime = clock.boottime if is_vouched else None
        self._follower_flushed = follower_flushed
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._by_log: dict[PartitionLog, Partition] = {}
        self.pending_logs = PendingLogs()
        self._refused_total = RefusedTotal()

    def __len__(self) -> int:
        return len(self._partitions)

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._partitions.values())

    def find(self, topic: str, index: int) -> Partition | None:
        return self._partitions.get((topic, index))

    def find_log(self, topic: str, index: int) -> LeaderLog | None:
        """The log of a partition, to append to as its leader."""
        partition = self.find(topic, index)
        return None if partition is None else partition.as_leader

    def refused(
        self, topic: str | UUID, index: int, batch: memoryview, code: ErrorCode, now_ms: int
    ) -> None:
        """A batch has not come as far as its log: none must overtake it there, or in a new log."""
        partition = self.find(topic, index) if isinstance(topic, str) else None
        if partition is None or code is ErrorCode.UNKNOWN_TOPIC_ID:
            self.pending_logs.refusals.add((topic, index), batch, code, now_ms)
        else:
            partition.as_leader.refused(batch, code, now_ms)

    # --- following the image ---------------------------------------------------------------------

    def apply(self, delta: Delta) -> Steps[None]:
        """Bring the partitions of this broker in line with `delta.after`, some in each step.

        Between two steps some partitions have the roles of the image before: just as they have on a
        broker that hears of the change a little later. Whether we are let in changes at the end: a
        log that is made meanwhile must not lead by an image of its topic from before that.
        """
        before, now = (self._is_let_in, self._untold), self._standing(delta.after)
        self._is_let_in, self._untold = before[0] and now[0], before[1] | now[1]
        yield from self._follow_brokers(delta)
        for gone in delta.topics_deleted:
            yield from self._drop_topic(gone, delta.before.topics.get(gone.name))
        for name in delta.topics_changed:
            yield from self._apply_topic(delta.after.topics[name])
        self._is_let_in, self._untold = now
        if now != before:
            yield from self._take_leading_roles(delta.after)

    def _follow_brokers(self, delta: Delta) -> Steps[None]:
        """A broker that has come or restarted counts once no partition has its old position.

        Until then it is served in no life at all. In the old one it would tell its position again,
        in the new one it could join an in-sync set by what the old one had (I14).
        """
        if not delta.brokers_changed and not delta.members_changed:
            return
        restarted = _restarted(delta)
        self._count_brokers(delta.after, without=restarted)
        for broker_id in restarted:
            for at, partition in enumerate(list(self)):
                if at and at % PARTITIONS_CHANGED_PER_SLICE == 0:
                    yield
                partition.follower_restarted(broker_id)
        self._count_brokers(delta.after)

    def _count_brokers(self, image: MetadataImage, without: Collection[int] = ()) -> None:
        known = [one for one in image.brokers.values() if one.broker_id not in without]
        self.broker_epochs.registered = {one.broker_id: one.epoch for one in known}
        self.broker_epochs.let_in = {
            one.broker_id
            for one in known
            if _is_let_in(image, one.broker_id, one.epoch) and not one.failed and not one.leaving
        }

    def _standing(self, image: MetadataImage) -> tuple[bool, frozenset[int]]:
        """Whether the controller has let us in, and the pages that do not know of it yet."""
        if self._broker_epoch is None:
            return self._is_let_in, self._untold
        member = image.members.get(self.broker_id)
        untold = frozenset(() if member is None else member.untold)
        return _is_let_in(image, self.broker_id, self._broker_epoch()), untold

    def _take_leading_roles(self, image: MetadataImage) -> Steps[None]:
        """Also of topics that have not changed: whether we are let in decides these roles."""
        for at, partition in enumerate(list(self)):
            if at and at % PARTITIONS_CHANGED_PER_SLICE == 0:
                yield
            now = image.partition(*partition.name)
            if now is not None and now.leader == self.broker_id:
                self._take_role(partition, now)

    def open_made(self, names: Iterable[TopicPartition]) -> None:
        """Serve partitions whose logs were made; delete a log whose topic was deleted."""
        for name in names:
            topic = self.pending_logs.topic(name)
            if name in self._partitions:
                continue  # `apply` has already found the log
            if topic is None or self._store.get(name, topic.topic_id) is None:
                self._store.delete_log(name)
            else:
                settings, log_config = settings_of(topic), log_config_of(topic.config)
                image = topic.partitions[name.partition]
                self._apply_partition(topic, name.partition, image, settings, log_config)

    def _drop_topic(self, gone: DeletedTopic, before: TopicImage | None) -> Steps[None]:
        for index in range(len(before.own_partitions) if before is not None else 0):
            if index and index % PARTITIONS_CHANGED_PER_SLICE == 0:
                yield
            self._drop(TopicPartition(gone.name, index), gone.topic_id)
            self._store.delete_unloaded(TopicPartition(gone.name, index), gone.topic_id)

    def _apply_topic(self, topic: TopicImage) -> Steps[None]:
        settings = settings_of(topic)
        log_config = log_config_of(topic.config)
        for index, image in enumerate(topic.own_partitions):
            if index and index % PARTITIONS_CHANGED_PER_SLICE == 0:
                yield
            if self.broker_id in image.replicas:
                self._apply_partition(topic, index, image, settings, log_config)
            else:
                self._drop(TopicPartition(topic.name, index), topic.topic_id)

    def _apply_partition(
        self,
        topic: TopicImage,
        index: int,
        image: PartitionImage,
        settings: PartitionSettings,
        log_config: LogConfig,
    ) -> None:
        partition = self._partitions.get((topic.name, index))
        if partition is None:
            partition = self._try_open(topic, index, settings, log_config)
            if partition is None:
                return
        elif partition.settings != settings or partition.log.config != log_config:
            partition.set_settings(settings)
            partition.log.set_config(log_config)
        self._take_role(partition, image)

    def _take_role(self, partition: Partition, image: PartitionImage) -> None:
        leads = image.leader == self.broker_id
        if leads and (not self._is_let_in or page_of(partition.topic_id) in self._untold):
            partition.as_follower.after_cut = None
            partition.step_back(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self._followed(partition, replace(image, leader=NO_LEADER))
            return
        if leads and partition.as_follower.is_being_cut:
            partition.as_follower.after_cut = partial(self._take_role, partition, image)
            self._followed(partition, replace(image, leader=NO_LEADER))
            return
        partition.as_follower.after_cut = None
        if leads:
            self._unfollow(partition)  # it must know whom it has followed, and until when
            partition.become_leader(image, now=self._clock.monotonic())
        else:
            partition.become_follower(image)
        self._followed(partition, image)

    def _try_open(
        self, topic: TopicImage, index: int, settings: PartitionSettings, log_config: LogConfig
    ) -> Partition | None:
        name = TopicPartition(topic.name, index)
        log_ = self._store.get(name, topic.topic_id)
        if log_ is None:
            self.pending_logs.want(name, topic)
            return None
        self.pending_logs.forget(name)
        log_.set_config(log_config)
        partition = Partition(
            name,
            topic.topic_id,
            log_,
            broker_id=self.broker_id,
            settings=settings,
            flushes=self._flushes,
            high_watermark=self._store.high_watermark(name),
            lease=self._lease,
            epochs=self.broker_epochs,
            boottime=self._boottime,
            hold_host=self._hold_host,
            room=self._room,
            refused_total=self._refused_total,
        )
        for known_as in (topic.name, topic.topic_id):
            refused = self.pending_logs.refusals.take((known_as, index))
            partition.as_leader.adopt_refused(refused)
        partition.candidate_came = self._tell_candidate
        self._partitions[name] = partition
        self._by_log[log_] = partition
        return partition

    def _tell_candidate(self) -> None:
        self.candidate_came()

    def _drop(self, name: TopicPartition, topic_id: TopicId) -> None:
        self.pending_logs.forget(name)
        partition = self._partitions.get(name)
        if partition is None or partition.topic_id != topic_id:
            return
        del self._partitions[name]
        del self._by_log[partition.log]
        partition.as_follower.after_cut = None
        partition.resign(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partition.as_leader.dropped()
        if partition.holds is not None:
            partition.holds.host.forget(partition.holds)
        if partition.image is not None:
            self._followed(partition, replace(partition.image, leader=NO_LEADER))
        self._store.delete_log(name)
        self.pending_logs.wake()

    # --- faults and marks ------------------------------------------------------------------------

    def log_flushed(self, log_: PartitionLog) -> None:
        """A flush round that covered this log has succeeded."""
        partition = self._by_log.get(log_)
        if partition is not None:
            partition.maybe_advance_marks()
            if not partition.is_leader:
                self._follower_flushed(partition)

    def go_offline(self) -> None:
        """The data directory failed: no partition can be read or acknowledged any more (R12)."""
        for partition in self._partitions.values():
            partition.go_offline()

    @property
    def hold_clock_steps(self) -> int:
        """How often the wall clock was suddenly ahead."""
        return 0 if self._hold_host is None else self._hold_host.clock_steps

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """For the checkpoint."""
        return {partition.name: partition.high_watermark for partition in self}


def _restarted(delta: Delta) -> list[int]:
    """The brokers that have come, gone, or registered in another epoch."""
    before, after = delta.before.brokers, delta.after.brokers
    return [
        one
        for one in delta.brokers_changed
        if one not in before or one not in after or before[one].epoch != after[one].epoch
    ]


def _is_let_in(image: MetadataImage, broker_id: int, epoch: int) -> bool:
    """Whether the controller has let in this registration of the broker."""
    member = image.members.get(broker_id)
    return member is not None and member.epoch == epoch
