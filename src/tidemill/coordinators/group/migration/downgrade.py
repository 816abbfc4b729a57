"""Makes a classic group of a consumer group whose last member of the new protocol goes (KIP-848).

The members that stay all use the classic protocol. They keep their ids and assignments, and the
group epoch becomes the generation. The record names no leader, because the coordinator made this
plan; a classic group without a leader begins a round at once (`classic/rounds.py`), in which the
partitions of those who left are given out again.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.coordinators.group.base.embedded_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    encode_assignment,
    try_subscription,
)
from tidemill.coordinators.group.base.records import group_metadata_record
from tidemill.coordinators.group.consumer.consumer_group import ConsumerGroup
from tidemill.coordinators.group.consumer.members import ConsumerMember
from tidemill.coordinators.runtime.shard import CoordinatorRecord, Now
from tidemill.core.limits import GROUP_RECORD_BYTES_MAX
from tidemill.metadata.image.metadata_image import MetadataImage
from tidemill.wire.generated.group_metadata_record import GroupMetadataValue, MemberMetadata

__all__ = ["try_downgrade"]


def try_downgrade(
    group: ConsumerGroup, gone: Sequence[ConsumerMember], now: Now
) -> list[CoordinatorRecord] | None:
    """The records that make it a classic group without these members; None if it stays."""
    members, config = group.members, group.context.config
    if not config.may_downgrade or members.classic_count < len(members) - len(gone):
        return None
    gone_ids = {one.member_id for one in gone}
    left = [one for one in members if one.member_id not in gone_ids]
    ballots = [_offered(one) for one in left]
    if not left or not all(ballots) or not members.classic_support.has_common(ballots[0]):
        return None
    protocol = members.classic_support.elect(ballots)
    record = group_metadata_record(
        group.group_id,
        GroupMetadataValue(
            protocol_type=CONSUMER_PROTOCOL_TYPE,
            generation=group.epoch,
            protocol=protocol,
            leader=None,
            current_state_timestamp=now.wall_ms,
            members=[_recorded(one, protocol, group.context.image) for one in left],
        ),
    )
    if len(record.value or b"") > GROUP_RECORD_BYTES_MAX:
        return None
    return [*group.tombstones(), record]


def _offered(member: ConsumerMember) -> dict[str, bytes]:
    """The member's protocols; empty if it uses the new one."""
    classic = member.metadata.classic
    return {} if classic is None else dict(classic.protocols)


def _recorded(member: ConsumerMember, protocol: str, image: MetadataImage) -> MemberMetadata:
    metadata, classic = member.metadata, member.metadata.classic
    assert classic is not None
    offered = dict(classic.protocols)[protocol]
    subscription = try_subscription(offered)
    version = 0 if subscription is None else subscription.version
    return MemberMetadata(
        member_id=member.member_id,
        group_instance_id=metadata.instance_id,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        rebalance_timeout=metadata.rebalance_timeout_ms,
        session_timeout=classic.session_timeout_ms,
        subscription=offered,
        assignment=encode_assignment(member.current.assigned, image, version),
    )
