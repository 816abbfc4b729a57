"""Which replicas the controller makes or moves by itself, so that no broker is missed. Pure.

They are remade elsewhere if their broker is gone or is to hold nothing. A partition whose data is
nowhere else is left alone: its broker may come back, and an empty copy would be no help. So only
partitions that have a leader now are moved.

Internal topics grow with the cluster: one that was made while there was one broker has one replica.
When brokers have joined, it gets more, up to `offsets.topic.replication.factor` and
`transaction.state.log.replication.factor`. Only then: whoever gives such a topic fewer replicas
later has a reason.

A broker that has joined is given its share of replicas and leaderships (ADR 0028). All brokers have
a share but those that are to hold nothing; one that is away for a moment has one too. Partitions
that are moved already, or lack a replica, stay for now: somebody else decides about the first, and
a move of the second would not end, and would keep others from beginning. The broker goes on
awaiting its share if it could be given one of them later. It awaits nothing of partitions without a
leader: they may stay so for ever, and meanwhile it would be given again whatever an operator moves
off it.

`unread` are pages of the metadata that cannot be read now. What is known of their partitions
counts, but they cannot be changed. So they are in no plan: every look would plan them again, and
nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from tidemill.core.balancing.balance import (
    Assignment,
    Share,
    Sizes,
    evened,
    filled,
    lacking,
    resized,
    startable,
    vacated,
)
from tidemill.core.config.broker_config import BrokerConfig
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import MOVES_PER_BROKER_MAX, PLANNED_MOVES_MAX
from tidemill.metadata.image.metadata_image import (
    OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from tidemill.metadata.image.page import page_of
from tidemill.metadata.rules.decisions import (
    draining_brokers,
    live_brokers,
    usable_brokers,
)
from tidemill.metadata.rules.reassignment import is_waiting_to_forget
from tidemill.metadata.special_topics.internal_topics import internal_replicas

__all__ = [
    "assignment_of",
    "evening_moves",
    "filling_moves",
    "growing_moves",
    "has_single_copy",
    "moving_of",
    "vacating_moves",
]

Moves = dict[TopicPartition, tuple[int, ...]]

_GROWING = (OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC)


def vacating_moves(
    image: MetadataImage, leave: Collection[int], unread: Collection[int] = ()
) -> tuple[Moves, bool]:
    """The moves off the brokers in `leave` that may begin now, and whether any are left to do."""
    moving = moving_of(image, unread)
    departing = Counter(one for _, removing in moving for one in removing)
    if all(departing[one] >= MOVES_PER_BROKER_MAX for one in leave):
        return {}, True  # most looks while a broker empties: a plan costs a look at all partitions
    assignment = _led_assignment(image, unread)
    plan = vacated(
        assignment,
        _racks(image),
        sorted(leave),
        usable=usable_brokers(image),
        moves_max=PLANNED_MOVES_MAX,
    )
    return startable(plan, assignment, moving), bool(plan)


def filling_moves(
    image: MetadataImage,
    joined: Collection[int],
    leave: Collection[int],
    sizes: Sizes,
    unread: Collection[int] = (),
) -> tuple[Moves, frozenset[int]]:
    """The moves to brokers that have joined that may begin now, and who of them needs no more."""
    moving = moving_of(image, unread)
    arriving = Counter(one for adding, _ in moving for one in adding)
    if all(arriving[one] >= MOVES_PER_BROKER_MAX for one in joined):
        return {}, frozenset()
    assignment = assignment_of(image)
    share = Share.of(assignment, image.members.keys() - frozenset(leave))
    lacks = lacking(assignment, sorted(joined), share)

    def planned(fixed: Collection[TopicPartition]) -> Moves:
        return filled(
            assignment,
            _racks(image),
            lacks,
            share,
            usable=usable_brokers(image),
            sizes=sizes,
            fixed=fixed,
            moves_max=MOVES_PER_BROKER_MAX * len(lacks),
        )

    plan = planned(_fixed(image, unread))
    if not plan and not planned(_unled(image)):
        return {}, frozenset(joined)  # there is nothing that could be given, now or later
    return startable(plan, assignment, moving), frozenset(joined).difference(lacks)


def evening_moves(
    image: MetadataImage, sizes: Sizes, unread: Collection[int] = ()
) -> tuple[Moves, bool]:
    """The moves from full to empty brokers that may begin now, and whether there are any at all."""
    assignment = assignment_of(image)
    plan = evened(
        assignment,
        _racks(image),
        usable=usable_brokers(image),
        sizes=sizes,
        fixed=_fixed(image, unread),
        moves_max=MOVES_PER_BROKER_MAX * len(image.brokers),
    )
    return startable(plan, assignment, moving_of(image, unread)), bool(plan)


def has_single_copy(image: MetadataImage) -> bool:
    """Whether the end of one broker would stop groups or transactions."""
    return any(
        len(partition.target) == 1
        for name in _GROWING
        if name in image.topics
        for partition in image.topics[name].partitions
    )


def growing_moves(
    image: MetadataImage, config: BrokerConfig, unread: Collection[int] = ()
) -> tuple[Moves, bool, bool]:
    """The moves that may begin now, whether there are any at all, and whether more may come.

    That is so while a broker is away that could be given replicas, or a partition has no leader or
    is on a page that cannot be read.
    """
    topics = {name: image.topics[name] for name in _GROWING if name in image.topics}
    live = live_brokers(image).brokers
    whole = {
        TopicPartition(name, index): partition
        for name, topic in topics.items()
        for index, partition in enumerate(topic.partitions)
    }
    led = {
        name: one.target
        for name, one in whole.items()
        if one.leader in live and not _is_unread(topics[name.topic], unread)
    }
    away = image.members.keys() - live - draining_brokers(image)
    plan = dict(_plan(image, config, led))
    may_come = bool(topics) and (bool(away) or len(led) < len(whole))
    return startable(plan, led, moving_of(image, unread) if plan else ()), bool(plan), may_come


def _plan(
    image: MetadataImage, config: BrokerConfig, assignment: Assignment
) -> Iterator[tuple[TopicPartition, tuple[int, ...]]]:
    racks, usable = _racks(image), usable_brokers(image)
    for topic in _GROWING:
        factor = internal_replicas(topic, config, len(usable))
        for name, target in resized(assignment, racks, factor, topic, usable=usable).items():
            if len(target) > len(assignment[name]):
                yield name, target


# --- what there is -------------------------------------------------------------------------------


def assignment_of(image: MetadataImage) -> Assignment:
    """Where the replicas of all partitions are, or will be."""
    return {name: one.target for name, one in _partitions(image)}


def _led_assignment(image: MetadataImage, unread: Collection[int]) -> Assignment:
    """The same, without the partitions that have no leader or cannot be changed."""
    live = live_brokers(image).brokers
    return {name: one.target for name, one in _partitions(image, unread) if one.leader in live}


def _fixed(image: MetadataImage, unread: Collection[int]) -> frozenset[TopicPartition]:
    """Partitions that are being moved, are not led, lack a replica now, or cannot be changed."""
    live = live_brokers(image).brokers
    free = {
        name
        for name, one in _partitions(image, unread)
        if not one.is_moving and one.leader in live and live.issuperset(one.replicas)
    }
    return frozenset(name for name, _ in _partitions(image) if name not in free)


def _unled(image: MetadataImage) -> frozenset[TopicPartition]:
    """Partitions that have no leader: nobody knows whether they ever will."""
    live = live_brokers(image).brokers
    return frozenset(name for name, one in _partitions(image) if one.leader not in live)


def _racks(image: MetadataImage) -> dict[int, str]:
    """The racks of all brokers that are known, also of those that are away or about to stop."""
    known = {one.broker_id: one.rack for one in image.members.values()}
    return known | {one.broker_id: one.rack for one in image.brokers.values()}


def moving_of(
    image: MetadataImage, unread: Collection[int] = ()
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Who comes and who goes in the moves that go on, still copy, and can be seen to end."""
    return [
        (one.adding, one.removing)
        for _, one in _partitions(image, unread)
        if one.is_moving and not is_waiting_to_forget(one)
    ]


def _partitions(
    image: MetadataImage, unread: Collection[int] = ()
) -> Iterator[tuple[TopicPartition, PartitionImage]]:
    """All partitions but those on `unread` pages; those of a view are those of its base."""
    for name, topic in image.topics.items():
        if not _is_unread(topic, unread):
            for index, partition in enumerate(topic.own_partitions):
                yield TopicPartition(name, index), partition


def _is_unread(topic: TopicImage, unread: Collection[int]) -> bool:
    return bool(unread) and page_of(topic.topic_id) in unread
