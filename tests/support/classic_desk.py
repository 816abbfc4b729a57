"""A classic group with a log and a clock, as the runtime would host it, and clients that use it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tidemill.coordinators.group.base.group import (
    Caller,
    CommitIdentity,
    ShardContext,
)
from tidemill.coordinators.group.base.records import decode_value, try_decode_key
from tidemill.coordinators.group.classic.classic_group import ClassicGroup
from tidemill.coordinators.group.re2_matcher import Re2Matcher
from tidemill.coordinators.runtime.deadlines import Deadlines
from tidemill.coordinators.runtime.shard import CoordinatorRecord, Now, Result
from tidemill.core.config.group_config import GroupConfig
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.loop.deferred import Deferred
from tidemill.metadata.image.metadata_image import MetadataImage
from tidemill.wire.generated.consumer_protocol_subscription import ConsumerProtocolSubscription
from tidemill.wire.generated.group_metadata_record import GroupMetadataKey, GroupMetadataValue
from tidemill.wire.generated.heartbeat import HeartbeatRequest
from tidemill.wire.generated.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from tidemill.wire.generated.leave_group import LeaveGroupRequest, MemberIdentity
from tidemill.wire.generated.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from tidemill.wire.primitives import Writer

GROUP = "g"
WALL_MS = 1_700_000_000_000
JOIN_VERSION = 9
SESSION_MS = 10_000
REBALANCE_MS = 60_000
EXPIRIES_MAX = 100


def config(**changed: Any) -> GroupConfig:
    """Kafka's defaults, except for the initial delay, which only some tests need."""
    keys = {"group_initial_rebalance_delay_ms": 0} | changed
    return GroupConfig(**keys)


def subscription(*topics: str) -> bytes:
    writer = Writer()
    writer.buf += b"\x00\x01"
    ConsumerProtocolSubscription(topics=list(topics)).write(writer, 1)
    return bytes(writer.buf)


@dataclass
class Answer:
    """The answer to a client; None while the request waits."""

    response: Any = None

    @property
    def waits(self) -> bool:
        return self.response is None

    @property
    def code(self) -> ErrorCode:
        return ErrorCode(self.response.error_code)


@dataclass
class Client:
    """A consumer and what it knows about its membership."""

    name: str
    instance_id: str | None = None
    topics: tuple[str, ...] = ("t",)
    protocols: tuple[str, ...] = ("range",)
    protocol_type: str = "consumer"
    session_ms: int = SESSION_MS
    rebalance_ms: int = REBALANCE_MS
    member_id: str = ""
    generation: int = -1
    leads: bool = False
    listed: list[str] = field(default_factory=list)
    """The members in the leader's JoinGroup answer."""
    assignment: bytes | None = None

    def learn(self, response: Any) -> None:
        if isinstance(response, JoinGroupResponse):
            self._learn_join(response)
        elif isinstance(response, SyncGroupResponse) and response.error_code == 0:
            self.assignment = response.assignment

    def _learn_join(self, response: JoinGroupResponse) -> None:
        if response.error_code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            self.member_id = response.member_id
        if response.error_code == ErrorCode.NONE:
            self.generation = response.generation_id
            self.leads = response.leader == response.member_id
            self.listed = [member.member_id for member in response.members]


class Desk:
    """Hosts one group: appends and replays its records, lets deadlines pass, reloads it."""

    def __init__(self, group_config: GroupConfig | None = None) -> None:
        self.config = group_config or config()
        self.ms = 0
        self.log: list[CoordinatorRecord] = []
        self.append_fails = False
        self.ids: dict[str, int] = {}
        self._build()

    def _build(self) -> None:
        self.context = ShardContext(self.config, Deadlines(), MetadataImage(), Re2Matcher())
        self.group = ClassicGroup(GROUP, self.context)

    @property
    def now(self) -> Now:
        return Now(self.ms, WALL_MS + self.ms)

    # --- the runtime -----------------------------------------------------------------------------

    def apply(self, result: Result[Any], client: Client | None = None) -> Answer:
        """Append, replay, answer. A failed append refuses the replies, as in the runtime."""
        if result.records and self.append_fails:
            self._fail(result)
        for record in result.records:
            self.log.append(record)
            self._replay(record)
        answer = Answer()

        def hear(response: Any) -> None:
            answer.response = response
            if client is not None:
                client.learn(response)

        if isinstance(result.response, Deferred):
            result.response.then(hear)
        else:
            hear(result.response)
        for parked, response in result.replies:
            parked.resolve(response)
        return answer

    def _fail(self, result: Result[Any]) -> None:
        for parked, _ in result.replies:
            parked.refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if result.replies:
            self.reload()
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _replay(self, record: CoordinatorRecord) -> None:
        key = try_decode_key(record.key)
        assert isinstance(key, GroupMetadataKey)
        assert key.group == GROUP
        self.group.replay_metadata(None if record.value is None else self.decoded(record))

    @staticmethod
    def decoded(record: CoordinatorRecord) -> GroupMetadataValue:
        assert record.value is not None
        value = decode_value(GroupMetadataKey(group=GROUP), record.value)
        assert isinstance(value, GroupMetadataValue)
        return value

    def advance(self, ms: int) -> None:
        """Let time pass; each deadline fires at its time."""
        end = self.ms + ms
        for _ in range(EXPIRIES_MAX):
            due = self.context.deadlines.next_ms()
            if due is None or due > end:
                break
            self.ms = max(self.ms, due)
            self.expire()
        else:
            raise AssertionError("deadlines keep firing")
        self.ms = end

    def expire(self) -> None:
        keys = self.context.deadlines.take_due(self.ms, 10)
        try:
            self.apply(self.group.deadlines_passed(keys, self.now))
        except KafkaError:
            assert self.append_fails

    def reload(self) -> None:
        """Another broker takes over and loads the log."""
        for parked in self.group.parked():
            parked.refuse(ErrorCode.NOT_COORDINATOR)
        self._build()
        for record in self.log:
            self._replay(record)
        self.group.loaded(self.now)

    # --- requests --------------------------------------------------------------------------------

    def _fresh_id(self, client: Client) -> str:
        """ana-1, or ana-2 after ana lost that id; the group uses it only if it needs one."""
        used = self.ids.get(client.name, 0)
        if not client.member_id:
            self.ids[client.name] = used + 1
        return f"{client.name}-{used + 1}"

    def send_join(self, client: Client, *, version: int = JOIN_VERSION, **changed: Any) -> Answer:
        """One JoinGroup; KafkaError if it is refused."""
        metadata = subscription(*client.topics)
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=client.session_ms,
            rebalance_timeout_ms=client.rebalance_ms,
            member_id=client.member_id,
            group_instance_id=client.instance_id,
            protocol_type=client.protocol_type,
            protocols=[
                JoinGroupRequestProtocol(name=name, metadata=metadata) for name in client.protocols
            ],
        )
        for name, value in changed.items():
            setattr(request, name, value)
        caller = Caller(client.name, "/127.0.0.1", self._fresh_id(client))
        result = self.group.join(request, caller, version=version, now=self.now)
        return self.apply(result, client)

    def join(self, client: Client, **changed: Any) -> Answer:
        """Join, and again with the id if one is required."""
        answer = self.send_join(client, **changed)
        if not answer.waits and answer.code is ErrorCode.MEMBER_ID_REQUIRED:
            return self.send_join(client, **changed)
        return answer

    def sync(self, client: Client, plan: dict[str, bytes] | None = None, **changed: Any) -> Answer:
        request = SyncGroupRequest(
            group_id=GROUP,
            generation_id=client.generation,
            member_id=client.member_id,
            group_instance_id=client.instance_id,
            assignments=[
                SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
                for member_id, assignment in (plan or {}).items()
            ],
        )
        for name, value in changed.items():
            setattr(request, name, value)
        return self.apply(self.group.sync(request, now=self.now), client)

    def heartbeat(self, client: Client) -> Answer:
        request = HeartbeatRequest(
            group_id=GROUP,
            generation_id=client.generation,
            member_id=client.member_id,
            group_instance_id=client.instance_id,
        )
        return self.apply(self.group.heartbeat(request, now=self.now))

    def heartbeat_code(self, client: Client) -> ErrorCode:
        """The code of one heartbeat, from its answer or its refusal."""
        try:
            return self.heartbeat(client).code
        except KafkaError as refusal:
            return refusal.code

    def leave(self, *clients: Client, version: int = 5) -> Answer:
        return self.leave_as(
            *((client.member_id, client.instance_id) for client in clients), version=version
        )

    def leave_as(self, *who: tuple[str, str | None], version: int = 5) -> Answer:
        request = LeaveGroupRequest(group_id=GROUP)
        if version < 3:
            request.member_id = who[0][0]
        else:
            request.members = [
                MemberIdentity(member_id=member_id, group_instance_id=instance_id)
                for member_id, instance_id in who
            ]
        return self.apply(self.group.leave(request, version=version, now=self.now))

    def commit(self, client: Client, generation: int | None = None) -> None:
        """KafkaError if the client may not."""
        asked = client.generation if generation is None else generation
        who = CommitIdentity(client.member_id, asked, client.instance_id)
        self.group.check_commit(who, [], self.now)

    # --- short cuts ------------------------------------------------------------------------------

    def stable(self, *names: str, **keys: Any) -> list[Client]:
        """A stable group of these clients; the first leads, and each is assigned its own name."""
        clients = [Client(name, **keys) for name in names]
        return self.stabilise(*clients)

    def stabilise(self, *clients: Client) -> list[Client]:
        answers = [self.join(client) for client in clients]
        for client, answer in zip(clients, answers, strict=True):
            if not answer.waits and self.group.state_name == "PreparingRebalance":
                self.join(client)
        plan = {client.member_id: client.name.encode() for client in clients}
        for client in sorted(clients, key=lambda client: client.leads):
            self.sync(client, plan if client.leads else None)
        assert self.group.state_name == "Stable"
        return list(clients)


def joined(*names: str) -> tuple[Desk, list[Client]]:
    """A group in which a generation has begun and no plan has been made; the first leads."""
    desk = Desk(config(group_initial_rebalance_delay_ms=1))
    clients = [Client(name) for name in names]
    for client in clients:
        desk.send_join(client, version=3)
    desk.advance(2)
    assert desk.group.state_name == "CompletingRebalance"
    return desk, clients


def refused(code: ErrorCode) -> pytest.RaisesExc[KafkaError]:
    """The body must raise this error."""
    return pytest.raises(KafkaError, match=code.name)
