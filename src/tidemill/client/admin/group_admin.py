"""Consumer groups for an administrator: list them, show their progress, remove them.

A request about one group goes to its coordinator. The list of groups is collected from all brokers,
because each knows only the groups that it coordinates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, final

from tidemill.client.admin.coordinator_client import CoordinatorClient
from tidemill.client.admin.group_description import GroupMember
from tidemill.client.admin.group_offsets import GroupOffsets, OffsetAndMetadata
from tidemill.client.network.cluster_client import ClusterClient, retry_refusals
from tidemill.client.network.errors import check, error_code
from tidemill.client.network.offset_lookup import LATEST_TIMESTAMP, list_offsets
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.wire.generated.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from tidemill.wire.generated.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from tidemill.wire.generated.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

__all__ = [
    "GroupAdmin",
    "GroupSummary",
    "PartitionProgress",
]

_PASSING: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)
"""Why a list of groups may fail for a moment: a shard loads, or a broker has just left."""
_REMOVED_BY_HAND: Final = "removed by an administrator"


@final
@dataclass(frozen=True, slots=True)
class GroupSummary:
    """One line of the list; state and kind are empty if the broker is too old to report them."""

    group_id: str
    kind: str
    state: str
    protocol_type: str
    coordinator: int


@final
@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """How far a group is in one partition.

    `committed` is None if the group never committed, `end_offset` if the partition was deleted.
    """

    partition: TopicPartition
    committed: OffsetAndMetadata | None
    end_offset: int | None

    @property
    def lag(self) -> int | None:
        """Records between the committed offset and the high watermark."""
        if self.committed is None or self.end_offset is None:
            return None
        return self.end_offset - self.committed.offset


@final
class GroupAdmin:
    """Administers the consumer groups of one cluster."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster

    # --- reading ---------------------------------------------------------------------------------

    async def list_groups(self) -> list[GroupSummary]:
        """Every group that we may describe, by name."""

        async def ask() -> list[GroupSummary]:
            await self._cluster.refresh([])
            found: list[GroupSummary] = []
            for broker_id in sorted(self._cluster.metadata.brokers):
                response = await self._cluster.ask_broker(
                    broker_id, ListGroupsRequest(), ListGroupsResponse
                )
                check(response.error_code, f"broker {broker_id} cannot list its groups")
                found += [_summary(group, broker_id) for group in response.groups]
            return sorted(found, key=lambda group: group.group_id)

        return await retry_refusals(ask, _PASSING)

    async def progress(
        self, group: str, assigned: Iterable[TopicPartition] = ()
    ) -> list[PartitionProgress]:
        """Progress in every partition that has a committed offset or is in `assigned`."""
        committed = await GroupOffsets(self._cluster, group).fetch(None)
        partitions = sorted({*committed, *assigned})
        ends = await self._ends(partitions)
        return [
            PartitionProgress(partition, committed.get(partition), ends.get(partition))
            for partition in partitions
        ]

    async def _ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """High watermarks of the topics that exist; offsets outlive a deleted topic for a while."""
        await self._cluster.refresh({partition.topic for partition in partitions})
        topics = self._cluster.metadata.topics
        there = {
            partition: LATEST_TIMESTAMP
            for partition in partitions
            if partition.topic in topics
            and partition.partition in topics[partition.topic].partitions
        }
        found = await list_offsets(self._cluster, there)
        return {partition: listed.offset for partition, listed in found.items()}

    # --- changing --------------------------------------------------------------------------------

    async def delete_groups(self, groups: Iterable[str]) -> dict[str, ErrorCode]:
        """Delete groups and their offsets; the outcome of each, in the order of `groups`."""
        return {group: await self._delete(group) for group in dict.fromkeys(groups)}

    async def _delete(self, group: str) -> ErrorCode:
        coordinator = CoordinatorClient(self._cluster, group)
        request = DeleteGroupsRequest(groups_names=[group])

        async def ask() -> None:
            response = await coordinator.ask(request, DeleteGroupsResponse)
            for result in response.results:
                check(result.error_code, f"group {group}")

        try:
            await coordinator.retry(ask)
        except KafkaError as refusal:
            return refusal.code
        return ErrorCode.NONE

    async def remove_members(
        self, group: str, members: Sequence[GroupMember]
    ) -> dict[str, ErrorCode]:
        """Remove members from a group, as if they had left; the outcome of each, by member id.

        A live member joins again; this is for static members that will not return (T42).
        """
        coordinator = CoordinatorClient(self._cluster, group)
        identities = [
            MemberIdentity(
                member_id="" if member.instance_id else member.member_id,
                group_instance_id=member.instance_id,
                reason=_REMOVED_BY_HAND,
            )
            for member in members
        ]
        request = LeaveGroupRequest(group_id=group, members=identities)

        async def ask() -> dict[str, ErrorCode]:
            response = await coordinator.ask(request, LeaveGroupResponse)
            check(response.error_code, f"group {group}")
            if len(response.members) != len(members):
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "not every member was answered")
            codes = [error_code(answer.error_code) for answer in response.members]
            return {m.member_id: code for m, code in zip(members, codes, strict=True)}

        return await coordinator.retry(ask)


def _summary(group: ListedGroup, broker_id: int) -> GroupSummary:
    return GroupSummary(
        group_id=group.group_id,
        kind=group.group_type.lower(),
        state=group.group_state,
        protocol_type=group.protocol_type,
        coordinator=broker_id,
    )
