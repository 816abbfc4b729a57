"""The records of a consumer group, in Kafka's format: they are its hard state.

    kind                       key             value
    3  group metadata          group           group epoch, hash of the topics subscribed to
    5  member metadata         group, member   its client, subscription and timeouts
    6  target metadata         group           epoch of the target assignment
    7  target of a member      group, member   its target assignment
    8  current assignment      group, member   the assignment it was told, its epoch, and the epoch
                                               in which it was given each partition
    16 regular expression      group, itself   the topics that it matches (topic_patterns.py)

The hash is Tidemill's own. Kafka, like Tidemill, only compares it with a hash that it computes
itself, so a group that the other broker wrote is assigned once more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from tidemill.coordinators.group.base.records import encode_record, encode_tombstone
from tidemill.coordinators.group.consumer.assignment_epochs import Epochs
from tidemill.coordinators.group.consumer.assignors import Partitions
from tidemill.coordinators.group.consumer.reconciliation import CurrentAssignment, MemberState
from tidemill.coordinators.runtime.shard import CoordinatorRecord
from tidemill.core.errors import ProtocolViolation
from tidemill.wire.generated import (
    consumer_group_current_member_assignment_record as current_messages,
)
from tidemill.wire.generated import consumer_group_member_metadata_record as member_messages
from tidemill.wire.generated import (
    consumer_group_target_assignment_member_record as target_messages,
)
from tidemill.wire.generated.consumer_group_member_metadata_record import (
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
)
from tidemill.wire.generated.consumer_group_metadata_record import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
)
from tidemill.wire.generated.consumer_group_target_assignment_metadata_record import (
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)

__all__ = [
    "VERSION",
    "ClassicProtocols",
    "MemberMetadata",
    "current_of",
    "current_record",
    "group_record",
    "group_tombstones",
    "member_record",
    "member_tombstones",
    "metadata_of",
    "target_epoch_record",
    "target_of",
    "target_record",
]

VERSION = 0
"""The version of every value here."""
_STATES = {int(state): state for state in MemberState}


class ClassicProtocols(NamedTuple):
    """What a member that uses the classic protocol offers."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """Name and metadata, the preferred one first; at least one."""


class MemberMetadata(NamedTuple):
    """A member's client, subscription and timeout."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()
    """The topics that it subscribes to by name, sorted, each name once."""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    pattern: str | None = None
    """The regular expression that it subscribes with; never empty."""
    classic: ClassicProtocols | None = None
    """Set if the member speaks JoinGroup, SyncGroup and Heartbeat."""


# --- writing -------------------------------------------------------------------------------------


def group_record(group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
    return encode_record(
        ConsumerGroupMetadataKey(group_id=group_id),
        ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash),
        VERSION,
    )


def member_record(group_id: str, member_id: str, metadata: MemberMetadata) -> CoordinatorRecord:
    value = ConsumerGroupMemberMetadataValue(
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=list(metadata.topics),
        subscribed_topic_regex=metadata.pattern,
        rebalance_timeout_ms=metadata.rebalance_timeout_ms,
        server_assignor=metadata.server_assignor,
        classic_member_metadata=_classic_metadata(metadata.classic),
    )
    return encode_record(
        ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), value, VERSION
    )


def _classic_metadata(
    classic: ClassicProtocols | None,
) -> member_messages.ClassicMemberMetadata | None:
    if classic is None:
        return None
    return member_messages.ClassicMemberMetadata(
        session_timeout_ms=classic.session_timeout_ms,
        supported_protocols=[
            member_messages.ClassicProtocol(name=name, metadata=metadata)
            for name, metadata in classic.protocols
        ],
    )


def target_epoch_record(group_id: str, epoch: int, wall_ms: int) -> CoordinatorRecord:
    return encode_record(
        ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id),
        ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=epoch, assignment_timestamp=wall_ms
        ),
        VERSION,
    )


def target_record(group_id: str, member_id: str, target: Partitions) -> CoordinatorRecord:
    value = target_messages.ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=[
            target_messages.TopicPartition(topic_id=topic_id, partitions=list(partitions))
            for topic_id, partitions in target.items()
        ]
    )
    return encode_record(
        target_messages.ConsumerGroupTargetAssignmentMemberKey(
            group_id=group_id, member_id=member_id
        ),
        value,
        VERSION,
    )


def current_record(group_id: str, member_id: str, current: CurrentAssignment) -> CoordinatorRecord:
    value = current_messages.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=current.member_epoch,
        previous_member_epoch=current.previous_epoch,
        state=int(current.state),
        assigned_partitions=_topic_partitions(current.assigned, current.since),
        partitions_pending_revocation=_topic_partitions(current.revoking, current.since),
    )
    return encode_record(
        current_messages.ConsumerGroupCurrentMemberAssignmentKey(
            group_id=group_id, member_id=member_id
        ),
        value,
        VERSION,
    )


def member_tombstones(group_id: str, member_id: str) -> list[CoordinatorRecord]:
    """The metadata comes last: the member exists until its tombstone is replayed."""
    return [
        encode_tombstone(
            current_messages.ConsumerGroupCurrentMemberAssignmentKey(
                group_id=group_id, member_id=member_id
            )
        ),
        encode_tombstone(
            target_messages.ConsumerGroupTargetAssignmentMemberKey(
                group_id=group_id, member_id=member_id
            )
        ),
        encode_tombstone(ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id)),
    ]


def group_tombstones(group_id: str, member_ids: Iterable[str]) -> list[CoordinatorRecord]:
    records = [one for member_id in member_ids for one in member_tombstones(group_id, member_id)]
    records.append(encode_tombstone(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id)))
    records.append(encode_tombstone(ConsumerGroupMetadataKey(group_id=group_id)))
    return records


def _topic_partitions(
    partitions: Partitions, since: Epochs
) -> list[current_messages.TopicPartitions]:
    return [
        current_messages.TopicPartitions(
            topic_id=topic_id,
            partitions=list(numbers),
            assignment_epochs=[since[topic_id][number] for number in numbers],
        )
        for topic_id, numbers in partitions.items()
    ]


# --- reading -------------------------------------------------------------------------------------


def metadata_of(value: ConsumerGroupMemberMetadataValue) -> MemberMetadata:
    return MemberMetadata(
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        topics=tuple(sorted(set(value.subscribed_topic_names))),
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        server_assignor=value.server_assignor,
        pattern=value.subscribed_topic_regex or None,
        classic=_classic_of(value.classic_member_metadata),
    )


def _classic_of(value: member_messages.ClassicMemberMetadata | None) -> ClassicProtocols | None:
    if value is None:
        return None
    protocols = tuple((one.name, one.metadata) for one in value.supported_protocols)
    return ClassicProtocols(value.session_timeout_ms, protocols)


def current_of(
    value: current_messages.ConsumerGroupCurrentMemberAssignmentValue,
) -> CurrentAssignment:
    """ProtocolViolation: a state that only a newer broker knows."""
    state = _STATES.get(value.state)
    if state is None:
        raise ProtocolViolation(f"a member's state is {value.state}")
    return CurrentAssignment(
        member_epoch=value.member_epoch,
        previous_epoch=value.previous_member_epoch,
        state=state,
        assigned=_partitions(value.assigned_partitions),
        revoking=_partitions(value.partitions_pending_revocation),
        since=_since(value),
    )


def _since(value: current_messages.ConsumerGroupCurrentMemberAssignmentValue) -> Epochs:
    """Records of older brokers have no epochs: the member's own is the only safe one."""
    since: dict[UUID, dict[int, int]] = {}
    for one in (*value.assigned_partitions, *value.partitions_pending_revocation):
        epochs = one.assignment_epochs or []
        if len(epochs) != len(one.partitions):
            epochs = [value.member_epoch] * len(one.partitions)
        since.setdefault(one.topic_id, {}).update(zip(one.partitions, epochs, strict=True))
    return since


def target_of(value: target_messages.ConsumerGroupTargetAssignmentMemberValue) -> Partitions:
    return _partitions(value.topic_partitions)


def _partitions(
    topics: Iterable[current_messages.TopicPartitions | target_messages.TopicPartition],
) -> Partitions:
    return {one.topic_id: tuple(sorted(one.partitions)) for one in topics}
