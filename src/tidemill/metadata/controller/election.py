"""Which replica leads a partition, and which count as in sync. Pure.

The rules, from KIP-966:

- A dead broker leaves the isr. If fewer than min.insync.replicas remain, it moves to the elr: the
  high watermark stands still below that number, so the broker still has everything.
- The leader is chosen among live brokers, in the order of the assignment: from the isr; else from
  the elr; else, if both are empty, the last known leader; else, only if the topic allows unclean
  elections, any replica. Otherwise the partition has no leader for now.
- A leader from outside the isr is alone in the new isr. The elr is cleared when the isr is large
  enough again, and when the leader comes from outside both sets, since no replica is certain then.
- A broker that restarts unclean may have lost what it had acknowledged: it leaves isr and elr. If
  both would be empty, it is the best replica left and continues to lead, in a new epoch.
- Every change of leader, also to none and also of a broker to itself, takes the next epoch (I11).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple, final

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import NO_LEADER, TopicId
from tidemill.metadata.image.metadata_image import MetadataImage, PartitionImage, TopicImage
from tidemill.metadata.image.topic_config import TopicConfig

__all__ = [
    "PartitionChange",
    "after_isr_change",
    "after_unclean_restart",
    "new_partition",
    "reconcile",
    "restart_unclean",
    "with_live_brokers",
]


@final
class PartitionChange(NamedTuple):
    """A partition's next state; `before.partition_epoch` is what the write is conditional on."""

    topic_id: TopicId
    partition: int
    before: PartitionImage
    after: PartitionImage


def new_partition(replicas: tuple[int, ...]) -> PartitionImage:
    """The first state of a partition on live brokers: an empty log, so all are in sync."""
    return PartitionImage(
        leader=replicas[0],
        leader_epoch=0,
        replicas=replicas,
        isr=replicas,
        last_known_leader=replicas[0],
    )


def reconcile(
    image: MetadataImage, topics: Iterable[TopicImage] | None = None
) -> list[PartitionChange]:
    """The changes that bring partitions, of all topics or some, in line with the live brokers."""
    return list(_changes(image.topics.values() if topics is None else topics, image.brokers))


def _changes(topics: Iterable[TopicImage], live: Collection[int]) -> Iterator[PartitionChange]:
    for topic in topics:
        for index, partition in enumerate(topic.partitions):
            if _settled(partition, live):
                continue
            after = with_live_brokers(partition, live, topic.config)
            if after != partition:
                yield PartitionChange(topic.topic_id, index, partition, after)


def _settled(partition: PartitionImage, live: Collection[int]) -> bool:
    """The common case, decided cheaply: leader and isr are alive, and there is no elr."""
    return (
        partition.leader in live and not partition.elr and all(one in live for one in partition.isr)
    )


def with_live_brokers(
    partition: PartitionImage, live: Collection[int], config: TopicConfig
) -> PartitionImage:
    """The partition without dead brokers in its isr, and with a leader if one is possible."""
    gone = tuple(one for one in partition.isr if one not in live)
    shrunk = _without(partition, gone, config.min_insync_replicas)
    return shrunk if shrunk.leader in live else _elect(shrunk, live, config)


def _without(partition: PartitionImage, gone: tuple[int, ...], isr_min: int) -> PartitionImage:
    """The partition after `gone` left the isr."""
    # An elr beside an isr that is large enough dates from a time with a higher minimum; the high
    # watermark may have moved since.
    elr = partition.elr if len(partition.isr) < isr_min else ()
    isr = tuple(one for one in partition.isr if one not in gone)
    return replace(partition, isr=isr, elr=elr + gone if len(isr) < isr_min else ())


def _elect(partition: PartitionImage, live: Collection[int], config: TopicConfig) -> PartitionImage:
    candidates = [one for one in partition.replicas if one in live]
    for leader in candidates:
        if leader in partition.isr:
            return _led_by(partition, leader, isr=partition.isr, elr=partition.elr)
    for leader in candidates:
        if leader in partition.elr:
            elr = tuple(one for one in partition.elr if one != leader)
            kept = elr if config.min_insync_replicas > 1 else ()
            return _led_by(partition, leader, isr=(leader,), elr=kept)
    unsure = _uncertain_leader(partition, candidates, config)
    if unsure != NO_LEADER:
        return _led_by(partition, unsure, isr=(unsure,), elr=())
    if partition.leader == NO_LEADER:
        return partition
    return replace(partition, leader=NO_LEADER, leader_epoch=partition.leader_epoch + 1)


def _uncertain_leader(partition: PartitionImage, candidates: list[int], config: TopicConfig) -> int:
    last = partition.last_known_leader
    if not partition.isr and not partition.elr and last in candidates:
        return last
    if config.unclean_leader_election_enable and candidates:
        return candidates[0]
    return NO_LEADER


def _led_by(
    partition: PartitionImage, leader: int, *, isr: tuple[int, ...], elr: tuple[int, ...]
) -> PartitionImage:
    return replace(
        partition,
        leader=leader,
        leader_epoch=partition.leader_epoch + 1,
        isr=isr,
        elr=elr,
        last_known_leader=leader,
    )


def restart_unclean(image: MetadataImage, broker_id: int) -> list[PartitionChange]:
    """The changes that a broker must make before it registers after an unclean stop."""
    return [
        PartitionChange(topic.topic_id, index, partition, after)
        for topic in image.topics.values()
        for index, partition in enumerate(topic.partitions)
        if (after := after_unclean_restart(partition, broker_id)) != partition
    ]


def after_unclean_restart(partition: PartitionImage, broker_id: int) -> PartitionImage:
    """The partition after `broker_id` may have lost its unflushed records (I14)."""
    if broker_id not in partition.isr and broker_id not in partition.elr:
        return partition
    isr = tuple(one for one in partition.isr if one != broker_id)
    elr = tuple(one for one in partition.elr if one != broker_id)
    if not isr and not elr:
        return _led_by(partition, broker_id, isr=(broker_id,), elr=())
    if partition.leader != broker_id:
        return replace(partition, isr=isr, elr=elr)
    epoch = partition.leader_epoch + 1
    return replace(partition, leader=NO_LEADER, leader_epoch=epoch, isr=isr, elr=elr)


def after_isr_change(
    partition: PartitionImage,
    new_isr: tuple[int, ...],
    *,
    leader_epoch: int,
    partition_epoch: int,
    live: Collection[int],
    isr_min: int,
) -> PartitionImage:
    """The partition with the isr that its leader proposes; KafkaError if that is not allowed.

    A proposal from an older leader or on an older state has no effect (I15).
    """
    _check_proposal(partition, leader_epoch=leader_epoch, partition_epoch=partition_epoch)
    if partition.leader not in new_isr or not set(new_isr) <= set(partition.replicas):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "an isr is the leader and other replicas")
    joining = [one for one in new_isr if one not in partition.isr and one not in live]
    if joining:
        raise KafkaError(ErrorCode.INELIGIBLE_REPLICA, f"broker {joining[0]} is not registered")
    left = tuple(one for one in partition.isr if one not in new_isr)
    shrunk = _without(partition, left, isr_min)
    elr = tuple(one for one in shrunk.elr if one not in new_isr)
    ordered = tuple(one for one in partition.replicas if one in new_isr)
    return replace(partition, isr=ordered, elr=elr if len(ordered) < isr_min else ())


def _check_proposal(partition: PartitionImage, *, leader_epoch: int, partition_epoch: int) -> None:
    if leader_epoch != partition.leader_epoch:
        now = partition.leader_epoch
        raise KafkaError(
            ErrorCode.FENCED_LEADER_EPOCH, f"leader epoch is {now}, not {leader_epoch}"
        )
    if partition_epoch != partition.partition_epoch:
        now = partition.partition_epoch
        raise KafkaError(
            ErrorCode.INVALID_UPDATE_VERSION, f"partition epoch is {now}, not {partition_epoch}"
        )
