"""Many members of one group in one process, without a client library: both protocols.

They do what a client does between polls: join, sync, heartbeat, and take part in rebalances. They
fetch nothing, so the bench measures the coordinator.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, final
from uuid import uuid4

from bench.processes import MeasurementFailed
from bench.wire_client import Address
from tidemill.client.network.broker_connection import BrokerConnection
from tidemill.core.error_codes import ErrorCode
from tidemill.core.net import AsyncioNet
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
from tidemill.wire.generated.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tidemill.wire.generated.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidemill.wire.generated.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from tidemill.wire.generated.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from tidemill.wire.message import Message
from tidemill.wire.primitives import Writer

__all__ = ["AtRest", "ClassicMember", "ConsumerMember", "find_coordinator", "stabilise"]

SESSION_TIMEOUT_MS = 45_000
REBALANCE_TIMEOUT_MS = 10_000
HEARTBEAT_S = 3.0
ANSWER_SECONDS_MAX = 60.0
CONNECTIONS_AT_ONCE = 50
STABLE_SECONDS_MAX = 120.0
_RETRY_S = 0.05
_AGAIN = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION)
_NOT_YET = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)


def _versioned(message: Message) -> bytes:
    """Encoded as clients put it into JoinGroup and SyncGroup: the version first."""
    writer = Writer()
    writer.buf += bytes(2)
    message.write(writer, 0)
    return bytes(writer.buf)


_METADATA = _versioned(ConsumerProtocolSubscription(topics=["wide-classic"]))
_ASSIGNMENT = _versioned(
    ConsumerProtocolAssignment(
        assigned_partitions=[TopicPartition(topic="wide-classic", partitions=[0])]
    )
)


async def find_coordinator(address: Address, group_id: str) -> None:
    """Wait until the group has a coordinator; with one broker it is always that broker."""
    connection = await BrokerConnection.open(
        AsyncioNet(), *address, timeout_s=ANSWER_SECONDS_MAX, client_id="bench"
    )
    try:
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while time.monotonic() < deadline:
            answer = await connection.request(
                FindCoordinatorRequest(key_type=0, coordinator_keys=[group_id]),
                FindCoordinatorResponse,
                timeout_s=ANSWER_SECONDS_MAX,
            )
            if not answer.coordinators[0].error_code:
                return
            await asyncio.sleep(_RETRY_S)
    finally:
        connection.close()
    raise MeasurementFailed("the group has no coordinator")


@final
class ClassicMember:
    """Classic protocol; stable when it has an assignment of the newest generation."""

    def __init__(self, group_id: str) -> None:
        self.is_stable = False
        self._group_id = group_id
        self._member_id = ""
        self._generation = -1

    async def run(self, connection: BrokerConnection) -> None:
        """Until cancelled."""
        while True:
            await self._join(connection)
            while self.is_stable:
                await asyncio.sleep(HEARTBEAT_S)
                await self._heartbeat(connection)

    async def _join(self, connection: BrokerConnection) -> None:
        self.is_stable = False
        answer = await connection.request(
            JoinGroupRequest(
                group_id=self._group_id,
                session_timeout_ms=SESSION_TIMEOUT_MS,
                rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
                member_id=self._member_id,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=_METADATA)],
            ),
            JoinGroupResponse,
            timeout_s=ANSWER_SECONDS_MAX,
        )
        if answer.error_code in (ErrorCode.MEMBER_ID_REQUIRED, *_NOT_YET, *_AGAIN):
            self._member_id = answer.member_id
            if answer.error_code in _NOT_YET:
                await asyncio.sleep(_RETRY_S)
            return
        _check(answer.error_code, "JoinGroup")
        self._member_id, self._generation = answer.member_id, answer.generation_id
        await self._sync(connection, answer)

    async def _sync(self, connection: BrokerConnection, joined: JoinGroupResponse) -> None:
        answer = await connection.request(
            SyncGroupRequest(
                group_id=self._group_id,
                generation_id=self._generation,
                member_id=self._member_id,
                protocol_type="consumer",
                protocol_name="range",
                assignments=[
                    SyncGroupRequestAssignment(member_id=one.member_id, assignment=_ASSIGNMENT)
                    for one in joined.members  # only the leader receives them
                ],
            ),
            SyncGroupResponse,
            timeout_s=ANSWER_SECONDS_MAX,
        )
        if answer.error_code not in _AGAIN:
            _check(answer.error_code, "SyncGroup")
            self.is_stable = True

    async def _heartbeat(self, connection: BrokerConnection) -> None:
        answer = await connection.request(
            HeartbeatRequest(
                group_id=self._group_id,
                generation_id=self._generation,
                member_id=self._member_id,
            ),
            HeartbeatResponse,
            timeout_s=ANSWER_SECONDS_MAX,
        )
        if answer.error_code in _AGAIN:
            self.is_stable = False
        else:
            _check(answer.error_code, "Heartbeat")


@final
class ConsumerMember:
    """Consumer protocol; stable when it owns its share and heartbeats bring no change."""

    def __init__(self, group_id: str, topic: str) -> None:
        self.is_stable = False
        self._group_id = group_id
        self._topic = topic
        self._member_id = str(uuid4())
        self._epoch = 0
        self._owned: list[RequestTopicPartitions] | None = None

    async def run(self, connection: BrokerConnection) -> None:
        """Until cancelled."""
        while True:
            pause_s = await self._heartbeat(connection)
            await asyncio.sleep(pause_s)

    async def _heartbeat(self, connection: BrokerConnection) -> float:
        joining = self._epoch == 0
        answer = await connection.request(
            ConsumerGroupHeartbeatRequest(
                group_id=self._group_id,
                member_id=self._member_id,
                member_epoch=self._epoch,
                rebalance_timeout_ms=REBALANCE_TIMEOUT_MS if joining else -1,
                subscribed_topic_names=[self._topic] if joining else None,
                topic_partitions=[] if joining else self._owned,
            ),
            ConsumerGroupHeartbeatResponse,
            timeout_s=ANSWER_SECONDS_MAX,
        )
        self._owned = None
        if answer.error_code in _NOT_YET:
            return _RETRY_S
        _check(answer.error_code, "ConsumerGroupHeartbeat")
        is_new_epoch, self._epoch = answer.member_epoch != self._epoch, answer.member_epoch
        if answer.assignment is not None:
            # Like a client: a change is acknowledged at once.
            self._owned = [
                RequestTopicPartitions(topic_id=one.topic_id, partitions=one.partitions)
                for one in answer.assignment.topic_partitions
            ]
            self.is_stable = sum(len(one.partitions) for one in self._owned) == 1
            return 0.0
        return 0.0 if is_new_epoch else answer.heartbeat_interval_ms / 1000


class AtRest(NamedTuple):
    """A group whose members are all stable."""

    stable_s: float
    """From the last connection until all members are stable."""
    cpu_s: float
    """CPU that the broker used while the group was idle."""


async def stabilise(
    address: Address,
    members: Sequence[ClassicMember | ConsumerMember],
    cpu_seconds: Callable[[], float],
    *,
    idle_s: float,
) -> AtRest:
    """Connect all members, wait until all are stable, and let them idle for a while."""
    room = asyncio.Semaphore(CONNECTIONS_AT_ONCE)

    async def connect() -> BrokerConnection:
        async with room:
            return await BrokerConnection.open(
                AsyncioNet(), *address, timeout_s=ANSWER_SECONDS_MAX, client_id="bench"
            )

    connections = await asyncio.gather(*(connect() for _ in members))
    began = time.monotonic()
    tasks = [
        asyncio.ensure_future(member.run(connection))
        for member, connection in zip(members, connections, strict=True)
    ]
    try:
        while not all(member.is_stable for member in members):
            _raise_failure(tasks)
            if time.monotonic() - began > STABLE_SECONDS_MAX:
                raise MeasurementFailed(f"the group was not stable after {STABLE_SECONDS_MAX} s")
            await asyncio.sleep(_RETRY_S)
        stable_s = time.monotonic() - began
        before_s = cpu_seconds()
        await asyncio.sleep(idle_s)
        _raise_failure(tasks)
        return AtRest(stable_s, cpu_seconds() - before_s)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in connections:
            connection.close()


def _raise_failure(tasks: Sequence[asyncio.Future[None]]) -> None:
    for task in tasks:
        if task.done():
            task.result()


def _check(code: int, api: str) -> None:
    if code:
        raise MeasurementFailed(f"{api} was refused with {ErrorCode(code).name}")
