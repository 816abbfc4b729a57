"""A consumer group with a log, a clock and topics, and clients that behave like real ones.

The desk plays the runtime: it appends the records of a result, replays them and returns the answer.
It can drop the group and load the log again, unchanged or compacted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from tidemill.coordinators.group.base.group import (
    Caller,
    CommitIdentity,
    DeadlineKey,
    ShardContext,
)
from tidemill.coordinators.group.base.records import decode_value, try_decode_key
from tidemill.coordinators.group.consumer.consumer_group import ConsumerGroup
from tidemill.coordinators.group.re2_matcher import Re2Matcher
from tidemill.coordinators.runtime.deadlines import Deadlines
from tidemill.coordinators.runtime.shard import CoordinatorRecord, Now, Result
from tidemill.core.config.group_config import GroupConfig
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.metadata.image.image_draft import ImageDraft
from tidemill.metadata.image.metadata_image import (
    Delta,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from tidemill.metadata.image.topic_config import TopicConfig
from tidemill.wire.generated import consumer_group_heartbeat as wire
from tidemill.wire.generated.consumer_group_describe import DescribedGroup, Member
from tidemill.wire.generated.offset_commit import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidemill.wire.message import Message

GROUP = "g"
SESSION_MS = 10_000
INTERVAL_MS = 3_000
REBALANCE_MS = 20_000
DEADLINES_MAX = 3
"""Handled together; fewer than the members of a test, so that some stay due."""
WALL_MS = 1_700_000_000_000
CONFIG = GroupConfig(
    group_consumer_session_timeout_ms=SESSION_MS,
    group_consumer_heartbeat_interval_ms=INTERVAL_MS,
)
TOPIC_CONFIG = TopicConfig()

Toppar = tuple[str, int]


def topic_image(name: str, topic_id: UUID, count: int) -> TopicImage:
    partition = PartitionImage(leader=1, leader_epoch=0, replicas=(1,), isr=(1,))
    return TopicImage(
        name=name, topic_id=topic_id, partitions=(partition,) * count, config=TOPIC_CONFIG
    )


class ConsumerDesk:
    """One group, its log, its clock and its topics."""

    def __init__(self, topics: dict[str, int], config: GroupConfig = CONFIG) -> None:
        self.config = config
        self.now_ms = 1_000
        self.log: list[CoordinatorRecord] = []
        self.matcher = Re2Matcher()
        self.image = MetadataImage()
        self.ids_made = 0
        for name, count in topics.items():
            self.image = self._with_topic(name, count).after
        self.load()

    # --- the runtime's part ----------------------------------------------------------------------

    @property
    def now(self) -> Now:
        return Now(self.now_ms, WALL_MS + self.now_ms)

    def load(self) -> None:
        """Build the group again from the log."""
        self.context = ShardContext(self.config, Deadlines[DeadlineKey](), self.image, self.matcher)
        self.group = ConsumerGroup(GROUP, self.context)
        for record in self.log:
            self._replay(record)
        self.group.loaded(self.now)

    def compact(self) -> None:
        """Keep the newest record of each key, in the order of the log."""
        newest = {key: index for index, (key, _) in enumerate(self.log)}
        self.log = [self.log[index] for index in sorted(newest.values())]

    def apply(self, result: Result[object]) -> None:
        self.log += result.records
        for record in result.records:
            self._replay(record)

    def _replay(self, record: CoordinatorRecord) -> None:
        key = try_decode_key(record.key)
        assert key is not None
        value = None if record.value is None else decode_value(key, record.value)
        replay_into(self.group, key, value)

    def pass_ms(self, ms: int) -> None:
        """Let time pass; each deadline fires at its time."""
        end_ms = self.now_ms + ms
        deadlines = self.context.deadlines
        while True:
            next_ms = deadlines.next_ms()
            if next_ms is None or next_ms > end_ms:
                break
            self.now_ms = max(self.now_ms, next_ms)
            self.expire(deadlines.take_due(self.now_ms, DEADLINES_MAX))
        self.now_ms = end_ms

    def expire(self, keys: list[DeadlineKey]) -> None:
        """Deadlines have passed, perhaps several at the same time."""
        self.apply(self.group.deadlines_passed(keys, self.now))

    # --- topics ----------------------------------------------------------------------------------

    def _with_topic(self, name: str, count: int) -> Delta:
        draft = ImageDraft(self.image)
        before = self.image.topic(name)
        if before is None:
            self.ids_made += 1
        topic_id = UUID(int=self.ids_made) if before is None else before.topic_id
        draft.put_topic(topic_image(name, topic_id, count))
        return draft.finish()

    def put_topic(self, name: str, count: int) -> None:
        self._change(self._with_topic(name, count))

    def delete_topic(self, name: str) -> None:
        draft = ImageDraft(self.image)
        draft.drop_topic(name)
        self._change(draft.finish())

    def _change(self, delta: Delta) -> None:
        self.image = self.context.image = delta.after
        self.apply(self.group.metadata_changed(delta, self.now))

    def topic_id(self, name: str) -> UUID:
        return self.image.topics[name].topic_id

    # --- requests --------------------------------------------------------------------------------

    def ask(
        self, request: wire.ConsumerGroupHeartbeatRequest, *, version: int = 1, client: str = "c"
    ) -> Result[wire.ConsumerGroupHeartbeatResponse]:
        """Run a heartbeat; nothing is appended yet."""
        caller = Caller(client, "/127.0.0.1", "made-by-the-broker")
        return self.group.heartbeat(request, caller, version=version, now=self.now)

    def beat(
        self, request: wire.ConsumerGroupHeartbeatRequest, *, version: int = 1, client: str = "c"
    ) -> wire.ConsumerGroupHeartbeatResponse:
        result = self.ask(request, version=version, client=client)
        self.apply(result)
        assert isinstance(result.response, wire.ConsumerGroupHeartbeatResponse)
        return result.response

    def refusal(
        self, request: wire.ConsumerGroupHeartbeatRequest, *, version: int = 1
    ) -> ErrorCode:
        """The error that a heartbeat is refused with."""
        try:
            self.ask(request, version=version)
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE

    def commit_refusal(
        self, member_id: str, epoch: int, partition: tuple[UUID, int] | None = None
    ) -> ErrorCode:
        """The answer to a commit for one partition, which may be of no topic."""
        topic_id, number = partition or (UUID(int=0), 0)
        one = OffsetCommitRequestPartition(partition_index=number)
        topics = [OffsetCommitRequestTopic(topic_id=topic_id, partitions=[one])]
        try:
            self.group.check_commit(CommitIdentity(member_id, epoch), topics, self.now)
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE

    def names(self, assignment: wire.Assignment) -> set[Toppar]:
        """By name; a deleted topic by its id."""
        return {
            (self.image.names.get(one.topic_id, str(one.topic_id)), partition)
            for one in assignment.topic_partitions
            for partition in one.partitions
        }

    # --- inspection ------------------------------------------------------------------------------

    def describe(self) -> DescribedGroup:
        return self.group.describe()

    def member(self, member_id: str) -> Member:
        return next(one for one in self.describe().members if one.member_id == member_id)

    def member_ids(self) -> list[str]:
        return [one.member_id for one in self.describe().members]


def replay_into(group: ConsumerGroup, key: Message, value: object) -> None:
    name = type(key).__name__
    if name == "ConsumerGroupMetadataKey":
        group.plan.replay_epoch(value)
    elif name == "ConsumerGroupTargetAssignmentMetadataKey":
        group.plan.targets.replay_epoch(value)
    elif name == "ConsumerGroupRegularExpressionKey":
        group.plan.patterns.replay(key.regular_expression, value)
    else:
        replay = {
            "ConsumerGroupMemberMetadataKey": group.replay_member_metadata,
            "ConsumerGroupTargetAssignmentMemberKey": group.plan.targets.replay_member,
            "ConsumerGroupCurrentMemberAssignmentKey": group.replay_current_assignment,
        }[name]
        replay(key.member_id, value)


def join_request(
    member_id: str = "m", *topics: str, **fields
) -> wire.ConsumerGroupHeartbeatRequest:
    return wire.ConsumerGroupHeartbeatRequest(
        **{
            "group_id": GROUP,
            "member_id": member_id,
            "member_epoch": 0,
            "rebalance_timeout_ms": REBALANCE_MS,
            "subscribed_topic_names": list(topics or ("t",)),
            "topic_partitions": [],
            **fields,
        }
    )


def beat_request(member_id: str, epoch: int, **fields) -> wire.ConsumerGroupHeartbeatRequest:
    return wire.ConsumerGroupHeartbeatRequest(
        group_id=GROUP, member_id=member_id, member_epoch=epoch, **fields
    )


@dataclass(eq=False)
class Client:
    """A consumer like stock clients: it sends changed fields only, and all after an error."""

    desk: ConsumerDesk
    member_id: str
    topics: list[str]
    instance_id: str | None = None
    by_pattern: bool = False
    """It subscribes with a regular expression that matches exactly its topics."""
    epoch: int = 0
    reading: set[tuple[UUID, int]] = field(default_factory=set)
    """The partitions that it fetches: its own view of its assignment."""
    told: set[tuple[UUID, int]] = field(default_factory=set)
    """The last assignment it was told; `comply` makes it read exactly these."""
    acknowledges: bool = False
    """It has complied and has not acknowledged that yet."""
    says_all: bool = True
    has_missed_answer: bool = False
    topics_changed: bool = False
    last_error: ErrorCode = ErrorCode.NONE

    def request(self) -> wire.ConsumerGroupHeartbeatRequest:
        joins = self.epoch == 0
        says_all = self.says_all or joins
        request = beat_request(self.member_id, self.epoch, instance_id=self.instance_id)
        if says_all:
            request.rebalance_timeout_ms = REBALANCE_MS
        if says_all or self.topics_changed:
            request.subscribed_topic_names = [] if self.by_pattern else list(self.topics)
            request.subscribed_topic_regex = "|".join(self.topics) if self.by_pattern else ""
        if says_all or self.acknowledges:
            request.topic_partitions = listed(self.reading)
            self.acknowledges = False
        if self.has_missed_answer or joins:
            # It may have been told to give up what it lists no more: it begins to read nothing
            # before it is told again.
            self.told &= self.reading
        return request

    def beat(
        self, *, is_lost: bool = False, fails: bool = False, complies: bool = False
    ) -> ErrorCode:
        """One heartbeat; its answer may be lost, or its append may fail.

        `complies`: with what it was told before, when the heartbeat is already on its way.
        """
        request = self.request()
        if complies:
            self.comply()
        try:
            result = self.desk.ask(request, client=self.member_id)
        except KafkaError as error:
            self.last_error = ErrorCode.NONE if is_lost else error.code
            if not is_lost:
                self._refused(error.code)
            return self.last_error
        if not fails:
            self.desk.apply(result)
        if fails or is_lost:
            self.says_all = self.has_missed_answer = True
        else:
            self._hear(request, result.response)
        self.last_error = ErrorCode.NONE
        return ErrorCode.NONE

    def _hear(
        self,
        request: wire.ConsumerGroupHeartbeatRequest,
        response: wire.ConsumerGroupHeartbeatResponse,
    ) -> None:
        # librdkafka says all once more when it has joined, before it reads what it was given.
        self.says_all = request.member_epoch == 0
        self.has_missed_answer = self.topics_changed = False
        self.epoch = response.member_epoch
        if response.assignment is not None:
            self.told = {
                (one.topic_id, partition)
                for one in response.assignment.topic_partitions
                for partition in one.partitions
            }

    def _refused(self, code: ErrorCode) -> None:
        """Give everything up and join again, as a fenced or unknown member must."""
        self.says_all = True
        if code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.epoch = 0
            self.reading, self.told = set(), set()

    def comply(self) -> None:
        """Stop reading revoked partitions, start reading new ones."""
        self.reading = set(self.told)
        self.acknowledges = True

    def subscribe(self, topics: list[str], *, by_pattern: bool = False) -> None:
        self.topics = topics
        self.by_pattern = by_pattern
        self.topics_changed = True

    def leave(self, epoch: int = -1) -> None:
        self.reading, self.told = set(), set()
        self.desk.beat(beat_request(self.member_id, epoch, instance_id=self.instance_id))
        self.epoch = 0
        self.says_all = True

    def owns(self) -> list[str]:
        """The partitions that it reads, as text."""
        names = self.desk.image.names
        return sorted(
            f"{names.get(topic_id, 'gone')}-{number}" for topic_id, number in self.reading
        )


def listed(partitions: set[tuple[UUID, int]]) -> list[wire.RequestTopicPartitions]:
    by_topic: dict[UUID, list[int]] = {}
    for topic_id, number in sorted(partitions):
        by_topic.setdefault(topic_id, []).append(number)
    return [
        wire.RequestTopicPartitions(topic_id=topic_id, partitions=numbers)
        for topic_id, numbers in by_topic.items()
    ]


def settle(*clients: Client, rounds: int = 4) -> None:
    """Run rounds of heartbeats; every client complies at once."""
    for _ in range(rounds):
        for client in clients:
            client.beat()
            client.comply()
