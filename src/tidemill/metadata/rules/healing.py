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

Partitions on pages of the metadata that cannot be read now (`unread`) are in no plan: every look
would plan them again, and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from collections.abc import Set as AbstractSet

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
from tidemill.core.loop.steps import Steps
from tidemill.metadata.image.metadata_image import (
    OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    MetadataImage,
)
from tidemill.metadata.rules.decisions import (
    draining_brokers,
    live_brokers,
    usable_brokers,
)
from tidemill.metadata.rules.replica_survey import ReplicaSurvey, is_unread
from tidemill.metadata.special_topics.internal_topics import internal_replicas

__all__ = [
    "Moves",
    "evening_moves",
    "filling_moves",
    "growing_moves",
    "has_single_copy",
    "vacating_moves",
]

Moves = dict[TopicPartition, tuple[int, ...]]

_GROWING = (OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC)


def vacating_moves(
    image: MetadataImage, leave: Collection[int], unread: Collection[int] = ()
) -> Steps[tuple[Moves, bool]]:
    """The moves off the brokers in `leave` that may begin now, and whether any are left to do."""
    survey = yield from ReplicaSurvey.of(image, unread)
    departing = Counter(one for _, removing in survey.moving for one in removing)
    if all(departing[one] >= MOVES_PER_BROKER_MAX for one in leave):
        return {}, True  # most looks while a broker empties: they need no plan
    plan = yield from vacated(
        survey.assignment,
        _racks(image),
        sorted(leave),
        usable=usable_brokers(image),
        fixed=survey.stuck,
        moves_max=PLANNED_MOVES_MAX,
    )
    return startable(plan, survey.assignment, survey.moving), bool(plan)


def filling_moves(
    image: MetadataImage,
    joined: Collection[int],
    leave: Collection[int],
    sizes: Sizes,
    unread: Collection[int] = (),
) -> Steps[tuple[Moves, frozenset[int]]]:
    """The moves to brokers that have joined that may begin now, and who of them needs no more."""
    survey = yield from ReplicaSurvey.of(image, unread)
    arriving = Counter(one for adding, _ in survey.moving for one in adding)
    if all(arriving[one] >= MOVES_PER_BROKER_MAX for one in joined):
        return {}, frozenset()
    sharers = image.members.keys() - frozenset(leave)
    share = Share.of(survey.counts, sharers)
    lacks = lacking(survey.counts, sorted(joined), share)

    def planned(usable: Collection[int], fixed: AbstractSet[TopicPartition]) -> Steps[Moves]:
        return filled(
            survey.assignment,
            _racks(image),
            lacks,
            share,
            usable=usable,
            sizes=sizes,
            fixed=fixed,
            moves_max=MOVES_PER_BROKER_MAX * len(lacks),
        )

    plan = yield from planned(usable_brokers(image), survey.fixed)
    # Brokers that are away for a moment may have what can be given later.
    if not plan and not (yield from planned(sharers, survey.unled)):
        return {}, frozenset(joined)  # there is nothing that could be given, now or later
    moves = startable(plan, survey.assignment, survey.moving)
    return moves, frozenset(joined).difference(lacks)


def evening_moves(
    image: MetadataImage, sizes: Sizes, unread: Collection[int] = ()
) -> Steps[tuple[Moves, bool]]:
    """The moves from full to empty brokers that may begin now, and whether there are any at all."""
    survey = yield from ReplicaSurvey.of(image, unread)
    plan = yield from evened(
        survey.assignment,
        _racks(image),
        usable=usable_brokers(image),
        sizes=sizes,
        fixed=survey.fixed,
        moves_max=MOVES_PER_BROKER_MAX * len(image.brokers),
    )
    return startable(plan, survey.assignment, survey.moving), bool(plan)


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
) -> Steps[tuple[Moves, bool, bool]]:
    """The moves that may begin now, whether there are any at all, and whether more may come.

    That is so if a partition has fewer than it could have with all brokers, and waits for one that
    is away or about to stop, for a leader, or for its page to be readable.
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
        if one.leader in live and not is_unread(topics[name.topic], unread)
    }
    usable = usable_brokers(image)
    away = image.members.keys() - usable - draining_brokers(image)
    plan = yield from _plan(image, config, led)
    waiting = whole if away else whole.keys() - led.keys()
    # A topic that has what it should waits for nobody: whoever gives it fewer later has a reason.
    may_come = any(
        len(whole[name].target) < internal_replicas(name.topic, config, len(usable | away))
        for name in waiting
    )
    if not plan:
        return {}, False, may_come
    survey = yield from ReplicaSurvey.of(image, unread)
    return startable(plan, led, survey.moving), True, may_come


def _plan(image: MetadataImage, config: BrokerConfig, assignment: Assignment) -> Steps[Moves]:
    plan: Moves = {}
    racks, usable = _racks(image), usable_brokers(image)
    for topic in _GROWING:
        factor = internal_replicas(topic, config, len(usable))
        targets = yield from resized(assignment, racks, factor, topic, usable=usable)
        grown = {name: to for name, to in targets.items() if len(to) > len(assignment[name])}
        plan.update(grown)
    return plan


def _racks(image: MetadataImage) -> dict[int, str]:
    """The racks of all brokers that are known, also of those that are away or about to stop."""
    known = {one.broker_id: one.rack for one in image.members.values()}
    return known | {one.broker_id: one.rack for one in image.brokers.values()}
