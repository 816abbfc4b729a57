"""Consumer groups for the brokers in memory: `FakeGroups(cluster)` adds the group APIs."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.support.fake_cluster import HOST, FakeBroker, FakeCluster
from tidemill.core.errors import ErrorCode
from tidemill.core.ids import TopicPartition
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated import (
    consumer_group_describe,
    consumer_protocol_assignment,
    delete_groups,
    describe_groups,
    find_coordinator,
    leave_group,
    list_groups,
    offset_commit,
    offset_fetch,
)
from tidemill.wire.message import Message
from tidemill.wire.primitives import Writer


@dataclass
class FakeMember:
    member_id: str
    assignment: list[TopicPartition] = field(default_factory=list)
    instance_id: str | None = None
    raw_assignment: bytes | None = None
    """For classic groups, in place of `assignment`."""


@dataclass
class FakeGroup:
    kind: str = "classic"
    state: str = "Empty"
    coordinator: int = 1
    members: list[FakeMember] = field(default_factory=list)
    committed: dict[TopicPartition, int] = field(default_factory=dict)


class FakeGroups:
    """All groups of a cluster, by name. Broker 1 coordinates groups that are not listed."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.groups: dict[str, FakeGroup] = {}
        self.refusals: list[ErrorCode] = []
        """The error codes that answer the next requests to a coordinator."""
        self._cluster = cluster
        for broker in cluster.brokers.values():
            broker.handlers |= _Handlers(self, broker).table()

    def add(self, name: str, **fields: object) -> FakeGroup:
        self.groups[name] = FakeGroup(**fields)  # type: ignore[arg-type]
        return self.groups[name]

    def coordinator(self, name: str) -> FakeBroker:
        known = self.groups.get(name)
        return self._cluster.brokers[1 if known is None else known.coordinator]


class _Handlers:
    def __init__(self, groups: FakeGroups, broker: FakeBroker) -> None:
        self._groups = groups
        self._broker = broker

    def table(self):
        return {
            ApiKey.FIND_COORDINATOR: self.find_coordinator,
            ApiKey.LIST_GROUPS: self.list_groups,
            ApiKey.CONSUMER_GROUP_DESCRIBE: self.describe_consumer,
            ApiKey.DESCRIBE_GROUPS: self.describe_classic,
            ApiKey.OFFSET_FETCH: self.offset_fetch,
            ApiKey.OFFSET_COMMIT: self.offset_commit,
            ApiKey.DELETE_GROUPS: self.delete_groups,
            ApiKey.LEAVE_GROUP: self.leave_group,
        }

    def _code(self, name: str) -> ErrorCode:
        if self._groups.refusals:
            return self._groups.refusals.pop(0)
        if self._groups.coordinator(name) is not self._broker:
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.NONE

    def find_coordinator(
        self, request: find_coordinator.FindCoordinatorRequest, version: int
    ) -> Message:
        found = []
        for key in request.coordinator_keys:
            broker = self._groups.coordinator(key)
            found.append(
                find_coordinator.Coordinator(
                    key=key, node_id=broker.node_id, host=HOST, port=broker.port
                )
            )
        return find_coordinator.FindCoordinatorResponse(coordinators=found)

    def list_groups(self, request: list_groups.ListGroupsRequest, version: int) -> Message:
        if self._groups.refusals:
            return list_groups.ListGroupsResponse(error_code=self._groups.refusals.pop(0))
        return list_groups.ListGroupsResponse(
            groups=[
                list_groups.ListedGroup(
                    group_id=name,
                    protocol_type="consumer",
                    group_state=group.state,
                    group_type=group.kind.title(),
                )
                for name, group in self._groups.groups.items()
                if group.coordinator == self._broker.node_id
            ]
        )

    def describe_consumer(
        self, request: consumer_group_describe.ConsumerGroupDescribeRequest, version: int
    ) -> Message:
        (name,) = request.group_ids
        group = self._groups.groups.get(name)
        described = consumer_group_describe.DescribedGroup(
            group_id=name, error_code=self._code(name)
        )
        if group is None or group.kind != "consumer":
            described.error_code = described.error_code or ErrorCode.GROUP_ID_NOT_FOUND
        else:
            described.group_state, described.assignor_name = group.state, "uniform"
            described.members = [self._consumer_member(member) for member in group.members]
        return consumer_group_describe.ConsumerGroupDescribeResponse(groups=[described])

    def _consumer_member(self, member: FakeMember) -> consumer_group_describe.Member:
        return consumer_group_describe.Member(
            member_id=member.member_id,
            instance_id=member.instance_id,
            client_id="app",
            client_host="10.0.0.1",
            assignment=consumer_group_describe.Assignment(
                topic_partitions=[
                    consumer_group_describe.TopicPartitions(topic_name=topic, partitions=[index])
                    for topic, index in member.assignment
                ]
            ),
        )

    def describe_classic(
        self, request: describe_groups.DescribeGroupsRequest, version: int
    ) -> Message:
        (name,) = request.groups
        group = self._groups.groups.get(name)
        described = describe_groups.DescribedGroup(group_id=name, error_code=self._code(name))
        if group is None:
            described.group_state = "Dead"
            if version >= 6:
                described.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        else:
            described.group_state = group.state
            described.protocol_type, described.protocol_data = "consumer", "range"
            described.members = [_classic_member(member) for member in group.members]
        return describe_groups.DescribeGroupsResponse(groups=[described])

    def offset_fetch(self, request: offset_fetch.OffsetFetchRequest, version: int) -> Message:
        (asked,) = request.groups
        answer = offset_fetch.OffsetFetchResponseGroup(
            group_id=asked.group_id, error_code=self._code(asked.group_id)
        )
        group = self._groups.groups.get(asked.group_id, FakeGroup())
        wanted: list[TopicPartition] = list(group.committed)
        if asked.topics is not None:
            wanted = [TopicPartition(t.name, i) for t in asked.topics for i in t.partition_indexes]
        for topic, index in wanted:
            entry = offset_fetch.OffsetFetchResponsePartitions(
                partition_index=index,
                committed_offset=group.committed.get(TopicPartition(topic, index), -1),
            )
            answer.topics.append(
                offset_fetch.OffsetFetchResponseTopics(name=topic, partitions=[entry])
            )
        return offset_fetch.OffsetFetchResponse(groups=[answer])

    def offset_commit(self, request: offset_commit.OffsetCommitRequest, version: int) -> Message:
        code = self._code(request.group_id)
        response = offset_commit.OffsetCommitResponse()
        for topic in request.topics:
            answers = []
            for entry in topic.partitions:
                if code is ErrorCode.NONE:
                    group = self._groups.groups.setdefault(request.group_id, FakeGroup())
                    place = TopicPartition(topic.name, entry.partition_index)
                    group.committed[place] = entry.committed_offset
                answers.append(
                    offset_commit.OffsetCommitResponsePartition(
                        partition_index=entry.partition_index, error_code=code
                    )
                )
            response.topics.append(
                offset_commit.OffsetCommitResponseTopic(name=topic.name, partitions=answers)
            )
        return response

    def delete_groups(self, request: delete_groups.DeleteGroupsRequest, version: int) -> Message:
        results = []
        for name in request.groups_names:
            code = self._code(name)
            group = self._groups.groups.get(name)
            if group is None:
                code = code or ErrorCode.GROUP_ID_NOT_FOUND
            elif group.members:
                code = code or ErrorCode.NON_EMPTY_GROUP
            elif code is ErrorCode.NONE:
                del self._groups.groups[name]
            results.append(delete_groups.DeletableGroupResult(group_id=name, error_code=code))
        return delete_groups.DeleteGroupsResponse(results=results)

    def leave_group(self, request: leave_group.LeaveGroupRequest, version: int) -> Message:
        group = self._groups.groups[request.group_id]
        answers = []
        for leaving in request.members:
            staying = [
                member
                for member in group.members
                if (leaving.group_instance_id or leaving.member_id)
                != (member.instance_id if leaving.group_instance_id else member.member_id)
            ]
            gone = len(staying) < len(group.members)
            group.members = staying
            answers.append(
                leave_group.MemberResponse(
                    member_id=leaving.member_id,
                    group_instance_id=leaving.group_instance_id,
                    error_code=ErrorCode.NONE if gone else ErrorCode.UNKNOWN_MEMBER_ID,
                )
            )
        return leave_group.LeaveGroupResponse(members=answers)


def _classic_member(member: FakeMember) -> describe_groups.DescribedGroupMember:
    return describe_groups.DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id="app",
        client_host="/10.0.0.1",
        member_assignment=_assignment_bytes(member),
    )


def _assignment_bytes(member: FakeMember) -> bytes:
    if member.raw_assignment is not None:
        return member.raw_assignment
    plan = consumer_protocol_assignment.ConsumerProtocolAssignment(
        assigned_partitions=[
            consumer_protocol_assignment.TopicPartition(topic=topic, partitions=[index])
            for topic, index in member.assignment
        ]
    )
    writer = Writer()
    plan.write(writer, 1)
    return b"\x00\x01" + b"".join(bytes(chunk) for chunk in writer.chunks())
