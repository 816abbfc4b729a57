"""Moves the replicas of a partition to other brokers: target -> the next states. Pure.

A reassignment to a target goes through these states, each written by itself:

    asked      replicas = target + those that go; `adding` and `removing` name the difference
    copying    leader and followers work as always; the new ones catch up and join the isr
    in sync    the whole target is in the isr: a leader that goes hands over to one that stays
    done       replicas = target; the leader epoch rises, because a replica has left

The leader that hands over lives. It stays in the isr of that change, and among the replicas for a
while (`led_lately`): the new leader's marks wait for its first fetch in the new epoch, so it
has heard of its successor before it is forgotten. A leader whose replica was taken away at once
would go on answering readers until its lease has ended.

Who leaves is told apart by the epoch: its fetches and proposals of the earlier one have no effect.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import NO_LEADER
from tidemill.metadata.image.metadata_image import PartitionImage
from tidemill.metadata.rules.election import Live, handed_over

__all__ = ["advanced", "cancelled", "is_waiting_to_forget", "reassigned"]


def reassigned(
    partition: PartitionImage,
    target: Sequence[int],
    usable: Collection[int],
    min_isr: int,
    led_lately: Collection[int] = (),
) -> PartitionImage:
    """The partition on its way to `target`; KafkaError if that cannot be.

    `usable` are the brokers that may be given replicas. A reassignment that goes on is replaced:
    what it had added goes at once, or like any replica that is removed if it leads or led.
    """
    target = tuple(target)
    _check_target(partition, target, usable)
    waiting = {partition.leader, *led_lately}.intersection(partition.adding)
    before = tuple(one for one in partition.replicas if one not in partition.adding)
    removing = tuple(
        one for one in partition.replicas if one not in target and (one in before or one in waiting)
    )
    replicas = target + removing
    dropped = tuple(one for one in partition.replicas if one not in replicas)
    moved = replace(
        _without_replicas(partition, dropped),
        replicas=replicas,
        adding=tuple(one for one in target if one not in before),
        removing=removing,
    )
    return _with_other_minimum(partition, moved, min_isr)


def _check_target(
    partition: PartitionImage, target: tuple[int, ...], usable: Collection[int]
) -> None:
    if not target or len(set(target)) != len(target):
        detail = "a partition needs a replica, and each on a broker of its own"
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, detail)
    missing = [one for one in target if one not in partition.replicas and one not in usable]
    if missing:
        detail = f"broker {missing[0]} is not live, or is being drained"
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, detail)
    going = set(partition.adding).difference(target, {partition.leader})
    certain = {*partition.isr, *partition.elr}
    if certain <= going and going.intersection(certain or _unsure(partition)):
        detail = "replicas that would go may alone have everything: it would be lost"
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, detail)


def _unsure(partition: PartitionImage) -> Collection[int]:
    """Where nobody is certain to have everything: who is elected next, the longest log of them."""
    return partition.suspects or (partition.last_known_leader,)


def cancelled(
    partition: PartitionImage, live: Live, min_isr: int, led_lately: Collection[int] = ()
) -> PartitionImage:
    """The partition on its replicas before the reassignment; KafkaError if that cannot be.

    A request that comes twice finds only former leaders that go: they would be kept for ever.
    """
    only_forgets = is_waiting_to_forget(partition) or set(partition.removing) <= set(led_lately)
    is_done = not partition.adding and only_forgets
    if is_done or not partition.is_moving:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "its replicas are not being moved")
    kept = tuple(one for one in partition.replicas if one not in partition.adding)
    if not set(partition.isr).intersection(kept):
        detail = "none of its earlier replicas is in sync: what was written since would be lost"
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, detail)
    back = partition
    if partition.leader in partition.adding:
        led = handed_over(partition, kept, live.electable)
        if led is None:
            detail = f"broker {partition.leader} leads, and no earlier replica in sync lives"
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, detail)
        back = led
    # Who leads or led a moment ago goes like any replica that is removed.
    removing = tuple(
        one for one in partition.adding if one == partition.leader or one in led_lately
    )
    dropped = tuple(one for one in partition.adding if one not in removing)
    back = replace(
        _without_replicas(back, dropped), replicas=kept + removing, adding=(), removing=removing
    )
    return _with_other_minimum(partition, back, min_isr)


def advanced(
    partition: PartitionImage, live: Live, min_isr: int, led_lately: Collection[int] = ()
) -> PartitionImage:
    """The next state of a partition that is being moved; the same if it must wait."""
    target = partition.target
    if not partition.is_moving or not set(target) <= set(partition.isr):
        return partition
    if partition.leader not in target:
        # Without a leader there is nobody to hand over; an election comes first.
        is_led = partition.leader in live.brokers
        return (handed_over(partition, target, live.electable) if is_led else None) or partition
    if set(partition.removing).intersection(led_lately):
        return partition
    done = _without_replicas(partition, partition.removing)
    return _with_other_minimum(
        partition, replace(done, replicas=target, adding=(), removing=()), min_isr
    )


def is_waiting_to_forget(partition: PartitionImage) -> bool:
    """Whether the move is done, except for the time in which a former leader is kept."""
    target = partition.target
    return (
        bool(partition.removing)
        and partition.leader in target
        and set(target) <= set(partition.isr)
    )


def _without_replicas(partition: PartitionImage, gone: Collection[int]) -> PartitionImage:
    """The partition without some replicas, none of them the leader, in the next epoch if any."""
    if not gone:
        return partition
    last = partition.last_known_leader
    return replace(
        partition,
        leader_epoch=partition.leader_epoch + 1,
        isr=tuple(one for one in partition.isr if one not in gone),
        elr=tuple(one for one in partition.elr if one not in gone),
        suspects=tuple(one for one in partition.suspects if one not in gone),
        last_known_leader=partition.leader if last in gone else last,
    )


def _with_other_minimum(
    before: PartitionImage, after: PartitionImage, min_isr: int
) -> PartitionImage:
    """The elr was decided under another minimum: with a leader, the marks may move past it."""
    if after.leader == NO_LEADER or before.in_sync_min(min_isr) == after.in_sync_min(min_isr):
        return after
    return replace(after, elr=())
