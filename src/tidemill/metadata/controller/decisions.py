"""What the controller decides about brokers and in-sync sets: image -> the next states. Pure.

A broker that registers is *fenced* until the controller has written its epoch into the members: it
leads nothing, joins no in-sync set and is not elected. The change that lets it in also says what
its return means for every partition, so that a life of a broker begins with epochs of its own.

A broker is *live* if it is registered, let in in the epoch of its registration, and its disk works;
it is *electable* if it is not about to stop either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import ZERO_UUID
from tidemill.metadata.controller.election import (
    Live,
    PartitionChange,
    Return,
    after_isr_change,
    after_return,
    preferred_election,
    unclean_election,
    with_live_brokers,
)
from tidemill.metadata.image.isr_proposal import IsrProposal
from tidemill.metadata.image.metadata_image import (
    BrokerImage,
    MemberImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
)

__all__ = [
    "changed_in_sync_set",
    "elected",
    "leads_what_others_could",
    "let_in",
    "live_brokers",
    "missing_members",
    "reconcile",
    "returns",
]


def live_brokers(image: MetadataImage) -> Live:
    return _present(
        one
        for one in image.brokers.values()
        if not one.failed and _is_let_in(one, image.members.get(one.broker_id))
    )


def _present(brokers: Iterable[BrokerImage], waited_for: frozenset[int] = frozenset()) -> Live:
    found = list(brokers)
    leaving = frozenset(one.broker_id for one in found if one.leaving)
    ids = frozenset(one.broker_id for one in found)
    return Live(ids | waited_for, ids - leaving, leaving)


def missing_members(image: MetadataImage) -> frozenset[int]:
    """Brokers that are in an in-sync set and not registered: nobody has counted them dead yet."""
    gone = image.members.keys() - image.brokers.keys()
    if not gone:
        return frozenset()
    partitions = (one for topic in image.topics.values() for one in topic.partitions)
    return frozenset(gone & {member for one in partitions for member in one.isr})


def leads_what_others_could(image: MetadataImage, broker_id: int) -> bool:
    """Whether this broker leads a partition that it could hand over before it stops."""
    others = live_brokers(image).electable - {broker_id}
    return any(
        partition.leader == broker_id and not others.isdisjoint(partition.isr)
        for topic in image.topics.values()
        for partition in topic.partitions
    )


# --- letting in ----------------------------------------------------------------------------------


def let_in(image: MetadataImage) -> dict[int, MemberImage]:
    """The members with every registered broker whose disk works, in the epoch of registration."""
    registered = {
        one.broker_id: MemberImage(
            broker_id=one.broker_id,
            epoch=one.epoch,
            rack=one.rack,
            directory_id=one.directory_id,
        )
        for one in image.brokers.values()
        if not one.failed
    }
    return {**image.members, **registered}


def returns(image: MetadataImage) -> dict[int, Return]:
    """The brokers that are about to be let in, and what each still has."""
    found: dict[int, Return] = {}
    for broker in image.brokers.values():
        member = image.members.get(broker.broker_id)
        if not broker.failed and not _is_let_in(broker, member):
            found[broker.broker_id] = _how(broker, member)
    return found


def _is_let_in(broker: BrokerImage, member: MemberImage | None) -> bool:
    return member is not None and member.epoch == broker.epoch


def _how(broker: BrokerImage, member: MemberImage | None) -> Return:
    known = ZERO_UUID if member is None else member.directory_id
    if ZERO_UUID not in (known, broker.directory_id) and known != broker.directory_id:
        return Return.NEW_DISK
    return Return.UNCLEAN if broker.unclean else Return.CLEAN


# --- elections -----------------------------------------------------------------------------------


def reconcile(
    image: MetadataImage,
    topics: Iterable[TopicImage] | None = None,
    *,
    returned: Mapping[int, Return] | None = None,
    waited_for: Collection[int] = (),
) -> list[PartitionChange]:
    """The changes that bring partitions, of all topics or some, in line with the live brokers.

    `returned` are let in by the same change. Those that are `waited_for` do not count as dead yet.
    """
    returned = returned or {}
    counted = live_brokers(image).brokers | returned.keys()
    live = _present((image.brokers[one] for one in sorted(counted)), frozenset(waited_for))
    chosen = image.topics.values() if topics is None else topics
    return list(_changes(chosen, live, returned))


def _changes(
    topics: Iterable[TopicImage], live: Live, returned: Mapping[int, Return]
) -> Iterator[PartitionChange]:
    for topic in topics:
        if topic.is_view:
            continue  # it follows its base
        for index, partition in enumerate(topic.partitions):
            if not returned and _is_settled(partition, live):
                continue
            after = partition
            for broker_id in _in_order(partition, returned):
                after = after_return(after, broker_id, returned[broker_id])
            if not _is_settled(after, live):
                after = with_live_brokers(after, live, topic.config)
            if after != partition:
                yield PartitionChange(topic.topic_id, index, partition, after)


def _in_order(partition: PartitionImage, returned: Mapping[int, Return]) -> list[int]:
    """The returned replicas; whoever comes last is the best one left if none is certain.

    Who has nothing comes first, and the last leader, whose log was the longest, comes last.
    """
    found = [one for one in returned if one in partition.replicas]
    last = partition.last_known_leader
    return sorted(found, key=lambda one: (returned[one] is not Return.NEW_DISK, one == last))


def _is_settled(partition: PartitionImage, live: Live) -> bool:
    """The common case, decided cheaply: leader and isr are alive and stay, and there is no elr."""
    return (
        partition.leader in live.brokers
        and partition.leader not in live.leaving
        and not partition.elr
        and all(one in live.brokers for one in partition.isr)
    )


def elected(image: MetadataImage, name: str, index: int, *, unclean: bool) -> PartitionChange:
    """The election that somebody asks for; KafkaError if it is refused."""
    topic = image.topic(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no such partition")
    if topic.is_view:
        detail = f"{name} is a view: elect the leaders of {topic.view_of}"
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, detail)
    before, live = topic.partitions[index], live_brokers(image)
    elect = unclean_election if unclean else preferred_election
    return PartitionChange(topic.topic_id, index, before, elect(before, live))


# --- in-sync sets --------------------------------------------------------------------------------


def changed_in_sync_set(
    image: MetadataImage, sender: BrokerImage, proposal: IsrProposal
) -> PartitionChange:
    """The change that a leader proposes; KafkaError if it is refused.

    A proposal of the set that there is already is a change too: it takes a partition epoch, so that
    an earlier proposal on the same state, whose outcome is unknown, cannot be made any more.
    """
    topic = image.topic_by_id(proposal.topic_id)
    if topic is None or topic.is_view or not 0 <= proposal.partition < len(topic.partitions):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "no such partition")
    before = topic.partitions[proposal.partition]
    if before.leader != sender.broker_id:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {before.leader} leads it")
    after = after_isr_change(
        before,
        tuple(broker_id for broker_id, _ in proposal.isr),
        leader_epoch=proposal.leader_epoch,
        partition_epoch=proposal.partition_epoch,
        eligible=_eligible(image, proposal.isr),
        isr_min=topic.config.min_insync_replicas,
    )
    return PartitionChange(topic.topic_id, proposal.partition, before, after)


def _eligible(image: MetadataImage, isr: Sequence[tuple[int, int]]) -> set[int]:
    """Members in the life in which they caught up (KIP-903), and which may lead (KIP-841)."""
    electable = live_brokers(image).electable
    return {
        broker_id
        for broker_id, epoch in isr
        if broker_id in electable and image.brokers[broker_id].epoch == epoch
    }
