"""The requests of group members of both protocols, each sent once.

Requests are made here, not by a client library: a simulated member must be able to send what a
correct client would never send, such as a commit of a generation that is over. Nothing is repeated:
the judge of a run knows of every single request what became of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, TypeVar
from uuid import UUID

from tests.support.group_history import MemberName
from tidemill.client.admin.coordinator_client import COORDINATOR_MOVED, CoordinatorClient
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.errors import ClientError, error_code
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.wire.generated.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    RequestTopicPartitions,
)
from tidemill.wire.generated.consumer_protocol_assignment import (
    ConsumerProtocolAssignment,
    TopicPartition,
)
from tidemill.wire.generated.consumer_protocol_subscription import ConsumerProtocolSubscription
from tidemill.wire.generated.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidemill.wire.generated.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from tidemill.wire.generated.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from tidemill.wire.generated.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from tidemill.wire.generated.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from tidemill.wire.generated.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from tidemill.wire.message import Message
from tidemill.wire.primitives import Reader, Writer

__all__ = ["SESSION_S", "GroupWire", "Part", "Refused", "Unanswered"]

R = TypeVar("R", bound=Message)

SESSION_S = 6.0
"""Also the time that members have to give up partitions, and to join a round."""
ANSWERED_WITHIN_S = 4.0
JOINED_WITHIN_S = 2 * SESSION_S
PROTOCOL_TYPE = "consumer"
PROTOCOL = "range"
EMBEDDED_VERSION = 1
COMMIT_VERSION = 9
FETCH_VERSION = 9
"""From 10 on both name topics by id."""
DEFINITE = frozenset(
    {
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.MEMBER_ID_REQUIRED,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNRELEASED_INSTANCE_ID,
    }
)
"""The coordinator knows the group, and refuses: nothing has happened."""


class Refused(Exception):
    """The coordinator refuses the request for good."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


class Unanswered(Exception):
    """Nobody knows whether the request has had its effect, or still will."""


class Part(NamedTuple):
    """What one member has in a plan."""

    partitions: frozenset[int] = frozenset()
    plan: bytes = b""


class GroupWire:
    """Sends requests about one group, which reads one topic."""

    def __init__(self, cluster: ClusterClient, group: str, topic: str, topic_id: UUID) -> None:
        self._group = group
        self._topic = topic
        self._topic_id = topic_id
        self._coordinator = CoordinatorClient(cluster, group)
        self._cluster = cluster

    # --- both protocols --------------------------------------------------------------------------

    async def commit(self, name: MemberName, epoch: int, partition: int, offset: int) -> None:
        one = OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=""
        )
        response = await self._ask(
            OffsetCommitRequest(
                group_id=self._group,
                generation_id_or_member_epoch=epoch,
                member_id=name.member_id,
                group_instance_id=name.instance_id,
                topics=[OffsetCommitRequestTopic(name=self._topic, partitions=[one])],
            ),
            OffsetCommitResponse,
            version=COMMIT_VERSION,
        )
        self._check(response.topics[0].partitions[0].error_code)

    async def committed_offset(self, partition: int) -> int:
        """The group's offset, -1 if there is none."""
        asked = OffsetFetchRequestTopics(name=self._topic, partition_indexes=[partition])
        group = OffsetFetchRequestGroup(group_id=self._group, topics=[asked])
        response = await self._ask(
            OffsetFetchRequest(groups=[group]), OffsetFetchResponse, version=FETCH_VERSION
        )
        (found,) = response.groups
        self._check(found.error_code)
        self._check(found.topics[0].partitions[0].error_code)
        return found.topics[0].partitions[0].committed_offset

    # --- the classic protocol --------------------------------------------------------------------

    async def join(self, name: MemberName) -> JoinGroupResponse:
        """A member without an id is given one, with MEMBER_ID_REQUIRED or at once."""
        timeout_ms = int(1000 * SESSION_S)
        offered = JoinGroupRequestProtocol(name=PROTOCOL, metadata=_subscription(self._topic))
        return await self._ask(
            JoinGroupRequest(
                group_id=self._group,
                session_timeout_ms=timeout_ms,
                rebalance_timeout_ms=timeout_ms,
                member_id=name.member_id,
                group_instance_id=name.instance_id,
                protocol_type=PROTOCOL_TYPE,
                protocols=[offered],
            ),
            JoinGroupResponse,
            timeout_s=JOINED_WITHIN_S,
        )

    async def sync(self, name: MemberName, generation: int, plan: Mapping[str, Part]) -> Part:
        """`plan` is the leader's, by member id; others send none."""
        assignments = [
            SyncGroupRequestAssignment(member_id=one, assignment=_encoded(self._topic, part))
            for one, part in plan.items()
        ]
        response = await self._ask(
            SyncGroupRequest(
                group_id=self._group,
                generation_id=generation,
                member_id=name.member_id,
                group_instance_id=name.instance_id,
                protocol_type=PROTOCOL_TYPE,
                protocol_name=PROTOCOL,
                assignments=assignments,
            ),
            SyncGroupResponse,
            timeout_s=JOINED_WITHIN_S,
        )
        self._check(response.error_code)
        return _decoded(response.assignment)

    async def beat(self, name: MemberName, generation: int) -> None:
        request = HeartbeatRequest(
            group_id=self._group,
            generation_id=generation,
            member_id=name.member_id,
            group_instance_id=name.instance_id,
        )
        self._check((await self._ask(request, HeartbeatResponse)).error_code)

    async def leave(self, name: MemberName) -> None:
        who = MemberIdentity(member_id=name.member_id, group_instance_id=name.instance_id)
        request = LeaveGroupRequest(group_id=self._group, members=[who])
        response = await self._ask(request, LeaveGroupResponse)
        self._check(response.error_code)
        self._check(response.members[0].error_code)

    # --- the consumer protocol -------------------------------------------------------------------

    async def consumer_beat(
        self, name: MemberName, epoch: int, owned: Collection[int] | None
    ) -> ConsumerGroupHeartbeatResponse:
        """`owned`: None leaves out all fields that have not changed."""
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._group,
            member_id=name.member_id,
            member_epoch=epoch,
            instance_id=name.instance_id,
        )
        if owned is not None:
            request.rebalance_timeout_ms = int(1000 * SESSION_S)
            request.subscribed_topic_names = [self._topic]
            request.topic_partitions = self._listed(owned)
        response = await self._ask(request, ConsumerGroupHeartbeatResponse)
        self._check(response.error_code)
        return response

    def _listed(self, owned: Iterable[int]) -> list[RequestTopicPartitions]:
        numbers = sorted(owned)
        if not numbers:
            return []
        return [RequestTopicPartitions(topic_id=self._topic_id, partitions=numbers)]

    # --- one request -----------------------------------------------------------------------------

    async def _ask(
        self,
        request: Message,
        response_type: type[R],
        *,
        version: int | None = None,
        timeout_s: float = ANSWERED_WITHIN_S,
    ) -> R:
        self._cluster.request_timeout_s = timeout_s
        try:
            return await self._coordinator.ask(request, response_type, version=version)
        except (ClientError, KafkaError) as error:
            raise Unanswered(str(error)) from error

    def _check(self, value: int) -> None:
        code = error_code(value)
        if code in DEFINITE:
            raise Refused(code)
        if code is not ErrorCode.NONE:
            passes = code in COORDINATOR_MOVED or code.retriable or code.indefinite
            assert passes, f"{self._group}: an error that no member expects: {code.name}"
            self.forget_coordinator()
            raise Unanswered(code.name)

    def forget_coordinator(self) -> None:
        self._coordinator.forget()


def _subscription(topic: str) -> bytes:
    return _embedded(ConsumerProtocolSubscription(topics=[topic]))


def _encoded(topic: str, part: Part) -> bytes:
    owned = TopicPartition(topic=topic, partitions=sorted(part.partitions))
    return _embedded(ConsumerProtocolAssignment(assigned_partitions=[owned], user_data=part.plan))


def _embedded(message: Message) -> bytes:
    writer = Writer()
    writer.buf += EMBEDDED_VERSION.to_bytes(2, "big")
    message.write(writer, EMBEDDED_VERSION)
    return bytes(writer.buf)


def _decoded(assignment: bytes) -> Part:
    if not assignment:
        return Part()
    reader = Reader(assignment)
    found = ConsumerProtocolAssignment.read(reader, reader.int16())
    numbers = frozenset(one for topic in found.assigned_partitions for one in topic.partitions)
    return Part(numbers, bytes(found.user_data or b""))
