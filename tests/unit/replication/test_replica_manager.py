"""Partitions are opened, change their role and are dropped as the metadata image says."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from tests.support.partitions import (
    NOW_MS,
    OWN,
    SECOND,
    THIRD,
    Flushes,
    append,
    batch,
    fetched,
    image,
)
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import NO_LEADER, TopicId, TopicPartition
from tidemill.core.limits import (
    PARTITIONS_CHANGED_PER_SLICE,
    REFUSED_PRODUCERS_MAX,
    REFUSED_PRODUCERS_PER_BROKER_MAX,
)
from tidemill.core.loop.steps import Steps, finished
from tidemill.metadata.image.image_draft import ImageDraft
from tidemill.metadata.image.metadata_image import (
    BrokerImage,
    MemberImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from tidemill.metadata.image.topic_config import TopicConfig
from tidemill.replication.partition import Partition
from tidemill.replication.replica_manager import ReplicaManager, log_config_of
from tidemill.storage.log.interface import FOREVER, LogConfig, PartitionLog
from tidemill.storage.log.memory_log import MemoryPartitionLog
from tidemill.testing.manual_clock import ManualClock

ALL = (OWN, SECOND, THIRD)


class Logs:
    """A data directory in memory."""

    def __init__(self) -> None:
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.topic_ids: dict[TopicPartition, TopicId] = {}
        self.deleted: list[TopicPartition] = []
        self.marks: dict[TopicPartition, int] = {}

    def get(self, partition: TopicPartition, topic_id: TopicId) -> PartitionLog | None:
        return self.logs[partition] if self.topic_ids.get(partition) == topic_id else None

    def make(self, partition: TopicPartition, topic_id: UUID) -> None:
        self.logs[partition] = MemoryPartitionLog(LogConfig())
        self.topic_ids[partition] = TopicId(topic_id)

    def high_watermark(self, partition: TopicPartition) -> int:
        return self.marks.get(partition, 0)

    def delete_log(self, partition: TopicPartition) -> None:
        if partition in self.logs:
            self.deleted.append(partition)
            del self.logs[partition], self.topic_ids[partition]

    def delete_unloaded(self, partition: TopicPartition, topic_id: TopicId) -> bool:
        return False


class Place:
    """One broker's partitions, and the metadata that they obey."""

    def __init__(self) -> None:
        self.logs = Logs()
        self.clock = ManualClock()
        self.followed: list[tuple[str, int]] = []
        self.broker_epoch: int | None = None
        """That of our registration; None: nobody asks whether we are let in."""
        self.replicas = self._manager()
        self.metadata = MetadataImage()

    def _manager(self, **options: object) -> ReplicaManager:
        return ReplicaManager(
            OWN,
            self.logs,
            Flushes(),
            clock=self.clock,
            followed=self._followed,
            **options,  # type: ignore[arg-type]
        )

    def register_ourselves(self, epoch: int) -> None:
        """From now on we lead only where the controller has let us in."""
        self.replicas = self._manager(broker_epoch=lambda: self.broker_epoch)
        self.broker_epoch = epoch

    def let_in(self, broker_id: int, epoch: int) -> None:
        draft = ImageDraft(self.metadata)
        member = MemberImage(broker_id=broker_id, epoch=epoch)
        draft.set_members({**self.metadata.members, broker_id: member})
        self._apply(draft)

    def _followed(self, partition: Partition, now: PartitionImage) -> None:
        self.followed.append((str(partition.name), now.leader))

    def put(self, *topics: TopicImage) -> None:
        """Create or change topics, and make their logs."""
        self.announce(*topics)
        self.make_logs()

    def announce(self, *topics: TopicImage) -> None:
        """Create or change topics, without making their logs."""
        draft = ImageDraft(self.metadata)
        for topic in topics:
            draft.put_topic(topic)
        self._apply(draft)

    def make_logs(self) -> None:
        group = self.begin_logs()
        self.finish_logs(group)

    def begin_logs(self) -> list[tuple[TopicPartition, TopicImage]]:
        group = self.replicas.pending_logs.take(1_000)
        for name, topic in group:
            self.logs.make(name, topic.topic_id)
        return group

    def finish_logs(self, group: list[tuple[TopicPartition, TopicImage]]) -> None:
        self.replicas.open_made(name for name, _ in group)
        self.replicas.pending_logs.tried(group)

    def drop(self, name: str) -> None:
        draft = ImageDraft(self.metadata)
        draft.drop_topic(name)
        self._apply(draft)

    def register(self, broker_id: int, epoch: int, *, leaving: bool = False) -> None:
        draft = ImageDraft(self.metadata)
        broker = BrokerImage(broker_id=broker_id, epoch=epoch, host="h", port=1, leaving=leaving)
        draft.put_broker(broker)
        self._apply(draft)

    def registered(self, broker_id: int, epoch: int, *, let_in: bool = False) -> ImageDraft:
        """The image with a registration, and perhaps what the controller makes of it."""
        draft = ImageDraft(self.metadata)
        draft.put_broker(BrokerImage(broker_id=broker_id, epoch=epoch, host="h", port=1))
        if let_in:
            member = MemberImage(broker_id=broker_id, epoch=epoch)
            draft.set_members({**self.metadata.members, broker_id: member})
        return draft

    def _apply(self, draft: ImageDraft) -> None:
        finished(self.begin(draft))

    def begin(self, draft: ImageDraft) -> Steps[None]:
        """The steps in which partitions follow."""
        delta = draft.finish()
        self.metadata = delta.after
        return self.replicas.apply(delta)

    def partition(self, topic: str = "t", index: int = 0) -> Partition:
        found = self.replicas.find(topic, index)
        assert found is not None
        return found


def topic(
    *partitions: PartitionImage, name: str = "t", number: int = 1, **keys: object
) -> TopicImage:
    config = replace(TopicConfig(), **keys)  # type: ignore[arg-type]
    return TopicImage(
        name=name, topic_id=TopicId(UUID(int=number)), partitions=tuple(partitions), config=config
    )


@pytest.fixture
def place() -> Place:
    return Place()


def test_F77_only_partitions_with_a_replica_here_get_a_log(place):
    place.put(topic(image(), image(leader=SECOND, replicas=(SECOND, THIRD))))
    assert list(place.logs.logs) == [TopicPartition("t", 0)]
    assert place.replicas.find("t", 1) is None
    assert len(place.replicas) == 1


def test_the_image_decides_who_leads(place):
    place.put(topic(image(), image(leader=SECOND, isr=ALL)))
    assert [partition.is_leader for partition in place.replicas] == [True, False]
    assert place.followed == [("t-0", OWN), ("t-1", SECOND)]


def test_a_partition_keeps_its_log_when_it_follows_a_new_leader(place):
    place.put(topic(image(isr=ALL)))
    log = place.partition().log
    place.put(topic(image(leader=THIRD, epoch=1, isr=ALL)))
    assert place.partition().log is log
    assert not place.partition().is_leader
    assert place.followed[-1] == ("t-0", THIRD)


def test_the_log_of_a_deleted_topic_is_deleted(place):
    place.put(topic(image()))
    gone = place.partition()
    place.drop("t")
    assert len(place.replicas) == 0
    assert place.logs.deleted == [TopicPartition("t", 0)]
    with pytest.raises(KafkaError):
        append(gone)


def test_a_deleted_topic_is_no_longer_followed(place):
    place.put(topic(image(leader=SECOND, isr=ALL)))
    place.drop("t")
    assert place.followed[-1] == ("t-0", NO_LEADER)


def test_requests_that_wait_on_a_deleted_topic_are_refused(place):
    place.put(topic(image(isr=ALL)))
    heard: list[ErrorCode] = []
    partition = place.partition()
    partition.as_leader.wait_acknowledged(append(partition).next_offset, heard.append)
    place.drop("t")
    assert heard == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_I36_the_partitions_of_a_broker_wait_for_a_bounded_number_of_refused_producers(place):
    count = REFUSED_PRODUCERS_PER_BROKER_MAX // REFUSED_PRODUCERS_MAX + 1
    place.put(topic(*[image() for _ in range(count)]))
    batches = [
        memoryview(batch(producer_id=producer_id, producer_epoch=0, base_sequence=0))
        for producer_id in range(REFUSED_PRODUCERS_MAX)
    ]
    for index in range(count):
        for one in batches:
            place.replicas.refused("t", index, one, ErrorCode.KAFKA_STORAGE_ERROR, NOW_MS)

    behind = {"producer_id": 0, "producer_epoch": 0, "base_sequence": 1}
    assert append(place.partition(index=0), **behind).base_offset == 0, "it was forgotten"
    with pytest.raises(KafkaError, match="a batch before this one was refused"):
        append(place.partition(index=count - 1), **behind)


def test_I36_the_partitions_of_a_deleted_topic_wait_for_nobody(place):
    place.put(topic(image()))
    refused = memoryview(batch(producer_id=9, producer_epoch=0, base_sequence=0))
    place.replicas.refused("t", 0, refused, ErrorCode.KAFKA_STORAGE_ERROR, NOW_MS)
    assert len(place.replicas._refused_total) == 1
    place.drop("t")
    assert len(place.replicas._refused_total) == 0


def test_I34_a_topic_created_again_under_its_name_is_empty(place):
    place.put(topic(image()))
    append(place.partition(), 3)
    place.put(topic(image(), number=2))
    assert place.partition().log.log_end_offset == 0
    assert place.partition().topic_id == UUID(int=2)


def test_a_replica_that_moved_to_another_broker_is_dropped(place):
    place.put(topic(image(isr=ALL)))
    place.put(topic(image(leader=SECOND, epoch=1, replicas=(SECOND, THIRD), isr=(SECOND,))))
    assert place.replicas.find("t", 0) is None
    assert place.logs.deleted == [TopicPartition("t", 0)]


def test_changed_topic_keys_reach_partition_and_log(place):
    place.put(topic(image()))
    place.put(topic(image(), min_insync_replicas=2, segment_bytes=4096))
    assert place.partition().settings.in_sync_min == 2
    assert place.partition().log.config.segment_bytes == 4096


def test_a_partition_is_not_found_before_its_log_is_made(place):
    place.announce(topic(image()))
    assert place.replicas.find("t", 0) is None
    assert place.replicas.pending_logs.has_untried("t")
    place.make_logs()
    assert place.partition().is_leader
    assert len(place.replicas.pending_logs) == 0


def test_a_partition_takes_on_the_role_that_the_newest_image_gives_it(place):
    place.announce(topic(image(isr=ALL)))
    group = place.begin_logs()
    place.announce(topic(image(leader=SECOND, epoch=1, isr=ALL), segment_bytes=4096))
    place.finish_logs(group)
    assert not place.partition().is_leader
    assert place.partition().log.config.segment_bytes == 4096


def test_an_image_that_finds_the_log_first_opens_the_partition_once(place):
    place.announce(topic(image()))
    group = place.begin_logs()
    place.announce(topic(image(epoch=1)))
    opened = place.partition()
    place.finish_logs(group)
    assert place.partition() is opened
    assert place.logs.deleted == []


def test_the_log_of_a_topic_that_was_deleted_meanwhile_is_deleted(place):
    place.announce(topic(image()))
    group = place.begin_logs()
    place.drop("t")
    place.finish_logs(group)
    assert len(place.replicas) == 0
    assert place.logs.deleted == [TopicPartition("t", 0)]


def test_I34_a_log_made_for_the_old_topic_is_not_served_to_the_new_one(place):
    place.announce(topic(image()))
    group = place.begin_logs()
    place.drop("t")
    place.announce(topic(image(), number=2))
    place.finish_logs(group)
    assert place.replicas.find("t", 0) is None
    place.make_logs()
    assert place.partition().topic_id == UUID(int=2)


def test_the_logs_of_a_deleted_topic_are_no_longer_pending(place):
    place.announce(topic(image()))
    place.drop("t")
    assert place.replicas.pending_logs.take(10) == []
    assert not place.replicas.pending_logs.has_untried("t")


def test_a_partition_starts_with_its_last_recorded_high_watermark(place):
    name = TopicPartition("t", 0)
    place.logs.marks[name] = 2
    place.put(topic(image(leader=SECOND, isr=ALL)))
    assert place.partition().high_watermark == 2
    assert place.replicas.high_watermarks() == {name: 2}


def test_a_flush_moves_the_marks_of_its_partition(place):
    place.put(topic(image()))
    append(place.partition())
    place.replicas.log_flushed(place.partition().log)
    assert place.partition().durable_offset == 1
    place.replicas.log_flushed(MemoryPartitionLog(LogConfig()))


def test_R12_a_failed_directory_takes_every_partition_offline(place):
    place.put(topic(image(), image()))
    place.replicas.go_offline()
    for partition in place.replicas:
        with pytest.raises(KafkaError) as caught:
            append(partition)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR


def _wants(partition: Partition, broker_id: int) -> bool:
    proposal = partition.try_propose_isr(now=1.0)
    return proposal is not None and (broker_id, 2) in proposal.isr


def test_I14_the_position_of_a_broker_before_its_restart_does_not_count(place):
    """It may have lost its tail: only a fetch after the restart counts."""
    place.register(SECOND, epoch=1)
    place.let_in(SECOND, epoch=1)
    place.put(topic(image(isr=(OWN,))))
    partition = place.partition()
    append(partition, 5)
    fetched(SECOND, partition, 5)
    place.register(SECOND, epoch=2)
    place.let_in(SECOND, epoch=2)
    assert not _wants(partition, SECOND)
    fetched(SECOND, partition, 5)
    assert _wants(partition, SECOND)


def _wide(partition: PartitionImage, **options: int) -> TopicImage:
    """A topic that takes several steps."""
    return topic(*[partition] * (PARTITIONS_CHANGED_PER_SLICE + 1), **options)


def test_I14_between_two_steps_no_position_of_an_earlier_life_counts_for_the_new_one(place):
    """The last partition has not forgotten it yet: nobody may join by that in the new epoch."""
    place.register(SECOND, epoch=1)
    place.let_in(SECOND, epoch=1)
    place.put(_wide(image(isr=(OWN,))))
    last = place.partition(index=PARTITIONS_CHANGED_PER_SLICE)
    append(last, 5)
    fetched(SECOND, last, 5)
    steps = place.begin(place.registered(SECOND, epoch=2, let_in=True))
    next(steps)
    assert not _wants(last, SECOND)
    finished(steps)
    assert not _wants(last, SECOND)
    fetched(SECOND, last, 5)
    assert _wants(last, SECOND)


def test_I15_between_two_steps_a_follower_is_served_in_neither_of_its_lives(place):
    """Partitions that have forgotten the earlier life must not hear of it again."""
    place.register(SECOND, epoch=1)
    place.put(_wide(image(isr=(OWN,))))
    steps = place.begin(place.registered(SECOND, epoch=2))
    next(steps)
    for epoch in (1, 2):
        with pytest.raises(KafkaError):
            place.replicas.broker_epochs.check(SECOND, epoch)
    finished(steps)
    place.replicas.broker_epochs.check(SECOND, 2)


def test_a_follower_that_is_about_to_leave_keeps_its_position_and_does_not_join(place):
    place.register(SECOND, epoch=2)
    place.let_in(SECOND, epoch=2)
    place.put(topic(image(isr=(OWN,))))
    partition = place.partition()
    append(partition, 5)
    fetched(SECOND, partition, 5)
    place.register(SECOND, epoch=2, leaving=True)
    assert partition.led.followers[SECOND].log_end_offset == 5
    assert not _wants(partition, SECOND)


def test_a_follower_that_is_fenced_does_not_join(place):
    place.register(SECOND, epoch=2)
    place.let_in(SECOND, epoch=1)
    place.put(topic(image(isr=(OWN,))))
    partition = place.partition()
    append(partition, 5)
    fetched(SECOND, partition, 5)
    assert not _wants(partition, SECOND)
    place.let_in(SECOND, epoch=2)
    assert _wants(partition, SECOND)


# --- before and after the controller lets us in --------------------------------------------------


def test_a_broker_that_is_not_let_in_leads_nothing_and_serves_no_follower(place):
    place.register_ourselves(epoch=7)
    place.put(topic(image()))
    for check in (place.partition().check_leader, place.partition().check_serves_followers):
        with pytest.raises(KafkaError) as caught:
            check()
        assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert place.followed[-1] == ("t-0", NO_LEADER)


def test_a_broker_that_is_let_in_leads_without_another_change_of_its_topics(place):
    place.register_ourselves(epoch=7)
    place.put(topic(image(), image(leader=SECOND)))
    place.let_in(OWN, epoch=6)
    assert not place.partition().is_leader
    place.let_in(OWN, epoch=7)
    assert [partition.is_leader for partition in place.replicas] == [True, False]


def test_a_broker_that_is_not_let_in_follows(place):
    place.register_ourselves(epoch=7)
    place.put(topic(image(leader=SECOND)))
    assert place.followed == [("t-0", SECOND)]


def test_a_broker_that_registers_again_leads_only_after_it_is_let_in_again(place):
    place.register_ourselves(epoch=7)
    place.let_in(OWN, epoch=7)
    place.put(topic(image(isr=(OWN, SECOND))))
    heard: list[ErrorCode] = []
    partition = place.partition()
    partition.as_leader.wait_acknowledged(append(partition).next_offset, heard.append)
    place.broker_epoch = 8
    place.register(OWN, epoch=8)
    assert not partition.is_leader
    assert heard == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    place.let_in(OWN, epoch=8)
    assert partition.is_leader


def test_I11_a_log_that_is_made_between_two_steps_does_not_lead_in_an_earlier_epoch(place):
    """The change that lets us in has the epochs of our new life: it leads in none before that."""
    place.register_ourselves(epoch=7)
    place.register(OWN, epoch=7)
    place.announce(_wide(image(epoch=1, isr=ALL)))
    group = place.begin_logs()
    draft = place.registered(OWN, epoch=7, let_in=True)
    draft.put_topic(_wide(image(leader=SECOND, epoch=2, isr=(SECOND,), version=1)))
    steps = place.begin(draft)
    next(steps)
    place.finish_logs(group)
    assert not any(partition.is_leader for partition in place.replicas)
    finished(steps)
    assert {partition.leader_epoch for partition in place.replicas} == {2}


def test_F27_kafkas_largest_number_means_no_flush_rule():
    config = log_config_of(TopicConfig())
    assert (config.flush_messages, config.flush_ms) == (FOREVER, FOREVER)
