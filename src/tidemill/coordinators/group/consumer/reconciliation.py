"""How a member of a consumer group moves from its current assignment to its target (KIP-848, I26).

A partition changes hands in two steps, so that two members never read it at the same time. First
its old owner is told an assignment without it. The old owner stays in its epoch until its
heartbeats no longer list the partition as owned. Only then is the partition free, and the new
owner, which already waits in the new epoch, is told that it has it.

                         told to give up          stopped listing them, or has
                         partitions               nothing to give up
    STABLE ------------------------> UNREVOKED -----------------+
      |  ^                                                      |
      |  |   all of the target is free                          v
      |  +----------------------------------------------- next epoch
      |                                                         |
      +-- new target, nothing to give up ---> UNRELEASED <------+
                                              another member still has
                                              a part of the target

A member that does not give its partitions up in time is fenced by the group's deadline, which frees
them too.

A list that lacks partitions may be older than the answer that gave them: its sender may be about to
read them. librdkafka sends such a list right after it has joined. So, other than in Kafka, a list
frees only what its sender was told to give up before; until then it is asked to. The lists of
members that join, and of the classic protocol, are true: those have stopped reading.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple
from uuid import UUID

from tidemill.coordinators.group.consumer.assignment_epochs import (
    NO_EPOCHS,
    Epochs,
    date_partitions,
)
from tidemill.coordinators.group.consumer.assignors import NOTHING, Partitions
from tidemill.wire.generated.consumer_group_heartbeat import RequestTopicPartitions

__all__ = ["CurrentAssignment", "MemberState", "Owned", "is_within", "lists_any", "reconcile"]

Owned = Sequence[RequestTopicPartitions] | None
"""The partitions that a member says it owns; None: unchanged since its last heartbeat."""


class MemberState(IntEnum):
    """How far a member is from its target; numbered as in Kafka's records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    """It must give up partitions before it may enter the next epoch."""
    UNRELEASED_PARTITIONS = 2
    """It waits for partitions that other members must give up."""


class CurrentAssignment(NamedTuple):
    """The assignment that a member was told, and its epoch."""

    member_epoch: int = 0
    previous_epoch: int = 0
    """Its epoch before; a member whose last answer was lost still sends this one."""
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NOTHING
    revoking: Partitions = NOTHING
    """Partitions that it was told to give up and may still be reading."""
    since: Epochs = NO_EPOCHS
    """The epochs in which it was given the partitions of both kinds."""


def reconcile(
    current: CurrentAssignment,
    *,
    target: Partitions,
    target_epoch: int,
    owned: Owned,
    is_free: Callable[[UUID, int], bool],
    may_be_late: bool,
) -> CurrentAssignment:
    """The member's next step towards its target; the same object if there is none.

    `is_free`: no other member has the partition or may still be reading it. `may_be_late`: the
    member may begin to read what it was given and does not list.
    """
    if current.state is MemberState.STABLE and current.member_epoch == target_epoch:
        return current
    if current.state is MemberState.UNREVOKED_PARTITIONS and lists_any(owned, current.revoking):
        return current
    kept, given_up = _split(current.assigned, target)
    if given_up and (may_be_late or lists_any(owned, given_up)):
        return CurrentAssignment(
            member_epoch=current.member_epoch,
            previous_epoch=current.member_epoch,
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=kept,
            revoking=given_up,
            since=date_partitions(kept, given_up, before=current.since, epoch=current.member_epoch),
        )
    assigned, complete = _take_free(kept, target, is_free)
    state = MemberState.STABLE if complete else MemberState.UNRELEASED_PARTITIONS
    if (target_epoch, state, assigned) == (current.member_epoch, current.state, current.assigned):
        return current
    return CurrentAssignment(
        member_epoch=target_epoch,
        previous_epoch=current.member_epoch,
        state=state,
        assigned=assigned,
        since=_since(current, kept, assigned, target_epoch),
    )


def _since(
    current: CurrentAssignment, kept: Partitions, assigned: Partitions, epoch: int
) -> Epochs:
    """What the member keeps stays its own; everything else is its own from this epoch on."""
    before = date_partitions(kept, before=current.since, epoch=current.member_epoch)
    return date_partitions(assigned, before=before, epoch=epoch)


def is_within(owned: Owned, assigned: Partitions) -> bool:
    """Whether a member owns no more than it was assigned; False if it does not say."""
    if owned is None:
        return False
    return all(
        partition in assigned.get(one.topic_id, ()) for one in owned for partition in one.partitions
    )


def lists_any(owned: Owned, partitions: Partitions) -> bool:
    if owned is None:
        return True
    for one in owned:
        wanted = partitions.get(one.topic_id)
        if wanted is not None and not set(wanted).isdisjoint(one.partitions):
            return True
    return False


def _split(assigned: Partitions, target: Partitions) -> tuple[Partitions, Partitions]:
    """The partitions of the assignment that are in the target, and those that are not."""
    kept: dict[UUID, tuple[int, ...]] = {}
    given_up: dict[UUID, tuple[int, ...]] = {}
    for topic_id, partitions in assigned.items():
        wanted = target.get(topic_id, ())
        if wanted == partitions:
            kept[topic_id] = partitions
            continue
        among = frozenset(wanted)
        _put(kept, topic_id, tuple(one for one in partitions if one in among))
        _put(given_up, topic_id, tuple(one for one in partitions if one not in among))
    return kept, given_up


def _take_free(
    kept: Partitions, target: Partitions, is_free: Callable[[UUID, int], bool]
) -> tuple[Mapping[UUID, tuple[int, ...]], bool]:
    """The partitions of the target that the member can have now, and whether these are all."""
    assigned: dict[UUID, tuple[int, ...]] = {}
    complete = True
    for topic_id, wanted in target.items():
        has = kept.get(topic_id, ())
        if has != wanted:
            among = frozenset(has)
            has = tuple(one for one in wanted if one in among or is_free(topic_id, one))
            complete = complete and len(has) == len(wanted)
        _put(assigned, topic_id, has)
    return assigned, complete


def _put(into: dict[UUID, tuple[int, ...]], topic_id: UUID, partitions: tuple[int, ...]) -> None:
    if partitions:
        into[topic_id] = partitions
