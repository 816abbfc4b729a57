"""Which replica leads a partition, and which count as in sync. Pure.

The rules, from KIP-966:

- A dead broker leaves the isr. If fewer than min.insync.replicas remain, it moves to the elr: the
  high watermark stands still below that number, so the broker still has everything.
- The leader is chosen among live brokers, in the order of the assignment: from the isr; else from
  the elr. If both are empty, the suspect with the longest log leads, once every one of them has
  told where its log ends (`log_ends.py`): those that are down are waited for, as those in the elr
  are. A single suspect need not be asked; without one the last known leader leads. Only if the
  topic allows unclean elections, the longest log of all live replicas wins, and those that stay
  silent are left out. Otherwise the partition has no leader for now.
- A leader from outside the isr is alone in the new isr. The elr is cleared when the isr is large
  enough again, and when the leader comes from outside both sets, since no replica is certain then.
  The epoch of such a leader is noted as unclean: followers may have to cut what was acknowledged.
- A living leader that is to be replaced (it is about to stop, or another one is preferred) stays in
  the isr: what the new leader promises waits until the old one has fetched from it.
- A broker that returns is another life of it (`after_return`). One that led still leads, in the
  next epoch: no two lives share one. After an unclean end it may have lost what it had
  acknowledged: it leaves isr and elr and is a *suspect*, one of the best replicas if nobody else
  is left. It stays one for as long as it would have stayed in the elr: with a leader and enough
  replicas in sync, marks move on without it. With another disk it has nothing, and leads only if
  somebody decides that.
- Every change of leader, also to none and also of a broker to itself, takes the next epoch (I11).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, final

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import NO_LEADER, TopicId
from tidemill.metadata.image.metadata_image import PartitionImage, Return, TopicImage
from tidemill.metadata.rules.log_ends import NOTHING_TOLD, LogEnds

__all__ = [
    "ElectionRules",
    "Live",
    "PartitionChange",
    "after_choice",
    "after_isr_change",
    "after_return",
    "handed_over",
    "new_partition",
    "preferred_election",
    "unclean_election",
    "who_must_tell",
    "with_live_brokers",
]


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
class ElectionRules(NamedTuple):
    """What a topic says about its elections."""

    min_isr: int = 1
    """min.insync.replicas in force."""
    allows_unclean: bool = False

    @classmethod
    def of(cls, topic: TopicImage) -> ElectionRules:
        return cls(topic.min_isr, topic.config.unclean_leader_election_enable)


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


def with_live_brokers(
    partition: PartitionImage, live: Live, rules: ElectionRules, told: LogEnds = NOTHING_TOLD
) -> PartitionImage:
    """The partition without dead brokers in its isr, and with a leader if one is possible."""
    gone = tuple(one for one in partition.isr if one not in live.brokers)
    after = _without(partition, gone, rules.min_isr)
    if after.leader not in live.brokers:
        after = _elect(after, live.electable, rules, told)
    elif after.leader in live.leaving:
        after = handed_over(after, partition.replicas, live.electable) or after
    return _without_needless_suspects(after, live, rules.min_isr)


def _without_needless_suspects(
    partition: PartitionImage, live: Live, min_isr: int
) -> PartitionImage:
    """Marks move on with a leader that is there: not with one whose return is waited for."""
    is_led = partition.leader in live.electable or partition.leader in live.leaving
    if is_led and len(partition.isr) >= partition.in_sync_min(min_isr):
        return replace(partition, suspects=())
    return partition


def handed_over(
    partition: PartitionImage, wanted: Iterable[int], candidates: Collection[int]
) -> PartitionImage | None:
    """Led by the first of `wanted` that is in sync and a candidate; None if there is none.

    The leader so far lives: it stays in the isr.
    """
    for leader in wanted:
        if leader in candidates and leader in partition.isr:
            return _led_by(partition, leader, isr=partition.isr, elr=partition.elr)
    return None


def _without(partition: PartitionImage, gone: tuple[int, ...], min_isr: int) -> PartitionImage:
    """The partition after `gone` left the isr."""
    least = partition.in_sync_min(min_isr)
    # An elr beside an isr that is large enough dates from a time with a higher minimum; the high
    # watermark may have moved since.
    elr = partition.elr if len(partition.isr) < least else ()
    isr = tuple(one for one in partition.isr if one not in gone)
    return replace(partition, isr=isr, elr=elr + gone if len(isr) < least else ())


def _elect(
    partition: PartitionImage, live: Collection[int], rules: ElectionRules, told: LogEnds
) -> PartitionImage:
    candidates = [one for one in partition.replicas if one in live]
    led = handed_over(partition, partition.replicas, candidates)
    if led is not None:
        return led
    for leader in candidates:
        if leader in partition.elr:
            elr = tuple(one for one in partition.elr if one != leader)
            kept = elr if partition.in_sync_min(rules.min_isr) > 1 else ()
            return _led_by(partition, leader, isr=(leader,), elr=kept)
    suspect = _best_suspect(partition, candidates, told)
    if suspect != NO_LEADER:
        return _led_by_suspect(partition, suspect)
    heard = [one for one in candidates if one not in told.silent]
    if rules.allows_unclean and (longest := _longest(partition, heard, told)) != NO_LEADER:
        return _led_uncleanly(partition, longest)
    if partition.leader == NO_LEADER:
        return partition
    return replace(partition, leader=NO_LEADER, leader_epoch=partition.leader_epoch + 1)


def who_must_tell(
    partition: PartitionImage, electable: Collection[int], rules: ElectionRules
) -> list[int]:
    """The replicas whose log ends decide who leads next; nobody, if that needs no asking."""
    candidates = [one for one in partition.replicas if one in electable]
    certain = {*partition.isr, *partition.elr}
    if partition.leader != NO_LEADER or certain.intersection(candidates):
        return []
    if rules.allows_unclean:
        asked = candidates
    elif certain or not _are_there(partition.suspects, candidates):
        asked = []  # somebody is waited for, and may be certain then
    else:
        asked = candidates if partition.suspects else []
    return asked if len(partition.replicas) > 1 else []


def _are_there(suspects: Collection[int], candidates: Collection[int]) -> bool:
    """Whether no suspect has to be waited for: the absent one may have the longest log."""
    return set(suspects) <= set(candidates)


def _best_suspect(partition: PartitionImage, candidates: Sequence[int], told: LogEnds) -> int:
    """Who leads if nobody is certain; NO_LEADER while some may have more, or somebody is."""
    if partition.isr or partition.elr:
        return NO_LEADER
    suspects = partition.suspects or (partition.last_known_leader,)
    if not _are_there(suspects, candidates):
        return NO_LEADER
    likely = [one for one in candidates if one in suspects]
    if not partition.suspects or len(partition.replicas) == 1:
        return likely[0]
    if _are_empty(likely, told):
        # A log that was lost with its disk looks like this: whoever has something has more.
        likely = list(partition.replicas)
    return _longest(partition, likely, told) if _have_told(likely, told) else NO_LEADER


def _have_told(replicas: Collection[int], told: LogEnds) -> bool:
    return set(replicas) <= told.ends.keys()


def _are_empty(replicas: Collection[int], told: LogEnds) -> bool:
    """Whether all of them have told that no record was ever in their logs."""
    return _have_told(replicas, told) and all(told.ends[one].is_of_nothing for one in replicas)


def _longest(partition: PartitionImage, candidates: Sequence[int], told: LogEnds) -> int:
    """The one with the longest log; NO_LEADER if one of several has not told its end.

    Of those that are as long, the last leader, then the order of the assignment.
    """
    if len(candidates) == 1:
        return candidates[0]
    if not candidates or not _have_told(candidates, told):
        return NO_LEADER
    last = partition.last_known_leader
    return max(candidates, key=lambda one: (told.ends[one], one == last))


def _led_by_suspect(partition: PartitionImage, leader: int) -> PartitionImage:
    """The other suspects stay: should it be lost, too, one of them may have more."""
    led = _led_by(partition, leader, isr=(leader,), elr=())
    return replace(led, unclean_epoch=led.leader_epoch)


def _led_uncleanly(partition: PartitionImage, leader: int) -> PartitionImage:
    return replace(_led_by_suspect(partition, leader), suspects=())


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
        suspects=tuple(one for one in partition.suspects if one not in isr),
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


def unclean_election(
    partition: PartitionImage, live: Live, told: LogEnds = NOTHING_TOLD
) -> PartitionImage:
    """The partition led by any live replica, although records may be lost; somebody wants it.

    Those that are certain come first, then the longest log of those that have told their ends.
    """
    if partition.leader in live.brokers:
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, f"broker {partition.leader} leads")
    candidates = [one for one in partition.replicas if one in live.electable]
    for leader in (*partition.isr, *partition.elr):
        if leader in candidates:
            isr = partition.isr if leader in partition.isr else (leader,)
            return _led_by(partition, leader, isr=isr, elr=())
    if not candidates:
        raise KafkaError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "no replica of it lives")
    heard = candidates if len(candidates) == 1 else [one for one in candidates if one in told.ends]
    leader = _longest(partition, heard, told)
    if leader == NO_LEADER:
        detail = f"none of brokers {candidates} has told where its log ends; try again"
        raise KafkaError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, detail)
    return _led_uncleanly(partition, leader)


def after_choice(
    partition: PartitionImage, leader: int, *, in_epoch: int, live: Live
) -> PartitionImage:
    """The partition led by the replica whose log a person has chosen, in an unclean epoch.

    So every other replica may drop what that one lacks. KafkaError if the choice was made for
    another leader epoch: what people were told to compare may be gone.
    """
    if in_epoch != partition.leader_epoch:
        now = partition.leader_epoch
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, f"leader epoch is {now}, not {in_epoch}")
    if leader not in partition.replicas or leader not in live.electable:
        raise KafkaError(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"broker {leader} is not a live replica"
        )
    if leader != partition.leader:
        return _led_uncleanly(partition, leader)
    led = _led_by(partition, leader, isr=partition.isr, elr=partition.elr)
    return replace(led, unclean_epoch=led.leader_epoch)


def after_return(partition: PartitionImage, broker_id: int, how: Return) -> PartitionImage:
    """The partition after `broker_id` has registered again (I14)."""
    if how is Return.CLEAN:
        # Without another replica nobody counts on the epoch, and a restart writes no pages.
        if partition.leader != broker_id or len(partition.replicas) == 1:
            return partition
        return replace(partition, leader_epoch=partition.leader_epoch + 1)
    if how is Return.NEW_DISK:
        partition = _without_trust(partition, broker_id)
    if broker_id not in partition.isr and broker_id not in partition.elr:
        return partition
    isr = tuple(one for one in partition.isr if one != broker_id)
    elr = tuple(one for one in partition.elr if one != broker_id)
    suspects = partition.suspects
    if how is Return.UNCLEAN:
        suspects += (broker_id,)
    partition = replace(partition, isr=isr, elr=elr, suspects=suspects)
    if suspects and len(partition.replicas) == 1:
        return _led_by_suspect(partition, broker_id)
    if partition.leader != broker_id:
        return partition
    return replace(partition, leader=NO_LEADER, leader_epoch=partition.leader_epoch + 1)


def _without_trust(partition: PartitionImage, broker_id: int) -> PartitionImage:
    """`broker_id` has nothing of what it had: it is no better than any other replica."""
    last = partition.last_known_leader
    return replace(
        partition,
        last_known_leader=NO_LEADER if last == broker_id else last,
        suspects=tuple(one for one in partition.suspects if one != broker_id),
    )


def after_isr_change(
    partition: PartitionImage,
    new_isr: tuple[int, ...],
    *,
    leader_epoch: int,
    partition_epoch: int,
    eligible: Collection[int],
    min_isr: int,
) -> PartitionImage:
    """The partition with the isr that its leader proposes; KafkaError if that is not allowed.

    A proposal from an older leader or on an older state has no effect (I15). `eligible` are the
    brokers that may join.
    """
    _check_proposal(partition, leader_epoch=leader_epoch, partition_epoch=partition_epoch)
    if partition.leader not in new_isr or not set(new_isr) <= set(partition.replicas):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "an isr is the leader and other replicas")
    joining = [one for one in new_isr if one not in partition.isr and one not in eligible]
    if joining:
        raise KafkaError(ErrorCode.INELIGIBLE_REPLICA, f"broker {joining[0]} may not join")
    left = tuple(one for one in partition.isr if one not in new_isr)
    shrunk = _without(partition, left, min_isr)
    elr = tuple(one for one in shrunk.elr if one not in new_isr)
    isr = tuple(one for one in partition.replicas if one in new_isr)
    suspects = tuple(one for one in partition.suspects if one not in new_isr)
    if len(isr) >= partition.in_sync_min(min_isr):
        elr = suspects = ()
    return replace(partition, isr=isr, elr=elr, suspects=suspects)


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
