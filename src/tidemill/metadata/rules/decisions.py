"""What the controller decides about brokers and in-sync sets: image -> the next states. Pure.

A broker that registers is *fenced* until the controller has written its epoch into the members: it
leads nothing, joins no in-sync set and is not elected. The change that lets it in also says what
its return means for every partition, so that a life of a broker begins with epochs of its own.

A broker is *live* if it is registered, let in in the epoch of its registration, and usable: its
disk works, and its software has the finalized levels of all features. It is *electable* if it is
not about to stop either.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import ZERO_UUID
from tidemill.core.limits import PARTITIONS_CHANGED_PER_SLICE
from tidemill.core.loop.steps import Steps
from tidemill.metadata.image.isr_proposal import IsrProposal
from tidemill.metadata.image.metadata_image import (
    BrokerImage,
    MemberImage,
    MetadataImage,
    PartitionImage,
    Return,
    TopicImage,
)
from tidemill.metadata.image.overrides import ALL_BROKERS, DRAINING, broker_owner
from tidemill.metadata.image.page import page_of
from tidemill.metadata.rules.election import (
    ElectionRules,
    Live,
    PartitionChange,
    after_choice,
    after_isr_change,
    after_return,
    preferred_election,
    unclean_election,
    who_must_tell,
    with_live_brokers,
)
from tidemill.metadata.rules.log_ends import NOTHING_TOLD, LogEndQuestion, LogEnds
from tidemill.metadata.rules.reassignment import advanced, cancelled, reassigned

__all__ = [
    "LedLately",
    "Told",
    "changed_in_sync_set",
    "chosen",
    "draining_brokers",
    "elected",
    "is_unheard",
    "leads_what_could_get_lost",
    "leads_what_others_could",
    "let_in",
    "live_brokers",
    "log_end_questions",
    "missing_members",
    "moved",
    "reconcile",
    "returns",
    "tellable_pages",
    "unhearing_brokers",
    "usable_brokers",
    "with_share",
    "without_member",
]

LedLately = Callable[[UUID, int, PartitionImage], Collection[int]]
"""Who led a partition a moment ago (`former_leaders.py`)."""
Told = Callable[[UUID, int, PartitionImage], LogEnds]
"""What the replicas of a partition have said of their logs (`log_ends.py`)."""


def _nobody(_topic_id: UUID, _index: int, _partition: PartitionImage) -> Collection[int]:
    return ()


def _nothing_told(_topic_id: UUID, _index: int, _partition: PartitionImage) -> LogEnds:
    return NOTHING_TOLD


def live_brokers(image: MetadataImage) -> Live:
    return _present(
        one
        for one in image.brokers.values()
        if _is_usable(image, one) and _is_let_in(one, image.members.get(one.broker_id))
    )


def _present(brokers: Iterable[BrokerImage], waited_for: frozenset[int] = frozenset()) -> Live:
    found = list(brokers)
    leaving = frozenset(one.broker_id for one in found if one.leaving)
    ids = frozenset(one.broker_id for one in found)
    return Live(ids | waited_for, ids - leaving, leaving)


def unhearing_brokers(image: MetadataImage) -> frozenset[int]:
    """Live brokers that the controller of today does not answer, as they say."""
    return frozenset(
        one
        for one in live_brokers(image).brokers
        if image.brokers[one].unheard_controller == image.controller_epoch
    )


def is_unheard(image: MetadataImage) -> bool:
    """Whether the controller should give up its office: most live brokers do not hear it.

    It counts as one that does: of two brokers that do not hear each other, none is right.
    """
    return 2 * len(unhearing_brokers(image)) > len(live_brokers(image).brokers)


def draining_brokers(image: MetadataImage) -> frozenset[int]:
    """Brokers that are to be given nothing, and to lose what they have."""
    everywhere = image.overrides_of(ALL_BROKERS).get(DRAINING)
    return frozenset(
        one
        for one in image.members
        if image.overrides_of(broker_owner(one)).get(DRAINING, everywhere) == "true"
    )


def usable_brokers(image: MetadataImage) -> frozenset[int]:
    """Brokers that may be given replicas."""
    return live_brokers(image).electable - draining_brokers(image)


def missing_members(image: MetadataImage) -> frozenset[int]:
    """Brokers that are in an in-sync set and not registered: nobody has counted them dead yet."""
    gone = image.members.keys() - image.brokers.keys()
    if not gone:
        return frozenset()
    partitions = (one for topic in image.topics.values() for one in topic.own_partitions)
    return frozenset(gone & {member for one in partitions for member in one.isr})


def leads_what_others_could(image: MetadataImage, broker_id: int) -> bool:
    """Whether this broker leads a partition that it could hand over before it stops."""
    others = live_brokers(image).electable - {broker_id}
    return any(
        partition.leader == broker_id and not others.isdisjoint(partition.isr)
        for topic in image.topics.values()
        for partition in topic.own_partitions
    )


def leads_what_could_get_lost(image: MetadataImage, broker_id: int) -> bool:
    """Whether an unclean election would follow if this broker, which leads, went for a moment."""
    others = live_brokers(image).electable - {broker_id}
    return any(
        partition.leader == broker_id and others.isdisjoint({*partition.isr, *partition.elr})
        for topic in image.topics.values()
        if ElectionRules.of(topic).allows_unclean
        for partition in topic.own_partitions
    )


# --- letting in ----------------------------------------------------------------------------------


def let_in(image: MetadataImage, unread: Collection[int] = ()) -> dict[int, MemberImage]:
    """The members with every registered broker that is usable, in the epoch of registration.

    The partitions on `unread` pages cannot be told of a return now: that is noted.
    """
    returned = returns(image)
    registered = {
        one.broker_id: MemberImage(
            broker_id=one.broker_id,
            epoch=one.epoch,
            rack=one.rack,
            directory_id=one.directory_id,
            awaits_share=_awaits_share(image, one.broker_id, unread),
        )
        for one in image.brokers.values()
        if _is_usable(image, one)
    }
    members = {**image.members, **registered}
    for broker_id, member in members.items():
        known = image.members.get(broker_id)
        untold = {} if known is None else {p: h for p, h in known.untold.items() if p in unread}
        if broker_id in returned:
            untold = {
                page: _worse(returned[broker_id], untold.get(page, Return.CLEAN)) for page in unread
            }
        if untold != member.untold:
            members[broker_id] = replace(member, untold=untold)
    return members


def with_share(image: MetadataImage, joined: Collection[int]) -> dict[int, MemberImage]:
    """The members; these have got their share."""
    return {
        one: replace(member, awaits_share=member.awaits_share and one not in joined)
        for one, member in image.members.items()
    }


def _awaits_share(image: MetadataImage, broker_id: int, unread: Collection[int]) -> bool:
    """Whether a broker is to be given its share: it has joined where others hold something."""
    if broker_id in image.members:
        return image.members[broker_id].awaits_share
    held = (one.replicas for topic in image.topics.values() for one in topic.own_partitions)
    return bool(image.topics or unread) and not any(broker_id in replicas for replicas in held)


def tellable_pages(image: MetadataImage, unread: Collection[int]) -> frozenset[int]:
    """Pages that can be read again and whose partitions do not know of some return yet."""
    untold = {page for member in image.members.values() for page in member.untold}
    return frozenset(untold.difference(unread))


def _worse(one: Return, other: Return) -> Return:
    order = list(Return)
    return max(one, other, key=order.index)


def returns(image: MetadataImage) -> dict[int, Return]:
    """The brokers that are about to be let in, and what each still has."""
    found: dict[int, Return] = {}
    for broker in image.brokers.values():
        member = image.members.get(broker.broker_id)
        if _is_usable(image, broker) and not _is_let_in(broker, member):
            found[broker.broker_id] = _how(broker, member)
    return found


def _is_usable(image: MetadataImage, broker: BrokerImage) -> bool:
    return not broker.failed and image.why_kept_out(broker) is None


def _is_let_in(broker: BrokerImage, member: MemberImage | None) -> bool:
    return member is not None and member.epoch == broker.epoch


def _how(broker: BrokerImage, member: MemberImage | None) -> Return:
    known = ZERO_UUID if member is None else member.directory_id
    if ZERO_UUID not in (known, broker.directory_id) and known != broker.directory_id:
        return Return.NEW_DISK
    return Return.UNCLEAN if broker.unclean else Return.CLEAN


def without_member(image: MetadataImage, broker_id: int) -> dict[int, MemberImage]:
    """The members without a broker that is gone for good; KafkaError if it is not."""
    if broker_id not in image.members:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"there is no broker {broker_id}")
    if broker_id in image.brokers:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"broker {broker_id} runs: stop it first")
    held = sum(
        broker_id in partition.replicas
        for topic in image.topics.values()
        for partition in topic.own_partitions
    )
    if held:
        detail = f"broker {broker_id} holds {held} replicas: move them away first"
        raise KafkaError(ErrorCode.INVALID_REQUEST, detail)
    return {one: member for one, member in image.members.items() if one != broker_id}


# --- elections -----------------------------------------------------------------------------------


def reconcile(
    image: MetadataImage,
    topics: Iterable[TopicImage] | None = None,
    *,
    returned: Mapping[int, Return] | None = None,
    waited_for: Collection[int] = (),
    led_lately: LedLately = _nobody,
    told: Told = _nothing_told,
) -> Steps[list[PartitionChange]]:
    """The changes that bring partitions, of all topics or some, in line with the live brokers.

    `returned` are let in by the same change. Those that are `waited_for` do not count as dead yet.
    """
    returned = returned or {}
    counted = live_brokers(image).brokers | returned.keys()
    live = _present((image.brokers[one] for one in sorted(counted)), frozenset(waited_for))
    chosen = image.topics.values() if topics is None else topics
    untold = any(member.untold for member in image.members.values())
    changes: list[PartitionChange] = []
    seen = 0
    for topic in chosen:
        heard = _heard(image, topic, returned) if untold else returned
        rules = ElectionRules.of(topic)
        for index, partition in enumerate(topic.own_partitions):  # a view follows its base
            if seen and seen % PARTITIONS_CHANGED_PER_SLICE == 0:
                yield
            seen += 1
            if not heard and _is_settled(partition, live):
                continue
            place = topic.topic_id, index
            after = _reconciled(place, partition, live, rules, heard, led_lately, told)
            if after != partition:
                changes.append(PartitionChange(topic.topic_id, index, partition, after))
    return changes


def _heard(
    image: MetadataImage, topic: TopicImage, returned: Mapping[int, Return]
) -> dict[int, Return]:
    """The returns that a topic hears of now: also earlier ones that its page could not be told."""
    heard, page = dict(returned), page_of(topic.topic_id)
    for broker_id, member in image.members.items():
        if page in member.untold:
            heard[broker_id] = _worse(member.untold[page], heard.get(broker_id, Return.CLEAN))
    return heard


def _reconciled(
    place: tuple[UUID, int],
    partition: PartitionImage,
    live: Live,
    rules: ElectionRules,
    returned: Mapping[int, Return],
    led_lately: LedLately,
    told: Told,
) -> PartitionImage:
    after = partition
    for broker_id in _in_order(partition, returned):
        after = after_return(after, broker_id, returned[broker_id])
    if not _is_settled(after, live):
        after = with_live_brokers(after, live, rules, told(*place, after))
    if after.leader == partition.leader:  # else its successor must be heard of first
        after = advanced(after, live, rules.min_isr, led_lately(*place, after))
    return after


def _in_order(partition: PartitionImage, returned: Mapping[int, Return]) -> list[int]:
    """The returned replicas; who has nothing comes first, and is no suspect beside the others."""
    found = [one for one in returned if one in partition.replicas]
    return sorted(found, key=lambda one: returned[one] is not Return.NEW_DISK)


def _is_settled(partition: PartitionImage, live: Live) -> bool:
    """The common case, decided cheaply: leader and isr are alive and stay, nothing else is open."""
    return (
        partition.leader in live.brokers
        and partition.leader not in live.leaving
        and not partition.elr
        and not partition.suspects
        and not partition.is_moving
        and all(one in live.brokers for one in partition.isr)
    )


def log_end_questions(
    image: MetadataImage,
    topic: TopicImage,
    index: int,
    electable: Collection[int],
    *,
    unclean: bool = False,
) -> list[LogEndQuestion]:
    """What must be known before the partition can have a leader, or any leader if `unclean`."""
    partition, rules = topic.partitions[index], ElectionRules.of(topic)
    if unclean:
        rules = rules._replace(allows_unclean=True)
    return [
        LogEndQuestion(
            topic_id=topic.topic_id,
            partition=index,
            leader_epoch=partition.leader_epoch,
            broker_id=one,
            broker_epoch=image.brokers[one].epoch,
        )
        for one in who_must_tell(partition, electable, rules)
    ]


def elected(
    image: MetadataImage, name: str, index: int, *, unclean: bool, told: Told = _nothing_told
) -> PartitionChange:
    """The election that somebody asks for; KafkaError if it is refused."""
    topic = _electable_topic(image, name, index)
    before, live = topic.partitions[index], live_brokers(image)
    if unclean:
        after = unclean_election(before, live, told(topic.topic_id, index, before))
    else:
        after = preferred_election(before, live)
    return PartitionChange(topic.topic_id, index, before, after)


def chosen(
    image: MetadataImage, name: str, index: int, *, leader: int, in_epoch: int
) -> PartitionChange:
    """The partition led by the replica whose log a person has chosen; KafkaError: refused."""
    topic = _electable_topic(image, name, index)
    before = topic.partitions[index]
    after = after_choice(before, leader, in_epoch=in_epoch, live=live_brokers(image))
    return PartitionChange(topic.topic_id, index, before, after)


def _electable_topic(image: MetadataImage, name: str, index: int) -> TopicImage:
    topic = image.topic(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no such partition")
    if topic.is_view:
        detail = f"{name} is a view: elect the leaders of {topic.view_of}"
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, detail)
    return topic


# --- reassignments -------------------------------------------------------------------------------


def moved(
    image: MetadataImage, name: str, index: int, target: Sequence[int] | None, led_lately: LedLately
) -> PartitionChange:
    """The reassignment that somebody asks for, or without a target its end; KafkaError: refused."""
    topic = image.topic(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no such partition")
    if topic.is_view:
        detail = f"{name} is a view: move the replicas of {topic.view_of}"
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, detail)
    before = topic.partitions[index]
    led = led_lately(topic.topic_id, index, before)
    if target is None:
        after = cancelled(before, live_brokers(image), topic.min_isr, led)
    else:
        after = reassigned(before, target, usable_brokers(image), topic.min_isr, led)
    return PartitionChange(topic.topic_id, index, before, after)


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
        min_isr=topic.min_isr,
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
