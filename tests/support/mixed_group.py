"""A group shard with consumers of both protocols, which behave like stock clients."""

from __future__ import annotations

from tests.support.shard_desk import GROUP, ShardDesk, topic_image, value_of
from tidemill.coordinators.group.base.embedded_protocol import try_assignment, try_subscription
from tidemill.coordinators.group.base.group import Caller
from tidemill.coordinators.group.re2_matcher import Re2Matcher
from tidemill.coordinators.group.shard import GroupShard
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.loop.deferred import Deferred
from tidemill.wire.generated import consumer_protocol_assignment as assignment_wire
from tidemill.wire.generated import consumer_protocol_subscription as subscription_wire
from tidemill.wire.generated.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    RequestTopicPartitions,
)
from tidemill.wire.generated.heartbeat import HeartbeatRequest
from tidemill.wire.generated.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidemill.wire.generated.leave_group import LeaveGroupRequest, MemberIdentity
from tidemill.wire.generated.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tidemill.wire.primitives import Writer

SESSION_MS = 10_000
REBALANCE_MS = 30_000
JOIN, SYNC, LEAVE = 9, 5, 5
TOPIC_ID = topic_image("t", 1).topic_id
GONE = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.UNRELEASED_INSTANCE_ID,
)


class MixedDesk(ShardDesk):
    """One topic `t`, one group, and clients that take one step at a time."""

    def __init__(self, partitions=4, **changed):
        keys = {"group_consumer_session_timeout_ms": SESSION_MS} | changed
        keys |= {"group_consumer_heartbeat_interval_ms": 1_000}
        super().__init__(topic_image("t", 1, partitions), **keys)
        self.partitions = partitions
        self.names_made = 0

    def reload(self):
        """The coordinator loses everything except its log."""
        for parked in self.shard.resign():
            parked.refuse(ErrorCode.NOT_COORDINATOR)
        self.shard = GroupShard(self.config, self.image, matcher=Re2Matcher())
        for key, value in self.log:
            self.shard.replay(key, value)
        self.shard.loaded(self.now)
        self.settle()

    def ask(self, operation):
        """The response, None if it comes later, or the code of a refusal; and what is parked."""
        try:
            result = operation()
        except KafkaError as error:
            return error.code, None
        answer = self.take(result)
        self.settle()
        parked = result.response if isinstance(result.response, Deferred) else None
        return answer, parked

    def caller(self, name):
        self.names_made += 1
        return Caller(name, "/192.0.2.1", f"{name}-{self.names_made}")

    @property
    def kind(self):
        return self.listed().get(GROUP, ("", ""))[0]

    @property
    def state(self):
        return self.listed().get(GROUP, ("", ""))[1]

    def member_ids(self):
        if self.kind == "consumer":
            return {one.member_id for one in self.shard.describe_consumer_group(GROUP).members}
        if self.kind == "classic":
            return {one.member_id for one in self.shard.describe_classic_group(GROUP).members}
        return set()


class NewConsumer:
    """A consumer of the consumer protocol."""

    def __init__(self, desk, name, instance_id=None):
        self.desk, self.name, self.instance_id = desk, name, instance_id
        self.member_id = f"{name}-id"
        self.epoch = 0
        self.reading = set()
        self.acknowledges = False
        self.last_code = ErrorCode.NONE

    def step(self):
        joins = self.epoch == 0
        owned = [RequestTopicPartitions(topic_id=TOPIC_ID, partitions=sorted(self.reading))]
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
            rebalance_timeout_ms=REBALANCE_MS if joins else -1,
            subscribed_topic_names=["t"] if joins else None,
            topic_partitions=[] if joins else owned if self.acknowledges else None,
        )
        self._hear(self._send(request))

    def leave(self):
        epoch = -1 if self.instance_id is None else -2
        self.reading, self.epoch = set(), 0
        self._send(
            ConsumerGroupHeartbeatRequest(
                group_id=GROUP,
                member_id=self.member_id,
                member_epoch=epoch,
                instance_id=self.instance_id,
            )
        )

    def _send(self, request):
        desk, caller = self.desk, self.desk.caller(self.name)
        answer, _ = desk.ask(
            lambda: desk.shard.consumer_heartbeat(request, caller, version=1, now=desk.now)
        )
        return answer

    def _hear(self, answer):
        self.last_code = answer if isinstance(answer, ErrorCode) else ErrorCode(answer.error_code)
        if self.last_code in GONE:
            self.epoch, self.reading, self.acknowledges = 0, set(), False
        if self.last_code is not ErrorCode.NONE:
            return
        self.epoch = answer.member_epoch
        self.acknowledges = False
        if answer.assignment is not None:
            self.reading = {n for one in answer.assignment.topic_partitions for n in one.partitions}
            self.acknowledges = True


class ClassicConsumer:
    """A consumer of the classic protocol: eager, or cooperative (it keeps what it may)."""

    def __init__(self, desk, name, instance_id=None, *, is_cooperative=False):
        self.desk, self.name, self.instance_id = desk, name, instance_id
        self.is_cooperative = is_cooperative
        self.member_id, self.generation = "", -1
        self.reading = set()
        self.phase = "out"
        self.parked = None
        self.joined = None
        self.last_code = ErrorCode.NONE

    def step(self):
        if self.parked is not None:
            answer = value_of(self.parked) if self.parked.resolved else None
            if answer is not None:
                self.parked = None
                self._joined(answer) if self.phase == "out" else self._synced(answer)
            return
        {"out": self._join, "joined": self._sync, "member": self._beat}[self.phase]()

    def leave(self):
        desk = self.desk
        who = MemberIdentity(member_id=self.member_id, group_instance_id=self.instance_id)
        request = LeaveGroupRequest(group_id=GROUP, members=[who])
        desk.ask(lambda: desk.shard.leave(request, version=LEAVE, now=desk.now))
        self.reading = set()

    # --- one round -------------------------------------------------------------------------------

    def _join(self):
        if not self.is_cooperative:
            self.reading = set()
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="any", metadata=self._subscription())],
        )
        desk, caller = self.desk, self.desk.caller(self.name)
        answer, self.parked = desk.ask(
            lambda: desk.shard.join(request, caller, version=JOIN, now=desk.now)
        )
        if answer is not None:
            self.parked = None
            self._joined(answer)

    def _joined(self, answer):
        if self._is_refused(answer):
            if getattr(answer, "error_code", 0) == ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = answer.member_id
            return
        self.joined = answer
        self.member_id, self.generation = answer.member_id, answer.generation_id
        self.phase = "joined"

    def _sync(self):
        leads = self.joined.leader == self.member_id
        request = SyncGroupRequest(
            group_id=GROUP,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            assignments=plan(self.joined.members, self.desk.partitions) if leads else [],
        )
        desk = self.desk
        answer, self.parked = desk.ask(lambda: desk.shard.sync(request, now=desk.now))
        if answer is not None:
            self.parked = None
            self._synced(answer)

    def _synced(self, answer):
        if self._is_refused(answer):
            return
        given = {n for one in try_assignment(answer.assignment) for n in one.partitions}
        gives_up = self.is_cooperative and not self.reading <= given
        self.reading = given
        self.phase = "out" if gives_up else "member"

    def _beat(self):
        request = HeartbeatRequest(
            group_id=GROUP,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )
        desk = self.desk
        answer, _ = desk.ask(lambda: desk.shard.heartbeat(request, now=desk.now))
        self._is_refused(answer)

    def _is_refused(self, answer):
        code = answer if isinstance(answer, ErrorCode) else ErrorCode(answer.error_code)
        self.last_code = code
        if code is ErrorCode.NONE:
            return False
        self.phase = "out"
        if code in GONE:
            self.member_id, self.reading = "", set()
        elif code is ErrorCode.ILLEGAL_GENERATION:
            self.reading = set()
        return True

    def _subscription(self):
        owned = [subscription_wire.TopicPartition(topic="t", partitions=sorted(self.reading))]
        message = subscription_wire.ConsumerProtocolSubscription(
            topics=["t"], owned_partitions=owned if self.reading else []
        )
        return _versioned(message)


def plan(members, partitions):
    """The leader's plan: even, and nothing that another member says it still owns."""
    ids = sorted(one.member_id for one in members)
    owners = {}
    for one in members:
        for topic in try_subscription(one.metadata).content.owned_partitions:
            owners.update(dict.fromkeys(topic.partitions, one.member_id))
    given = {member_id: [] for member_id in ids}
    for number in range(partitions):
        wanted = ids[number % len(ids)]
        if owners.get(number, wanted) == wanted:
            given[wanted].append(number)
    return [
        SyncGroupRequestAssignment(member_id=one, assignment=_assignment(numbers))
        for one, numbers in given.items()
    ]


def _assignment(numbers):
    topics = [assignment_wire.TopicPartition(topic="t", partitions=numbers)]
    return _versioned(
        assignment_wire.ConsumerProtocolAssignment(assigned_partitions=topics if numbers else [])
    )


def _versioned(message):
    writer = Writer()
    writer.buf += b"\x00\x01"
    message.write(writer, 1)
    return bytes(writer.buf)


def settle_all(*clients, rounds=12):
    for _ in range(rounds):
        for client in clients:
            client.step()
