"""A broker with one replica, as a value: `thaw` makes the real objects of it, `freeze` is the way
back.

The real ones are `ReplicaManager`, `Partition` and all that these have; the log is a tuple here.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple, cast
from uuid import UUID

from tidemill.core.ids import TopicId, TopicPartition
from tidemill.metadata.image.metadata_image import (
    BrokerImage,
    Delta,
    MemberImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
    difference,
)
from tidemill.metadata.image.topic_config import TopicConfig
from tidemill.replication.in_sync import InSync, Members
from tidemill.replication.isr import FollowerPosition
from tidemill.replication.led_replicas import LedReplicas
from tidemill.replication.partition import Partition
from tidemill.replication.partition_settings import PartitionSettings
from tidemill.replication.replica_manager import ReplicaManager, log_config_of, settings_of
from tidemill.storage.log.interface import LogConfig, LogCut, PartitionLog
from tidemill.storage.state.leader_epochs import LeaderEpochs
from tidemill.storage.state.log_damage import LogDamage

__all__ = [
    "NAME",
    "TOPIC_ID",
    "Broker",
    "Copy",
    "Log",
    "Meta",
    "ModelLog",
    "Registration",
    "delta_to",
    "freeze",
    "image_of",
    "thaw",
]

NAME = TopicPartition("t", 0)
TOPIC_ID = TopicId(UUID(int=7))
CONFIG = TopicConfig()
Log = tuple[int, ...]
"""The epochs of the records: one leader per epoch, so offset and epoch name a record."""


class Registration(NamedTuple):
    """One life of a broker in the store; as a member, the life that the controller has let in."""

    epoch: int = 0
    disk: int = 1
    unclean: bool = False


class Meta(NamedTuple):
    """The metadata, as the controller has written it."""

    partition: PartitionImage
    brokers: tuple[Registration | None, ...]
    members: tuple[Registration, ...]


class Sets(NamedTuple):
    """An `InSync`."""

    committed: tuple[int, ...]
    partition_epoch: int
    feared: tuple[int, ...]
    is_unsettled: bool
    has_unanswered: bool
    proposed: Members | None


class Led(NamedTuple):
    """A `LedReplicas`."""

    sets: Sets
    positions: tuple[tuple[int, tuple[object, ...]], ...]
    candidates: tuple[int, ...]


class Copy(NamedTuple):
    """A `Partition` and its log."""

    log: Log = ()
    flushed: int = 0
    epochs: tuple[tuple[int, int], ...] = ()
    leader_epoch: int = -1
    image: PartitionImage | None = None
    is_leader: bool = False
    mark: int = 0
    durable: int = 0
    epoch_start: int = 0
    knows_mark: bool = False
    led: Led | None = None


class Broker(NamedTuple):
    """One machine; `view` is None while no process runs on it."""

    view: Meta | None
    life: int = 0
    disk: int = 1
    is_let_in: bool = True
    lost_in: int = -1
    """The last life that ended with a loss of records; the controller hears of it with the next."""
    ended_clean: bool = False
    copy: Copy = Copy()


@cache
def image_of(meta: Meta, min_isr: int) -> MetadataImage:
    return MetadataImage(
        brokers={
            one: BrokerImage(
                broker_id=one,
                epoch=known.epoch,
                host="",
                port=0,
                directory_id=UUID(int=known.disk),
                unclean=known.unclean,
            )
            for one, known in enumerate(meta.brokers)
            if known is not None
        },
        members={
            one: MemberImage(broker_id=one, epoch=known.epoch, directory_id=UUID(int=known.disk))
            for one, known in enumerate(meta.members)
        },
        topics={NAME.topic: _topic(meta.partition, min_isr)},
        names={TOPIC_ID: NAME.topic},
    )


def _topic(partition: PartitionImage, min_isr: int) -> TopicImage:
    return TopicImage(
        name=NAME.topic,
        topic_id=TOPIC_ID,
        partitions=(partition,),
        config=CONFIG,
        stored_min_isr=min_isr,
    )


@cache
def delta_to(before: Meta | None, after: Meta, min_isr: int) -> Delta:
    known = MetadataImage() if before is None else image_of(before, min_isr)
    return difference(known, image_of(after, min_isr))


# --- the log -------------------------------------------------------------------------------------


class _NoProducers:
    first_veiled_offset = -1

    def stable_offset(self, high_watermark: int) -> int:
        return high_watermark


class ModelLog:
    """A log of records that are nothing but their epochs."""

    log_start_offset = 0
    producers = _NoProducers()
    damage = LogDamage()
    config = log_config_of(CONFIG)

    def __init__(self, copy: Copy) -> None:
        self.records = copy.log
        self.flushed_offset = copy.flushed
        self.epochs = LeaderEpochs(copy.epochs)

    @property
    def log_end_offset(self) -> int:
        return len(self.records)

    def set_config(self, config: LogConfig) -> None:
        pass

    def append(self, *records: int) -> None:
        for epoch in records:
            self.epochs.assign(epoch, len(self.records))
            self.records += (epoch,)

    def plan_truncation(self, offset: int) -> LogCut | None:
        return cast(LogCut, _Cut(self, offset)) if offset < len(self.records) else None

    def plan_restart(self, offset: int) -> LogCut:
        assert offset == 0, "nothing is deleted here"
        return cast(LogCut, _Cut(self, 0))


class _Cut:
    def __init__(self, log: ModelLog, offset: int) -> None:
        self._log = log
        self._offset = offset

    def begin(self) -> bool:
        self._log.records = self._log.records[: self._offset]
        self._log.flushed_offset = min(self._log.flushed_offset, self._offset)
        return True


class _Around:
    """What a broker has around its replica: nothing of it matters here."""

    def monotonic(self) -> float:
        return 0.0

    def appended(self, log: PartitionLog, size_bytes: int, *, ack_waits: bool) -> None:
        pass

    def request(self, log: PartitionLog) -> None:
        pass

    def high_watermark(self, partition: TopicPartition) -> int:
        return 0

    def get(self, partition: TopicPartition, topic_id: TopicId) -> None:
        return None


AROUND = _Around()


# --- brokers -------------------------------------------------------------------------------------


def thaw(own_id: int, broker: Broker, min_isr: int) -> tuple[ReplicaManager, Partition]:
    copy = broker.copy
    manager = ReplicaManager(
        own_id,
        AROUND,  # type: ignore[arg-type]
        AROUND,
        clock=AROUND,  # type: ignore[arg-type]
        broker_epoch=lambda: broker.life,
    )
    manager._is_let_in = broker.is_let_in
    if broker.view is not None:
        _know_brokers(manager, broker.view)
    partition = Partition(
        NAME,
        TOPIC_ID,
        cast(PartitionLog, ModelLog(copy)),
        broker_id=own_id,
        settings=_settings(min_isr),
        flushes=AROUND,
        high_watermark=copy.mark,
        epochs=manager.broker_epochs,
    )
    partition.image = copy.image
    partition.leader_epoch = copy.leader_epoch
    partition.is_leader = copy.is_leader
    partition.durable_offset = copy.durable
    partition.epoch_start_offset = copy.epoch_start
    partition.as_follower.knows_mark = copy.knows_mark
    if copy.image is not None:
        partition.isr = copy.image.isr
    if copy.led is not None and copy.image is not None:
        partition.led = _thaw_led(own_id, copy.led, copy.image, partition)
        partition._in_sync_changed()
    manager._partitions[NAME] = partition
    return manager, partition


@cache
def _settings(min_isr: int) -> PartitionSettings:
    return settings_of(
        _topic(PartitionImage(leader=0, leader_epoch=0, replicas=(), isr=()), min_isr)
    )


def _know_brokers(manager: ReplicaManager, view: Meta) -> None:
    """As `ReplicaManager._follow_brokers` left it."""
    registered = {one: known for one, known in enumerate(view.brokers) if known is not None}
    manager.broker_epochs.registered = {one: known.epoch for one, known in registered.items()}
    manager.broker_epochs.let_in = {
        one for one, known in registered.items() if view.members[one].epoch == known.epoch
    }


def _thaw_led(own_id: int, value: Led, image: PartitionImage, partition: Partition) -> LedReplicas:
    led = LedReplicas(own_id, image, partition._epochs, now=0.0)
    led.followers = {one: FollowerPosition(*fields) for one, fields in value.positions}  # type: ignore[arg-type]
    led._candidates = set(value.candidates)
    sets = led.in_sync = InSync(own_id, value.sets.committed, value.sets.partition_epoch)
    sets._fear(value.sets.feared)
    sets.is_unsettled = value.sets.is_unsettled
    sets._has_unanswered = value.sets.has_unanswered
    sets._proposed = value.sets.proposed
    led._recount()
    return led


def freeze(broker: Broker, manager: ReplicaManager, partition: Partition) -> Broker:
    log = cast(ModelLog, partition.log)
    copy = Copy(
        log=log.records,
        flushed=log.flushed_offset,
        epochs=log.epochs.entries(),
        leader_epoch=partition.leader_epoch,
        image=partition.image,
        is_leader=partition.is_leader,
        mark=partition.high_watermark,
        durable=partition.durable_offset,
        epoch_start=partition.epoch_start_offset if partition.is_leader else 0,
        knows_mark=partition.as_follower.knows_mark,
        led=None if partition.led is None else _freeze_led(partition.led),
    )
    return broker._replace(copy=copy, is_let_in=manager._is_let_in)


def _freeze_led(led: LedReplicas) -> Led:
    sets = led.in_sync
    return Led(
        Sets(
            sets.committed,
            sets.partition_epoch,
            sets.feared,
            sets.is_unsettled,
            sets._has_unanswered,
            sets._proposed,
        ),
        tuple((one, _fields(position)) for one, position in sorted(led.followers.items())),
        tuple(sorted(led._candidates)),
    )


def _fields(position: FollowerPosition) -> tuple[object, ...]:
    return (
        position.log_end_offset,
        position.flushed_offset,
        position.caught_up_at,
        position.leader_end_at_fetch,
        position.fetched_at,
        position.keeps_up,
        position.flushes_at,
        position._flushed_then,
        position.log_start_offset,
    )
