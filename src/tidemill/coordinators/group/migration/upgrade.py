"""Makes a consumer group of a classic group with members (KIP-848).

A consumer of the new protocol may join a classic group whose members are all consumers. The group
then becomes a consumer group in one step: its members keep their ids, their assignments and their
generation, which is the first epoch. They go on in the classic protocol (`classic_requests.py`) and
learn from their next heartbeat that they must join again. Requests that wait for a round are
answered with REBALANCE_IN_PROGRESS.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

from tidemill.coordinators.group.base.embedded_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    partitions_by_id,
    try_assignment,
    try_subscription,
)
from tidemill.coordinators.group.base.group import ShardContext
from tidemill.coordinators.group.base.records import group_metadata_tombstone
from tidemill.coordinators.group.classic.classic_group import ClassicGroup
from tidemill.coordinators.group.classic.members import ClassicMember
from tidemill.coordinators.group.consumer.assignment_epochs import NO_EPOCHS, date_partitions
from tidemill.coordinators.group.consumer.assignors import Partitions
from tidemill.coordinators.group.consumer.reconciliation import CurrentAssignment
from tidemill.coordinators.group.consumer.records import (
    ClassicProtocols,
    MemberMetadata,
    current_record,
    group_record,
    member_record,
    target_epoch_record,
    target_record,
)
from tidemill.coordinators.group.consumer.targets import topics_hash
from tidemill.coordinators.runtime.shard import CoordinatorRecord, Now
from tidemill.core.limits import GROUP_RECORD_BYTES_MAX
from tidemill.metadata.image.metadata_image import MetadataImage

__all__ = ["try_upgrade"]

FIRST_EPOCH = 1
"""Of a group whose first round has not ended."""


class _Converted(NamedTuple):
    """A classic member as a member of a consumer group."""

    member_id: str
    metadata: MemberMetadata
    assigned: Partitions


def try_upgrade(
    group: ClassicGroup, context: ShardContext, now: Now
) -> list[CoordinatorRecord] | None:
    """The records that make it a consumer group; None if it cannot become one."""
    if not context.config.may_upgrade or group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return None
    members = list(_converted(group, context.image))
    if len(members) < len(group.members):
        return None  # a subscription or an assignment cannot be read
    records = _records(group, members, context.image, now)
    size_bytes = sum(len(record.key) + len(record.value or b"") for record in records)
    return records if size_bytes <= GROUP_RECORD_BYTES_MAX else None


def _converted(group: ClassicGroup, image: MetadataImage) -> Iterator[_Converted]:
    taken: set[tuple[UUID, int]] = set()
    for member in group.members:
        assigned = try_assignment(member.assignment)
        metadata = _try_metadata(member, group.protocol_name)
        if assigned is None or metadata is None:
            return
        own = _first_owned(partitions_by_id(assigned, image), taken)
        yield _Converted(member.member_id, metadata, own)


def _first_owned(partitions: Partitions, taken: set[tuple[UUID, int]]) -> Partitions:
    """Without what a careless leader has given to another member too (I26)."""
    own: dict[UUID, tuple[int, ...]] = {}
    for topic_id, numbers in partitions.items():
        free = tuple(number for number in numbers if (topic_id, number) not in taken)
        taken.update((topic_id, number) for number in free)
        if free:
            own[topic_id] = free
    return own


def _try_metadata(member: ClassicMember, protocol: str | None) -> MemberMetadata | None:
    chosen = member.protocols.get(protocol or "", next(iter(member.protocols.values())))
    subscription = try_subscription(chosen)
    if subscription is None:
        return None
    return MemberMetadata(
        instance_id=member.instance_id,
        rack_id=subscription.content.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=tuple(sorted(set(subscription.content.topics))),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicProtocols(member.session_timeout_ms, tuple(member.protocols.items())),
    )


def _records(
    group: ClassicGroup, members: list[_Converted], image: MetadataImage, now: Now
) -> list[CoordinatorRecord]:
    """In Kafka's order: the old group ends first."""
    group_id, epoch = group.group_id, max(group.generation, FIRST_EPOCH)
    topics = sorted({name for one in members for name in one.metadata.topics})
    records = [group_metadata_tombstone(group_id)]
    records += [member_record(group_id, one.member_id, one.metadata) for one in members]
    records.append(group_record(group_id, epoch, topics_hash(topics, image)))
    records += [target_record(group_id, one.member_id, one.assigned) for one in members]
    records.append(target_epoch_record(group_id, epoch, now.wall_ms))
    records += [
        current_record(
            group_id,
            one.member_id,
            CurrentAssignment(
                member_epoch=epoch,
                previous_epoch=epoch,
                assigned=one.assigned,
                since=date_partitions(one.assigned, before=NO_EPOCHS, epoch=epoch),
            ),
        )
        for one in members
    ]
    return records
