"""Which replica leads a partition, and which count as in sync. Pure.

The rules, from KIP-966:

- A dead broker leaves the isr. If fewer than min.insync.replicas remain, it moves to the elr: the
  high watermark stands still below that number, so the broker still has everything.
- The leader is chosen among live brokers, in the order of the assignment: from the isr; else from
  the elr; else, if both are empty, the last known leader; else, only if the topic allows unclean
  elections, any replica. Otherwise the partition has no leader for now.
- A leader from outside the isr is alone in the new isr. The elr is cleared when the isr is large
  enough again, and when the leader comes from outside both sets, since no replica is certain then.
- A broker that is about to stop hands its leaderships to other in-sync replicas. It stays in the
  isr: what the new leader promises waits until the old one has fetched from it.
- A broker that returns is another life of it (`after_return`). One that led still leads, in the
  next epoch: no two lives share one. After an unclean end it may have lost what it had
  acknowledged: it leaves isr and elr; if both would be empty, it is the best replica left and
  leads. With another disk it has nothing: it leaves both, and leads only if somebody decides that.
- Every change of leader, also to none and also of a broker to itself, takes the next epoch (I11).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple, final

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import NO_LEADER, TopicId
from tidemill.core.min_isr import effective_min_isr
from tidemill.metadata.image.metadata_image import PartitionImage
from tidemill.metadata.image.topic_config import TopicConfig

__all__ = [
    "Live",
    "PartitionChange",
    "Return",
    "after_isr_change",
    "after_return",
    "new_partition",
    "preferred_election",
    "unclean_election",
    "with_live_brokers",
]


class Return(Enum):
    """What a broker that has registered again still has of what it had."""

    CLEAN = "clean"
    UNCLEAN = "unclean"
    """Perhaps not its last records."""
    NEW_DISK = "new disk"
    """Nothing."""


@final
@dataclass(frozen=True, slots=True)
class Live:
    """The brokers that count, by what they may do."""

    brokers: frozenset[int]
    """They may stay leaders and in in-sync sets."""
    electable: frozenset[int]
    """They may become leaders."""
    leaving: frozenset[int] = frozenset()
    """They should lead nothing, because they are about to stop."""


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


def with_live_brokers(partition: PartitionImage, live: Live, config: TopicConfig) -> PartitionImage:
    """The partition without dead brokers in its isr, and with a leader if one is possible."""
    gone = tuple(one for one in partition.isr if one not in live.brokers)
    shrunk = _without(partition, gone, config.min_insync_replicas)
    if shrunk.leader not in live.brokers:
        return _elect(shrunk, live.electable, config)
    return _handed_over(shrunk, live.electable) if shrunk.leader in live.leaving else shrunk


def _handed_over(partition: PartitionImage, candidates: Collection[int]) -> PartitionImage:
    """The leader is about to stop: another in-sync replica leads, if there is one."""
    for leader in partition.replicas:
        if leader in candidates and leader in partition.isr:
            return _led_by(partition, leader, isr=partition.isr, elr=partition.elr)
    return partition


def _without(partition: PartitionImage, gone: tuple[int, ...], isr_min: int) -> PartitionImage:
    """The partition after `gone` left the isr."""
    isr_min = effective_min_isr(isr_min, len(partition.replicas))
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
            minimum = effective_min_isr(config.min_insync_replicas, len(partition.replicas))
            kept = elr if minimum > 1 else ()
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


def preferred_election(partition: PartitionImage, live: Live) -> PartitionImage:
    """The partition led by its first replica; KafkaError if it is already or cannot be."""
    leader = partition.replicas[0]
    if partition.leader == leader:
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "the preferred replica leads")
    if leader not in live.electable or leader not in partition.isr:
        raise KafkaError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, f"broker {leader} is not in sync"
        )
    return _led_by(partition, leader, isr=partition.isr, elr=partition.elr)


def unclean_election(partition: PartitionImage, live: Live) -> PartitionImage:
    """The partition led by any live replica, although records may be lost; somebody wants it.

    Those that are certain come first, then the last leader, then the order of the assignment.
    """
    if partition.leader in live.brokers:
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, f"broker {partition.leader} leads")
    preferred = (*partition.isr, *partition.elr, partition.last_known_leader, *partition.replicas)
    for leader in preferred:
        if leader in live.electable:
            isr = partition.isr if leader in partition.isr else (leader,)
            return _led_by(partition, leader, isr=isr, elr=())
    raise KafkaError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "no replica of it lives")


def after_return(partition: PartitionImage, broker_id: int, how: Return) -> PartitionImage:
    """The partition after `broker_id` has registered again (I14)."""
    if how is Return.CLEAN:
        # Without another replica nobody counts on the epoch, and a restart writes no pages.
        if partition.leader != broker_id or len(partition.replicas) == 1:
            return partition
        return replace(partition, leader_epoch=partition.leader_epoch + 1)
    if how is Return.NEW_DISK and partition.last_known_leader == broker_id:
        partition = replace(partition, last_known_leader=NO_LEADER)
    if broker_id not in partition.isr and broker_id not in partition.elr:
        return partition
    isr = tuple(one for one in partition.isr if one != broker_id)
    elr = tuple(one for one in partition.elr if one != broker_id)
    if how is Return.UNCLEAN and not isr and not elr:
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
    eligible: Collection[int],
    isr_min: int,
) -> PartitionImage:
    """The partition with the isr that its leader proposes; KafkaError if that is not allowed.

    A proposal from an older leader or on an older state has no effect (I15). `eligible` are the
    brokers that may join.
    """
    isr_min = effective_min_isr(isr_min, len(partition.replicas))
    _check_proposal(partition, leader_epoch=leader_epoch, partition_epoch=partition_epoch)
    if partition.leader not in new_isr or not set(new_isr) <= set(partition.replicas):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "an isr is the leader and other replicas")
    joining = [one for one in new_isr if one not in partition.isr and one not in eligible]
    if joining:
        raise KafkaError(ErrorCode.INELIGIBLE_REPLICA, f"broker {joining[0]} may not join")
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
